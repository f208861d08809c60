//! Carries renewals of a lease from whoever looks after a workload to its supervisor.
//!
//! A named pipe: a caller that was killed and started again finds it by its path; a renewal is in
//! the supervisor's memory at once, whatever the disk does; and as both ends are open for
//! reading and writing, neither sees the other one go.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::deadline::Lease;

/// What the kernel writes in one piece.
const PIECE: usize = libc::PIPE_BUF;

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Sender(File);

impl Sender {
    /// Opens the pipe that a supervisor has made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        open(path).map(Self)
    }

    /// Sends a renewal; never blocks.
    ///
    /// # Errors
    /// `WouldBlock` when the supervisor has not read for thousands of renewals.
    pub(crate) fn send(&self, lease: &Lease) -> io::Result<()> {
        let mut line = serde_json::to_vec(lease)?;
        line.push(b'\n');
        if line.len() > PIECE {
            return Err(io::Error::other("a renewal is too long"));
        }
        (&self.0).write_all(&line)
    }
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Receiver {
    pipe: File,
    partial: Vec<u8>,
}

impl Receiver {
    /// Makes the pipe, in place of one that an earlier start left.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        crate::record::remove(path)?;
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(Self {
            pipe: open(path)?,
            partial: Vec::new(),
        })
    }

    /// Takes every renewal that has arrived; text that is none of ours is passed over.
    ///
    /// # Errors
    /// When the pipe cannot be read; then nothing will come any more.
    pub(crate) fn take(&mut self, mut each: impl FnMut(Lease)) -> io::Result<()> {
        let mut piece = [0; PIECE];
        loop {
            let read = match self.pipe.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for byte in &piece[..read] {
                if *byte != b'\n' {
                    // Whatever has no end is not ours, and must not fill the memory.
                    if self.partial.len() < PIECE {
                        self.partial.push(*byte);
                    }
                    continue;
                }
                if let Ok(lease) = serde_json::from_slice(&self.partial) {
                    each(lease);
                }
                self.partial.clear();
            }
        }
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Opens a named pipe, and nothing else that may have taken its place.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        Ok(file)
    } else {
        Err(io::Error::other("not a named pipe"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::boottime::Boottime;

    fn lease(seconds: u64) -> Lease {
        let renewed_at = Boottime::after_boot(Duration::from_secs(seconds));
        Lease {
            renewed_at,
            ask_at: renewed_at,
            kill_at: renewed_at,
            gone_by: renewed_at,
        }
    }

    fn taken(receiver: &mut Receiver) -> Vec<Lease> {
        let mut all = Vec::new();
        receiver.take(|lease| all.push(lease)).unwrap();
        all
    }

    #[test]
    fn renewals_arrive_in_order_from_whoever_opens_the_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renewals");
        // Something that an earlier start left.
        std::fs::write(&path, "old").unwrap();
        assert!(Sender::open(&path).is_err());
        let mut receiver = Receiver::make(&path).unwrap();
        assert!(taken(&mut receiver).is_empty());
        for first in [1, 3] {
            let sender = Sender::open(&path).unwrap();
            sender.send(&lease(first)).unwrap();
            sender.send(&lease(first + 1)).unwrap();
        }
        assert_eq!(taken(&mut receiver), [1, 2, 3, 4].map(lease));
        assert!(taken(&mut receiver).is_empty());
    }

    #[test]
    fn other_text_is_passed_over_and_a_full_pipe_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renewals");
        let mut receiver = Receiver::make(&path).unwrap();
        let sender = Sender::open(&path).unwrap();
        let long = "x".repeat(3 * PIECE);
        (&sender.0)
            .write_all(format!("{{}}\n{long}\nno\n").as_bytes())
            .unwrap();
        sender.send(&lease(7)).unwrap();
        assert_eq!(taken(&mut receiver), [lease(7)]);
        let full = (0..10_000).find_map(|_| sender.send(&lease(8)).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
        assert!(!taken(&mut receiver).is_empty());
        // What did not fit may have left a piece behind; the next one is whole again.
        sender.send(&lease(9)).unwrap();
        sender.send(&lease(10)).unwrap();
        assert_eq!(taken(&mut receiver).last(), Some(&lease(10)));
    }
}
