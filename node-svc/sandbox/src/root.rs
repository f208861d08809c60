//! Builds the file system that a workload sees and makes it the only one there is.
//!
//! Everything of the host is opened as a detached mount first, by its host path; the new root is
//! then filled through descriptors. No path that a workload could have prepared is ever
//! followed: targets are walked one name at a time, and a symbolic link there is an error.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, chdir, fchdir, pivot_root, symlinkat, unlinkat};

use crate::error::{Fault, Step};
use crate::probe::make_mounts_private;
use crate::spec::{BASE_DEVICES, Bind, GeneratedFile, PrivateTmpfs, SandboxSpec};
use crate::sys;

/// The folder of the host that the new root is mounted on while it is built. Only this mount
/// namespace sees it there.
pub(crate) const NEW_ROOT: &str = "/tmp";

const FOLDER: Mode = Mode::from_bits_truncate(0o755);
const STAGED: &str = ".staged";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// A piece of the host, opened and waiting for its place.
#[derive(Debug)]
struct Piece {
    mount: OwnedFd,
    target: PathBuf,
    is_folder: bool,
}

#[derive(Debug, Default)]
struct Pieces {
    /// Symbolic links of the host's root, e.g. `/bin`, with what they say.
    links: Vec<(PathBuf, PathBuf)>,
    system: Vec<Piece>,
    devices: Vec<Piece>,
    binds: Vec<Piece>,
}

/// Enters the root that `spec` describes. The calling process must be alone in a new mount
/// namespace and be the first of a new pid namespace.
pub(crate) fn enter(spec: &SandboxSpec) -> Result<(), Fault> {
    make_mounts_private().step(|| "make mounts private")?;
    let pieces = Pieces::open(spec)?;
    mount_new(Path::new(NEW_ROOT), "tmpfs", MsFlags::empty(), "mode=0755")
        .step(|| "mount a new root")?;
    let folder = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(NEW_ROOT, folder, Mode::empty()).step(|| "open the new root")?;
    fill(root.as_fd(), spec, pieces)?;
    let read_only = MsFlags::MS_REMOUNT
        | MsFlags::MS_BIND
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV;
    let none = None::<&str>;
    mount(none, NEW_ROOT, none, read_only, none).step(|| "make the new root read-only")?;
    fchdir(&root).step(|| "enter the new root")?;
    // The old root goes on top of the new one, and from there away with all its mounts.
    pivot_root(".", ".").step(|| "change the root")?;
    umount2(".", MntFlags::MNT_DETACH).step(|| "detach the old root")?;
    chdir("/").step(|| "enter the new root")
}

impl Pieces {
    fn open(spec: &SandboxSpec) -> Result<Self, Fault> {
        let mut pieces = Self::default();
        let read_only = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV;
        for dir in &spec.system_dirs {
            match fs::symlink_metadata(dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).step(|| format!("look at {}", dir.display())),
                Ok(found) if found.is_symlink() => {
                    let link =
                        fs::read_link(dir).step(|| format!("read link {}", dir.display()))?;
                    pieces.links.push((dir.clone(), link));
                }
                Ok(_) => pieces.system.push(Piece::open(dir, dir, read_only, true)?),
            }
        }
        if spec.sys {
            let sys_dir = Path::new("/sys");
            pieces.system.push(Piece::open(
                sys_dir,
                sys_dir,
                read_only | sys::ATTR_NOEXEC,
                false,
            )?);
        }
        for device in BASE_DEVICES
            .iter()
            .map(Path::new)
            .chain(spec.devices.iter().map(PathBuf::as_path))
        {
            pieces.devices.push(Piece::open_device(device)?);
        }
        if let Some(bind) = resolver_outside(&spec.system_dirs) {
            pieces
                .binds
                .push(Piece::open(&bind.source, &bind.target, read_only, false)?);
        }
        for bind in &spec.binds {
            let attributes = if bind.read_only {
                read_only
            } else {
                sys::ATTR_NOSUID | sys::ATTR_NODEV
            };
            pieces
                .binds
                .push(Piece::open(&bind.source, &bind.target, attributes, true)?);
        }
        Ok(pieces)
    }
}

impl Piece {
    fn open(source: &Path, target: &Path, attributes: u64, deep: bool) -> Result<Self, Fault> {
        let step = || format!("mount {}", source.display());
        let is_folder = fs::metadata(source).step(step)?.is_dir();
        let mount = sys::clone_mount(sys::here(), source, deep).step(step)?;
        sys::restrict_mount(mount.as_fd(), attributes).step(step)?;
        Ok(Self {
            mount,
            target: target.to_path_buf(),
            is_folder,
        })
    }

