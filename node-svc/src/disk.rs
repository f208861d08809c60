//! Files that are either absent or complete, also after a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// How much a write is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// On disk before the call returns.
    Synced,
    /// Complete or absent, but perhaps the older version after a power cut.
    Atomic,
}

/// Reads a JSON file; `None` when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is damaged: {error}", path.display()),
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a JSON file that only its owner may read.
pub(crate) fn write_json<T: Serialize>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(value).map_err(io::Error::other)?;
    write(path, &bytes, durability)
}

/// Writes a file that only its owner may read.
pub(crate) fn write(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let folder = path
        .parent()
        .ok_or_else(|| io::Error::other("a file needs a folder"))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = folder.join(name);
    // A rest of an interrupted write may have other permissions.
    remove_file(&new)?;
    let written = write_new(&new, bytes, durability).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        // On a full disk the rest must not stay; the first error is the one to tell.
        drop(remove_file(&new));
        return Err(error);
    }
    if durability == Durability::Synced {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn write_new(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    if durability == Durability::Synced {
        file.sync_all()?;
    }
    Ok(())
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a folder with everything in it, if it is there.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a folder, with its parents, that exactly has this mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Whether an error says that the disk, or a quota on it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("book.json");
        assert_eq!(read_json::<u32>(&path).unwrap(), None);
        fs::write(folder.path().join("book.json.new"), "rest").unwrap();
        for (value, durability) in [(1, Durability::Synced), (2, Durability::Atomic)] {
            write_json(&path, &value, durability).unwrap();
            assert_eq!(read_json::<u32>(&path).unwrap(), Some(value));
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("book.json");
        fs::write(&path, "{").unwrap();
        let error = read_json::<u32>(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("book.json is damaged"));
    }
}
