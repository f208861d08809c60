//! Wraps the system calls that have no safe interface elsewhere, one function each.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;

pub(crate) const ATTR_RDONLY: u64 = 0x1;
pub(crate) const ATTR_NOSUID: u64 = 0x2;
pub(crate) const ATTR_NODEV: u64 = 0x4;
pub(crate) const ATTR_NOEXEC: u64 = 0x8;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_FROM_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_TO_EMPTY_PATH: libc::c_uint = 0x40;
const RECURSIVE: libc::c_uint = libc::AT_RECURSIVE as libc::c_uint;
const EMPTY: &CStr = c"";

/// The layout of `struct mount_attr` of the kernel, first version.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    Ok(Errno::result(result)?)
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let raw = RawFd::try_from(checked(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A descriptor of the process `pid`; it becomes readable when the process ends.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Sends a signal to exactly the process behind `pidfd`.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and makes the kernel fill it in.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            no_info,
            0,
        )
    };
    checked(sent).map(drop)
}

/// Closes every descriptor from `first` on. Must run before this process owns one of them.
pub(crate) fn close_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: called first in the re-executed program: nothing holds a descriptor above the
    // standard three yet, those that exist were leaked to it.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// A detached copy of the mount at `path` (links followed), optionally with what is below it.
pub(crate) fn clone_mount(at: BorrowedFd<'_>, path: &Path, deep: bool) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | if deep { RECURSIVE } else { 0 };
    // SAFETY: `path` is a terminated string that outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, at.as_raw_fd(), path.as_ptr(), flags) })
}

/// Sets attributes on a detached mount and everything mounted below it.
pub(crate) fn restrict_mount(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    let attr = MountAttr {
        set: attributes,
        clear: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = RECURSIVE | libc::AT_EMPTY_PATH as libc::c_uint;
    let (fd, path, size) = (mount.as_raw_fd(), EMPTY.as_ptr(), size_of::<MountAttr>());
    // SAFETY: `attr` is laid out as the kernel expects and lives until the call returns.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            path,
            flags,
            &raw const attr,
            size,
        )
    };
    checked(set).map(drop)
}

/// Attaches a detached mount on top of the file or folder behind `target`.
pub(crate) fn attach_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MOVE_FROM_EMPTY_PATH | MOVE_TO_EMPTY_PATH;
    let (from, to, empty) = (mount.as_raw_fd(), target.as_raw_fd(), EMPTY.as_ptr());
    // SAFETY: both paths are the empty, terminated string.
    checked(unsafe { libc::syscall(libc::SYS_move_mount, from, empty, to, empty, flags) }).map(drop)
}

/// Removes one capability from the bounding set; `EINVAL` means that the kernel has no such one.
pub(crate) fn drop_bounding_capability(capability: libc::c_ulong) -> io::Result<()> {
    // SAFETY: takes integers.
    let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    checked(dropped.into()).map(drop)
}

/// Empties the ambient set.
pub(crate) fn clear_ambient_capabilities() -> io::Result<()> {
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    // SAFETY: takes integers.
    checked(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, clear, 0, 0, 0) }.into()).map(drop)
}

/// Empties the effective, permitted and inheritable sets of this process.
pub(crate) fn clear_capabilities() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let sets = [0_u32; 6];
    // SAFETY: the header names version 3, whose data are two structures of three words.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    checked(set).map(drop)
}

/// Leaves the caller's session keyring for a new, empty one.
pub(crate) fn join_new_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: a null name asks for an anonymous keyring.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) }).map(drop)
}

/// Gives every signal its default action; what was ignored stays ignored across exec. Not
/// through the C library, which keeps two signals to itself.
pub(crate) fn reset_signal_actions() {
    // An all-zero action of the kernel's own layout: default, no flags, empty mask.
    let default = [0_u64; 4];
    let (old, mask_bytes) = (std::ptr::null_mut::<u64>(), 8);
    for signal in 1..=64 {
        // SAFETY: the default action is no handler, so nothing of ours can run in signal
        // context; the two signals that cannot be changed are refused, which is what they need.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                old,
                mask_bytes,
            )
        };
    }
}

/// Ends this process without running anything of the process it was forked from.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Forks this process, which must have one thread; `None` in the child.
pub(crate) fn fork_single_threaded() -> io::Result<Option<nix::unistd::Pid>> {
    // SAFETY: only the re-executed program forks, before it could have started a thread, so no
    // lock can be held by a thread that the child lacks.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
        nix::unistd::ForkResult::Child => Ok(None),
    }
}

/// Reaps one ended child and returns its pid and wait status; `None` when none has ended.
///
/// # Errors
/// `ECHILD` when there is no child at all.
pub(crate) fn reap_one() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let pid = Errno::result(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) })?;
    Ok((pid != 0).then_some((pid, status)))
}

/// The descriptor of the current folder for calls that take one.
pub(crate) fn here() -> BorrowedFd<'static> {
    nix::fcntl::AT_FDCWD
}

/// A path that reaches what `fd` is open on, for calls that take only paths.
pub(crate) fn fd_path(fd: impl AsFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}
