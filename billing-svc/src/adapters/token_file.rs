//! The file with the first account's token.
//!
//! **Invariant**: at every moment the file is absent or whole, and only its owner can read it.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use billing_core::token::{Kind, Token};
use cnlab_service::StartError;

/// The token in the file; when there is no file, `fresh`, after it was written there.
pub(crate) fn read_or_write(path: &Path, fresh: Token) -> Result<Token, StartError> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let token = Token::parse(Kind::User, text.trim_end()).map_err(|error| {
                failed("the token file {} holds no token", path, error)
                    .try_this("restore the file, or delete it to get a new token")
            })?;
            close_to_others(path)
                .map_err(|error| failed("cannot protect the token file {}", path, error))?;
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write(path, &fresh).map_err(|error| {
                failed("cannot write the token file {}", path, error)
                    .try_this("choose a folder that exists, may be written and has room")
            })?;
            Ok(fresh)
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(failed("the token file {} holds no token", path, error)
                .try_this("restore the file, or delete it to get a new token"))
        }
        Err(error) => Err(failed("cannot read the token file {}", path, error)),
    }
}

fn failed(
    what: &str,
    path: &Path,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StartError {
    StartError::new(what.replace("{}", &path.display().to_string())).caused_by(error)
}

fn close_to_others(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(path = %path.display(), "the token file was open to others");
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

fn write(path: &Path, token: &Token) -> io::Result<()> {
    let draft = draft_of(path);
    // A draft that an earlier start left may have other permissions.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(token.expose().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path
        .file_name()
        .map_or_else(OsString::new, ToOwned::to_owned);
    name.push(".draft");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(seed: u8) -> Token {
        Token::from_random(Kind::User, &[seed; 32])
    }

    #[test]
    fn it_is_written_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        fs::write(draft_of(&path), "half").unwrap();
        assert_eq!(read_or_write(&path, token(1)).unwrap(), token(1));
        assert_eq!(read_or_write(&path, token(2)).unwrap(), token(1));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "no draft is left: {names:?}");

        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        read_or_write(&path, token(2)).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn other_content_is_named_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        for content in [&b"hunter2"[..], b"\xff\xfe", b""] {
            fs::write(&path, content).unwrap();
            let error = read_or_write(&path, token(1)).unwrap_err();
            assert!(error.to_string().contains("admin.token"), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.advice().unwrap().contains("delete"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let absent = dir.path().join("absent/admin.token");
        let error = read_or_write(&absent, token(1)).unwrap_err();
        assert!(error.advice().unwrap().contains("folder"), "{error}");
    }
}