    fn open_device(device: &Path) -> Result<Self, Fault> {
        let step = || format!("allow device {}", device.display());
        let kind = fs::metadata(device).step(step)?.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(Fault::new(step(), "not a device file"));
        }
        Self::open(device, device, sys::ATTR_NOSUID | sys::ATTR_NOEXEC, false).map_err(|fault| {
            Fault {
                step: step(),
                ..fault
            }
        })
    }

    fn place(&self, root: BorrowedFd<'_>) -> Result<(), Fault> {
        let target = place_for(root, &self.target, self.is_folder)?;
        sys::attach_mount(self.mount.as_fd(), target.as_fd())
            .step(|| format!("mount at {}", self.target.display()))
    }
}

/// The resolver configuration is often a link to a folder of /run, which is private inside.
fn resolver_outside(system_dirs: &[PathBuf]) -> Option<Bind> {
    if !system_dirs.iter().any(|dir| dir == Path::new("/etc")) {
        return None;
    }
    let real = fs::canonicalize(RESOLV_CONF).ok()?;
    let visible = system_dirs.iter().any(|dir| real.starts_with(dir));
    (!visible).then(|| Bind::read_only(real.clone(), real))
}

fn fill(root: BorrowedFd<'_>, spec: &SandboxSpec, pieces: Pieces) -> Result<(), Fault> {
    for (at, link) in &pieces.links {
        let name = at.strip_prefix("/").unwrap_or(at);
        symlinkat(link, root, name).step(|| format!("link {}", at.display()))?;
    }
    place_all(root, &pieces.system)?;
    let no_exec = MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_inside(root, Path::new("/proc"), "proc", no_exec, "")?;
    fill_dev(root, &pieces.devices)?;
    for tmpfs in private_folders(spec) {
        let size = tmpfs
            .size_bytes
            .map_or_else(String::new, |bytes| format!(",size={bytes}"));
        let options = format!("mode={:04o}{size}", tmpfs.mode & 0o7777);
        mount_inside(root, &tmpfs.target, "tmpfs", MsFlags::MS_NODEV, &options)?;
    }
    place_all(root, &pieces.binds)?;
    spec.files
        .iter()
        .try_for_each(|file| place_file(root, file))
}

fn place_all(root: BorrowedFd<'_>, pieces: &[Piece]) -> Result<(), Fault> {
    pieces.iter().try_for_each(|piece| piece.place(root))
}

fn fill_dev(root: BorrowedFd<'_>, devices: &[Piece]) -> Result<(), Fault> {
    let no_exec = MsFlags::MS_NOEXEC;
    // Not NODEV: the device files of the host are attached below it.
    mount_inside(root, Path::new("/dev"), "tmpfs", no_exec, "mode=0755")?;
    place_all(root, devices)?;
    let terminals = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    mount_inside(root, Path::new("/dev/pts"), "devpts", no_exec, terminals)?;
    mount_inside(
        root,
        Path::new("/dev/shm"),
        "tmpfs",
        no_exec | MsFlags::MS_NODEV,
        "mode=1777",
    )?;
    let dev = place_for(root, Path::new("/dev"), true)?;
    let links = [
        ("pts/ptmx", "ptmx"),
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ];
    for (link, name) in links {
        symlinkat(link, &dev, name).step(|| format!("link /dev/{name}"))?;
    }
    Ok(())
}

/// The folders that every workload has for itself, unless the caller puts something there.
fn private_folders(spec: &SandboxSpec) -> Vec<PrivateTmpfs> {
    let taken = |target: &Path| {
        spec.binds.iter().any(|bind| bind.target == target)
            || spec.tmpfs.iter().any(|tmpfs| tmpfs.target == target)
    };
    let usual = [("/tmp", 0o1777), ("/run", 0o755), ("/var/tmp", 0o1777)];
    let usual = usual
        .into_iter()
        .filter(|(target, _)| !taken(Path::new(target)));
    usual
        .map(|(target, mode)| PrivateTmpfs {
            target: target.into(),
            size_bytes: None,
            mode,
        })
        .chain(spec.tmpfs.iter().cloned())
        .collect()
}

fn mount_new(at: &Path, kind: &str, flags: MsFlags, options: &str) -> nix::Result<()> {
    mount(
        Some(kind),
        at,
        Some(kind),
        flags | MsFlags::MS_NOSUID,
        Some(options),
    )
}

