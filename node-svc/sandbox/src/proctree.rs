//! Finds processes in `/proc`: who they are, whose children, and how to tell a reused pid.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use serde::{Deserialize, Serialize};

use crate::sys;

/// A process, told apart from a later one that was given the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Number in the host's pid namespace.
    pub pid: i32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let stat = Stat::read(pid)?;
        Ok(Self {
            pid,
            start_ticks: stat.start_ticks,
        })
    }

    /// A descriptor of the process, or `None` when it has ended or its number was reused.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        // The descriptor first: what `stat` says afterwards is true of the process behind it,
        // or of none.
        let pidfd = sys::pidfd_open(self.pid).ok()?;
        let stat = Stat::read(self.pid).ok()?;
        (stat.start_ticks == self.start_ticks && stat.is_alive()).then_some(pidfd)
    }
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: i32,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::other("unknown form of /proc/PID/stat"))
    }

    /// The name in parentheses may hold anything, also spaces and parentheses.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    fn is_alive(self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The id of this boot: start times of another one mean nothing.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Live processes below `ancestor` (not itself), in no order. Processes that appear while this
/// looks may be missed.
pub(crate) fn descendants(ancestor: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Ok(stat) = Stat::read(pid) {
            children
                .entry(stat.parent)
                .or_default()
                .push((pid, stat.is_alive()));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for (pid, alive) in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            if alive {
                found.push(pid);
            }
        }
    }
    found
}

/// Waits until the process behind `pidfd` has ended; `false` when `timeout` passed first.
pub(crate) fn wait_ended(pidfd: impl AsFd, timeout: Option<Duration>) -> bool {
    let deadline = timeout.map(|timeout| (monotonic(), timeout));
    loop {
        let left = deadline.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()));
        let wait = left.map_or(PollTimeout::NONE, |left| {
            // Rounded up, so that the last round does not spin.
            let millis = left.as_nanos().div_ceil(1_000_000);
            PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
        });
        let mut polled = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut polled, wait) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return false,
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "synchronous code below the runtime: the deadline of a poll, never a decision"
)]
fn monotonic() -> std::time::Instant {
    std::time::Instant::now()
}

/// Lets the scheduler run others for `duration`.
#[expect(
    clippy::disallowed_methods,
    reason = "processes of their own with one thread, and callers that are documented to block"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_a_hostile_name() {
        let text = "7 (a) R (b) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        let expected = Stat {
            state: 'S',
            parent: 3,
            start_ticks: 4242,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a) S"), None);
    }

    #[test]
    fn a_reused_number_is_another_process() {
        let me = ProcessId::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.open().is_some());
        let other = ProcessId {
            start_ticks: me.start_ticks + 1,
            ..me
        };
        assert!(other.open().is_none());
        assert!(!boot_id().unwrap().is_empty());
    }

    #[test]
    fn children_are_found_and_seen_ending() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(descendants(me).contains(&pid));
        let pidfd = ProcessId::of(pid).unwrap().open().unwrap();
        assert!(!wait_ended(&pidfd, Some(Duration::ZERO)));
        child.kill().unwrap();
        assert!(wait_ended(&pidfd, None));
        // A zombie has ended, although it still holds its number.
        assert!(!descendants(me).contains(&pid));
        child.wait().unwrap();
    }
}
