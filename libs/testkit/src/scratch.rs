//! A temporary folder that goes away with its guard, and with the test process too.
//!
//! Statics are never dropped and a killed process drops nothing, so one small shell per test
//! process waits for the end of a pipe that only this process holds, and then removes what is
//! left of the folders.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use tempfile::TempDir;

/// Reads paths until end of file, then removes them; servers that are still ending may write
/// into a folder while it is being removed, hence the repetition.
const SWEEPER: &str = r#"
trap '' INT TERM HUP
while IFS= read -r dir; do set -- "$@" "$dir"; done
tries=0
while [ "$tries" -lt 100 ]; do
    left=0
    for dir in "$@"; do
        rm -rf -- "$dir" 2>/dev/null
        [ -e "$dir" ] && left=1
    done
    [ "$left" = 0 ] && exit 0
    tries=$((tries + 1))
    sleep 0.1
done
"#;

static SWEEPER_INPUT: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// A temporary folder, removed on drop or at the latest after the process has ended.
#[derive(Debug)]
pub struct ScratchDir(TempDir);

impl ScratchDir {
    /// Makes an empty folder whose name starts with `cnlab-` and `purpose`.
    ///
    /// # Errors
    /// When the folder or the process that watches over it cannot be made.
    pub fn new(purpose: &str) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("cnlab-{purpose}-"))
            .tempdir()
            .context("making a temporary folder")?;
        sweep_at_exit(dir.path())?;
        Ok(Self(dir))
    }

    /// Where the folder is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn sweep_at_exit(dir: &Path) -> anyhow::Result<()> {
    let mut input = SWEEPER_INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = match input.as_mut() {
        Some(pipe) => pipe,
        None => input.insert(start_sweeper()?),
    };
    writeln!(pipe, "{}", dir.display()).context("telling the sweeper about a folder")
}

fn start_sweeper() -> anyhow::Result<ChildStdin> {
    // A group of its own: an interrupt from the terminal ends the tests, not their sweeper.
    let mut child = Command::new("sh")
        .args(["-c", SWEEPER, "cnlab-testkit-sweeper"])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting sh to clean up after the tests")?;
    child.stdin.take().context("the sweeper has no input")
}
