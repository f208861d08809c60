//! A newcomer's first minutes: from a clone without any build to the link of the demo (V-10).

use std::{
    fs::File,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use cnlab_testkit::{ChildGuard, ScratchDir, Signal, free_port, tied_command};
use tokio::time::Instant;

use crate::{
    root,
    rows::{Row, say},
};

/// What `up --demo` says last.
const LINK: &str = "Open in your browser";
const LOOK: Duration = Duration::from_millis(100);
/// Something is wrong, and not just slow.
const GIVE_UP: Duration = Duration::from_secs(1_800);
/// For what it started to end.
const END: Duration = Duration::from_secs(60);

/// Clones the committed tree and types what the README says.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let folder = ScratchDir::new("clone")?;
    let (clone, data, log) = (
        folder.path().join("cnlab"),
        folder.path().join("data"),
        folder.path().join("up.log"),
    );
    let began = Instant::now();
    let cloned = Command::new("git")
        .args(["clone", "--quiet"])
        .arg(root())
        .arg(&clone)
        .status()?;
    ensure!(cloned.success(), "git clone ended with {cloned}");
    let out = File::create(&log)?;
    let mut command = tied_command("cargo", Signal::SIGINT);
    command
        .args(["run", "-p", "cnlab", "--", "up", "--demo", "--port"])
        .arg(free_port()?.to_string())
        .arg("--data-dir")
        .arg(&data)
        .current_dir(&clone)
        // A build of its own, as in a fresh clone, and a configuration of its own.
        .env_remove("CARGO_TARGET_DIR")
        .env("CNLAB_CONFIG", folder.path().join("config.toml"))
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out);
    let mut process = ChildGuard::spawn(command)?;
    let took = loop {
        let said = std::fs::read_to_string(&log)?;
        if said.contains(LINK) {
            break began.elapsed();
        }
        if let Some(status) = process.try_wait()? {
            bail!("it ended with {status}: {said}");
        }
        ensure!(began.elapsed() < GIVE_UP, "no link so far: {said}");
        tokio::time::sleep(LOOK).await;
    };
    say(&format!("the link was there after {} s", took.as_secs()));
    // Cargo has become the program it ran, or passes the signal on to its group.
    process.signal(Signal::SIGINT)?;
    process.wait_exit(END).await.context("after Ctrl-C")?;
    let row = Row::new(
        "(e) clone to the demo's link",
        took.as_secs_f64(),
        "s",
        "once; crates downloaded, nothing built, no environment",
    );
    Ok(vec![row.target("<= 300")])
}
