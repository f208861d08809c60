//! Ends a sandbox whose start was interrupted before its identity was kept: node-svc was killed
//! between the start and the record.
//!
//! The supervisor carries the life's name on its command line for exactly this.

use std::{fs, time::Duration};

use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::failure::Failure;

const STEP: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 750;

/// Ends the supervisor of this life, which ends everything below it, and waits for it. Blocks.
///
/// # Errors
/// When it is still there after 15 s.
pub(super) fn end(life: &str) -> Result<(), Failure> {
    let mut found = find(life);
    for pid in &found {
        tracing::warn!(life, pid, "ending a process whose start was interrupted");
        signal(*pid, Signal::SIGQUIT);
    }
    for _ in 0..ROUNDS {
        if found.is_empty() {
            return Ok(());
        }
        wait();
        found = find(life);
    }
    Err(Failure::new(
        "SANDBOX_NOT_GONE",
        "processes of an interrupted start do not end",
    )
    .caused_by(format!("process ids {found:?}")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "called on a thread for blocking work, once after a crash"
)]
fn wait() {
    std::thread::sleep(STEP);
}

fn signal(pid: i32, signal: Signal) {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => tracing::warn!(pid, %error, "a process could not be ended"),
    }
}

/// Supervisors of this life, by their command lines.
fn find(life: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is_supervisor(&line, life))
        })
        .collect()
}

fn is_supervisor(command_line: &[u8], life: &str) -> bool {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    words
        .windows(2)
        .any(|pair| pair == [node_sandbox::EXEC_VERB.as_bytes(), life.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_supervisor_of_this_life_matches() {
        let line = b"/usr/bin/cnlab\0__sandbox-exec\0srv_1-7\0";
        assert!(is_supervisor(line, "srv_1-7"));
        assert!(!is_supervisor(line, "srv_1-70"));
        assert!(!is_supervisor(line, "srv_1"));
        assert!(!is_supervisor(b"grep\0__sandbox-exec srv_1-7\0", "srv_1-7"));
        assert!(end("srv_no-such-life").is_ok());
    }
}
