//! Files that only their owner may read, replaced in one step.
//!
//! **Invariants**: a reader sees the old content or the new one, never a part; the new file
//! has mode 0600 from its first moment; two writers do not lose each other's change, since
//! [`update`] holds a lock from reading to replacing.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use cnlab_model::id::Ulid;

/// Reads a file; `None` when it is not there.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes a file under a lock: `change` gets the present text and returns the new one, or
/// `None` to leave the file as it is. Its folder is made where it is missing.
///
/// # Errors
/// When the folder or the file cannot be written, or when `change` refuses.
pub fn update<E: From<io::Error>>(
    path: &Path,
    change: impl FnOnce(Option<String>) -> Result<Option<String>, E>,
) -> Result<(), E> {
    let folder = folder_of(path);
    make_folder(&folder)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let lock = open_private(&folder.join(name), false)?;
    lock.lock()?;
    if let Some(text) = change(read(path)?)? {
        replace(path, &text)?;
    }
    Ok(())
}

/// Replaces a file in one step. Its folder is made where it is missing.
///
/// # Errors
/// When the folder or the file cannot be written.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = folder_of(path);
    make_folder(&folder)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Unique, so that a leftover of a crash is never in the way.
    name.push(format!(".{}.new", fresh()?));
    let new = folder.join(name);
    let written = (|| {
        let mut file = open_private(&new, true)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    if written.is_err() {
        // Best effort: the error that matters is the first one.
        let _ = fs::remove_file(&new);
        return written;
    }
    // The rename itself is on disk only with its folder.
    if cfg!(unix) {
        File::open(&folder)?.sync_all()?;
    }
    Ok(())
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn fresh() -> io::Result<Ulid> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Ulid(u128::from_le_bytes(bytes)))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn open_private(path: &Path, fresh: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(fresh)
        .create(true)
        .truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Reads all of stdin up to a limit in bytes, so that a wrong pipe cannot fill the memory.
///
/// # Errors
/// When it cannot be read, is longer or is no UTF-8.
pub fn read_stdin(limit: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = io::stdin()
        .lock()
        .take(limit + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("more than {limit} bytes"),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_private_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/file.toml");
        replace(&path, "one").unwrap();
        replace(&path, "two").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
            assert_eq!(
                fs::metadata(path.parent().unwrap())
                    .unwrap()
                    .permissions()
                    .mode()
                    & 0o777,
                0o700
            );
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn updates_of_many_threads_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("count");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    update::<io::Error>(&path, |text| Ok(Some(text.unwrap_or_default() + "x")))
                        .unwrap();
                });
            }
        });
        assert_eq!(read(&path).unwrap().unwrap(), "xxxxxxxx");
    }

    #[test]
    fn a_refused_change_leaves_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, "kept").unwrap();
        assert!(update(&path, |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(read(&path).unwrap().as_deref(), Some("kept"));
    }
}
