//! Keeps how a workload ended, in a file that is either absent or complete.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::deadline::Deadline;
use crate::error::SandboxError;

/// How a workload ended. It exists only after all of its processes are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The id of the specification.
    pub id: String,
    /// How the command ended.
    pub exit: Exit,
    /// The deadline that it was ended for, if for one.
    #[serde(default)]
    pub deadline: Option<Deadline>,
    /// Whether it ended because its memory limit was reached.
    pub oom_killed: bool,
    /// How many of its processes the memory limit ended in its lifetime.
    pub oom_kills: u64,
    /// The most memory it ever used, in bytes, where a cgroup counted.
    pub memory_peak_bytes: Option<u64>,
    /// When it was seen gone: milliseconds since 1970, UTC.
    pub finished_at_unix_ms: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Reads the status word of wait(2); `None` for a process that only stopped.
    pub(crate) fn from_wait_status(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) {
            Some(Self::Code(libc::WEXITSTATUS(status)))
        } else if libc::WIFSIGNALED(status) {
            Some(Self::Signal(libc::WTERMSIG(status)))
        } else {
            None
        }
    }

    /// Whether this is what a killed process looks like, directly or through a shell.
    pub(crate) fn is_kill(self) -> bool {
        matches!(self, Self::Signal(libc::SIGKILL) | Self::Code(137))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(out, "exit code {code}"),
            Self::Signal(number) => match Signal::try_from(number) {
                Ok(signal) => write!(out, "signal {number} ({signal})"),
                Err(_) => write!(out, "signal {number}"),
            },
        }
    }
}

/// Reads the record at `path`; `None` while there is none.
pub(crate) fn read(path: &Path) -> Result<Option<ExitRecord>, SandboxError> {
    let unreadable = |source| SandboxError::Record {
        path: path.to_path_buf(),
        source,
    };
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| unreadable(e.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// Writes the record so that a reader sees nothing or all of it, also after a power cut.
pub(crate) fn write(path: &Path, record: &ExitRecord) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let mut file = File::create(&partial)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Removes the record of an earlier start, so that it is not taken for this one's.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_absent_or_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("exit.json");
        assert_eq!(read(&path).unwrap(), None);
        let record = ExitRecord {
            id: "srv_1".into(),
            exit: Exit::Signal(9),
            deadline: Some(Deadline::Lease),
            oom_killed: true,
            oom_kills: 1,
            memory_peak_bytes: Some(5),
            finished_at_unix_ms: 7,
        };
        write(&path, &record).unwrap();
        assert_eq!(read(&path).unwrap(), Some(record));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&path, "{").unwrap();
        assert_eq!(
            read(&path).unwrap_err().reason(),
            "SANDBOX_RECORD_UNREADABLE"
        );
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }

    #[test]
    fn wait_statuses_are_told_apart() {
        assert_eq!(Exit::from_wait_status(3 << 8), Some(Exit::Code(3)));
        assert_eq!(Exit::from_wait_status(15), Some(Exit::Signal(15)));
        assert_eq!(Exit::from_wait_status(0x137f), None);
        assert_eq!(Exit::Signal(15).to_string(), "signal 15 (SIGTERM)");
        assert_eq!(Exit::Code(2).to_string(), "exit code 2");
        assert!(Exit::Code(137).is_kill() && !Exit::Code(1).is_kill());
    }
}