fn mount_inside(
    root: BorrowedFd<'_>,
    target: &Path,
    kind: &str,
    flags: MsFlags,
    options: &str,
) -> Result<(), Fault> {
    let place = place_for(root, target, true)?;
    mount_new(&sys::fd_path(&place), kind, flags, options)
        .step(|| format!("mount {kind} at {}", target.display()))
}

/// Makes the file in the new root's own file system, moves it to its place as a read-only mount
/// and takes away the name it was made under.
fn place_file(root: BorrowedFd<'_>, file: &GeneratedFile) -> Result<(), Fault> {
    let step = || format!("place file {}", file.target.display());
    let target = place_for(root, &file.target, false)?;
    let create = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let mut staged: fs::File = openat(root, STAGED, create, Mode::S_IRUSR)
        .step(step)?
        .into();
    staged.write_all(file.content.as_bytes()).step(step)?;
    fchmod(&staged, Mode::from_bits_truncate(file.mode)).step(step)?;
    drop(staged);
    let mount = sys::clone_mount(root, Path::new(STAGED), false).step(step)?;
    let attributes = sys::ATTR_RDONLY | sys::ATTR_NOSUID | sys::ATTR_NODEV;
    sys::restrict_mount(mount.as_fd(), attributes).step(step)?;
    sys::attach_mount(mount.as_fd(), target.as_fd()).step(step)?;
    unlinkat(root, STAGED, UnlinkatFlags::NoRemoveDir).step(step)
}

/// Opens the place `target` below `root`, creating what is missing: folders with mode 0755, an
/// empty file at the end if `folder` is false. Never follows a link.
fn place_for(root: BorrowedFd<'_>, target: &Path, folder: bool) -> Result<OwnedFd, Fault> {
    let step = || format!("make a place for {}", target.display());
    let names: Vec<_> = target.iter().skip(1).collect();
    let mut at = root.try_clone_to_owned().step(step)?;
    for (index, name) in names.iter().enumerate() {
        let is_folder = folder || index + 1 < names.len();
        let kind = if is_folder {
            OFlag::O_DIRECTORY
        } else {
            OFlag::empty()
        };
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | kind;
        let found = match openat(&at, *name, flags, Mode::empty()) {
            Err(Errno::ENOENT) => {
                create(at.as_fd(), Path::new(name), is_folder).step(step)?;
                openat(&at, *name, flags, Mode::empty())
            }
            found => found,
        };
        at = found.step(step)?;
        if is_link(&at).step(step)? {
            return Err(Fault::new(step(), "a symbolic link is in the way"));
        }
    }
    Ok(at)
}

fn is_link(fd: &OwnedFd) -> nix::Result<bool> {
    let mode = nix::sys::stat::fstat(fd)?.st_mode;
    Ok(mode & libc::S_IFMT == libc::S_IFLNK)
}

fn create(at: BorrowedFd<'_>, name: &Path, folder: bool) -> nix::Result<()> {
    let created = if folder {
        mkdirat(at, name, FOLDER)
    } else {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        openat(
            at,
            name,
            flags | OFlag::O_CLOEXEC,
            Mode::from_bits_truncate(0o644),
        )
        .map(drop)
    };
    match created {
        Err(Errno::EEXIST) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_of(folder: &tempfile::TempDir) -> OwnedFd {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        open(folder.path(), flags, Mode::empty()).unwrap()
    }

    #[test]
    fn places_are_created_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = root_of(&folder);
        for _ in 0..2 {
            place_for(root.as_fd(), Path::new("/a/b/c"), true).unwrap();
            place_for(root.as_fd(), Path::new("/a/b/file"), false).unwrap();
        }
        assert!(folder.path().join("a/b/c").is_dir());
        assert!(folder.path().join("a/b/file").is_file());
    }

    #[test]
    fn links_in_a_target_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let root = root_of(&folder);
        std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).unwrap();
        for (target, is_folder) in [("/link/x", true), ("/link", false), ("/link", true)] {
            assert!(
                place_for(root.as_fd(), Path::new(target), is_folder).is_err(),
                "{target}"
            );
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_bind_replaces_a_private_folder() {
        let mut spec = SandboxSpec::new("a", vec!["x".into()], "/", "/l", "/e");
        assert_eq!(private_folders(&spec).len(), 3);
        spec.binds.push(Bind::writable("/data/tmp", "/tmp"));
        spec.tmpfs.push(PrivateTmpfs {
            target: "/run".into(),
            size_bytes: Some(1),
            mode: 0o1777,
        });
        let targets: Vec<_> = private_folders(&spec)
            .into_iter()
            .map(|tmpfs| tmpfs.target)
            .collect();
        assert_eq!(targets, [Path::new("/var/tmp"), Path::new("/run")]);
    }
}
