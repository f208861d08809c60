//! The folder in which a stack keeps everything, and the lock that makes it one stack's.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use cnlab_service::{Runtime, Secret, StartError};
use nix::fcntl::{Flock, FlockArg};

/// Below this a stack could not even write its databases.
const LEAST_FREE: u64 = 64 << 20;

/// The data folder of a stack, locked while this value lives.
#[derive(Debug)]
pub(crate) struct DataFolder {
    root: PathBuf,
    _lock: Flock<File>,
}

impl DataFolder {
    /// Makes the folder where it is missing, and locks it.
    pub(crate) fn open(root: &Path) -> Result<Self, StartError> {
        let fail = |step: &str, path: &Path, error: io::Error| {
            StartError::new(format!("cannot {step} {}", path.display()))
                .caused_by(error)
                .try_this(
                    "choose a folder that you may write with --data-dir, on a disk with free space",
                )
        };
        create_folder(root, 0o755).map_err(|error| fail("make the data folder", root, error))?;
        // Absolute from here on: environments remember their own path.
        let root = root
            .canonicalize()
            .map_err(|error| fail("find the data folder", root, error))?;
        let lock = lock(&root)?;
        let free = free_bytes(&root).map_err(|error| fail("look at the disk of", &root, error))?;
        if free < LEAST_FREE {
            return Err(StartError::new(format!(
                "the disk that holds {} is full: {free} bytes are free",
                root.display()
            ))
            .try_this("free some space, or choose another folder with --data-dir"));
        }
        for folder in ["db", "credentials"] {
            let path = root.join(folder);
            create_folder(&path, 0o700).map_err(|error| fail("make", &path, error))?;
            close_to_others(&path)?;
        }
        Ok(Self { root, _lock: lock })
    }

    /// The folder itself, absolute.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The database file of a service.
    pub(crate) fn database(&self, service: &str) -> PathBuf {
        self.root.join("db").join(format!("{service}.sqlite"))
    }

    /// Refuses a folder in which the database of a service has become an empty file: SQLite
    /// would take it for a new one, and every record would be gone without a word.
    pub(crate) fn check_databases(&self, services: &[&str]) -> Result<(), StartError> {
        if !self.complete().exists() {
            // An empty file may be what a first start that was killed has left.
            return Ok(());
        }
        for service in services {
            let path = self.database(service);
            if fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
                return Err(StartError::new(format!(
                    "the database {} is an empty file",
                    path.display()
                ))
                .caused_by("it had content when this folder was last in use")
                .try_this(format!(
                    "restore {} from a backup, or remove it to begin with an empty database",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Notes that every service has made its database.
    pub(crate) fn set_complete(&self) -> Result<(), StartError> {
        let path = self.complete();
        if path.exists() {
            return Ok(());
        }
        write_private(&path, b"1\n").map_err(|error| {
            StartError::new(format!("cannot make {}", path.display()))
                .caused_by(error)
                .try_this("free some space, or choose another folder with --data-dir")
        })
    }

    /// The file whose presence says that a start has succeeded with this folder.
    fn complete(&self) -> PathBuf {
        self.root.join("db").join("complete")
    }

    /// Where billing-svc leaves the local administrator's token.
    pub(crate) fn admin_token(&self) -> PathBuf {
        self.root.join("credentials").join("admin.token")
    }

    /// The key that the services of this folder share, made once.
    pub(crate) fn internal_key(&self, runtime: &Runtime) -> Result<Secret, StartError> {
        let path = self.root.join("credentials").join("internal.key");
        let fail = |error: io::Error| {
            StartError::new(format!("cannot read or make {}", path.display())).caused_by(error)
        };
        match fs::read_to_string(&path) {
            Ok(key) if key.len() >= 32 => return Ok(Secret::new(key)),
            // Half written by a start that was killed: made anew.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail(error)),
        }
        let key: String = runtime
            .ids
            .secret()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        write_private(&path, key.as_bytes()).map_err(fail)?;
        Ok(Secret::new(key))
    }
}

/// Somebody else's folder could hold a key and a token that he knows; one of ours that is
/// open to others is closed.
fn close_to_others(path: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::MetadataExt as _;
    let fail =
        |error| StartError::new(format!("cannot look at {}", path.display())).caused_by(error);
    let found = fs::symlink_metadata(path).map_err(fail)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(
            StartError::new(format!("{} belongs to somebody else", path.display()))
                .try_this("choose a folder of your own with --data-dir"),
        );
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(fail)?;
    }
    Ok(())
}

fn create_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
}

/// Writes a file that only its owner reads, wholly or not at all.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

fn lock(root: &Path) -> Result<Flock<File>, StartError> {
    let path = root.join("lock");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| {
            StartError::new(format!("cannot open {}", path.display())).caused_by(error)
        })?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            let pid = std::process::id().to_string();
            lock.set_len(0)
                .and_then(|()| lock.rewind())
                .and_then(|()| lock.write_all(pid.as_bytes()))
                .map_err(|error| {
                    StartError::new(format!("cannot write {}", path.display()))
                        .caused_by(error)
                        .try_this("free some space, or choose another folder with --data-dir")
                })?;
            Ok(lock)
        }
        Err((mut file, _)) => {
            let mut pid = String::new();
            // Only to say who it is; the lock itself is what counts.
            let who = match file.read_to_string(&mut pid) {
                Ok(_) if !pid.is_empty() => format!(" (process {pid})"),
                _ => String::new(),
            };
            Err(StartError::new(format!(
                "{} is in use by another cnlab up{who}",
                root.display()
            ))
            .try_this("use the one that runs, end it, or choose another folder with --data-dir"))
        }
    }
}

fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_belongs_to_one_stack_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataFolder::open(folder.path()).unwrap();
        let error = DataFolder::open(folder.path()).unwrap_err();
        assert!(
            error.to_string().contains(&std::process::id().to_string()),
            "{error}"
        );
        assert!(error.advice().unwrap().contains("--data-dir"));
        drop(first);
        DataFolder::open(folder.path()).unwrap();
    }

    #[test]
    fn the_key_is_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        let runtime = Runtime::system();
        let key = data.internal_key(&runtime).unwrap();
        assert_eq!(data.internal_key(&runtime).unwrap(), key);
        let mode = fs::metadata(folder.path().join("credentials/internal.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_empty_database_is_new_only_until_a_start_has_succeeded() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFolder::open(folder.path()).unwrap();
        let file = data.database("some-svc");
        fs::write(&file, b"").unwrap();
        data.check_databases(&["some-svc"]).unwrap();
        data.set_complete().unwrap();
        let error = data.check_databases(&["some-svc"]).unwrap_err();
        assert!(
            error.to_string().contains(file.to_str().unwrap()),
            "{error}"
        );
        fs::remove_file(&file).unwrap();
        data.check_databases(&["some-svc"]).unwrap();
    }

    #[test]
    fn folders_with_secrets_are_closed_and_never_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = folder.path().join("credentials");
        fs::create_dir(&credentials).unwrap();
        fs::set_permissions(&credentials, fs::Permissions::from_mode(0o755)).unwrap();
        drop(DataFolder::open(folder.path()).unwrap());
        assert_eq!(
            fs::metadata(&credentials).unwrap().permissions().mode() & 0o777,
            0o700
        );
        let elsewhere = tempfile::tempdir().unwrap();
        fs::remove_dir(&credentials).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &credentials).unwrap();
        let error = DataFolder::open(folder.path()).unwrap_err();
        assert!(
            error.to_string().contains("belongs to somebody else"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_one_clear_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = DataFolder::open(&file.path().join("below")).unwrap_err();
        assert!(error.to_string().contains("below"), "{error}");
    }
}
