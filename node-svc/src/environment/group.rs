//! Runs one step of a build as a process group that cannot outlive node-svc.
//!
//! The group's standard input is a pipe that only node-svc holds. A watcher inside the group
//! waits for its end, which comes when node-svc closes it or dies, and kills the whole group.
//! The umask is fixed, since other users read what a build makes.

use std::{ffi::OsString, io, path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};
use tokio_util::sync::CancellationToken;

const WATCHED: &str = "umask 022
exec 3<&0 </dev/null
(read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
exec \"$@\" 2>&1";

/// A line of output longer than this is cut.
const LINE: usize = 2_000;

/// Why a step did not succeed.
#[derive(Debug)]
pub(super) enum StepError {
    /// It could not be started.
    NotStarted(io::Error),
    /// It ended with this status text.
    Failed(String),
    /// node-svc is stopping.
    Stopped,
}

/// A command with its complete environment.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) argv: Vec<OsString>,
    pub(super) env: &'a [(OsString, OsString)],
    pub(super) folder: &'a Path,
}

impl Step<'_> {
    /// Runs it to its end, giving every line of its output to `on_line`.
    pub(super) async fn run(
        self,
        stop: &CancellationToken,
        mut on_line: impl FnMut(&str),
    ) -> Result<(), StepError> {
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(WATCHED)
            .arg("cnlab-build")
            .args(&self.argv)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(StepError::NotStarted)?;
        let lifeline = child.stdin.take();
        let mut stopped = false;
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            loop {
                let read = tokio::select! {
                    read = output.read_until(b'\n', &mut line) => read,
                    () = stop.cancelled() => { stopped = true; break }
                };
                match read {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {
                        line.truncate(LINE);
                        on_line(String::from_utf8_lossy(&line).trim_end());
                        line.clear();
                    }
                }
            }
        }
        if stopped {
            drop(lifeline);
            // Killed by the watcher; waiting only takes it off the process table.
            drop(child.wait().await);
            return Err(StepError::Stopped);
        }
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => {
                drop(lifeline);
                drop(child.wait().await);
                return Err(StepError::Stopped);
            }
        };
        // Ends the watcher, and whatever the step left in its group.
        drop(lifeline);
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(StepError::Failed(status.to_string())),
            Err(error) => Err(StepError::NotStarted(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(script: &str) -> Step<'static> {
        const PATH: &[(OsString, OsString)] = &[];
        Step {
            argv: ["/bin/sh", "-c", script].map(OsString::from).to_vec(),
            env: PATH,
            folder: Path::new("/"),
        }
    }

    #[tokio::test]
    async fn lines_of_both_outputs_and_the_status_are_seen() {
        let mut lines = Vec::new();
        let ended = step("echo one; echo two >&2; exit 3")
            .run(&CancellationToken::new(), |line| {
                lines.push(line.to_owned());
            })
            .await;
        assert_eq!(lines, ["one", "two"]);
        assert!(matches!(ended, Err(StepError::Failed(status)) if status.contains('3')));
    }

    #[tokio::test]
    async fn a_stop_ends_the_whole_group() {
        let stop = CancellationToken::new();
        let mut pids = Vec::new();
        let ended = step("/bin/sleep 1000 & echo $!; wait")
            .run(&stop, |line| {
                pids.push(line.trim().parse::<u32>().unwrap());
                stop.cancel();
            })
            .await;
        assert!(matches!(ended, Err(StepError::Stopped)));
        let sleeper = format!("/proc/{}/cmdline", pids[0]);
        cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "the sleeper to end", async || {
            std::fs::read(&sleeper).map_or(true, |line| line.is_empty())
        })
        .await
        .unwrap();
    }
}
