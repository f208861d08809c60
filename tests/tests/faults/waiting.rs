//! Whoever stops waiting is told so; what was asked for goes on.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use cnlab_tests::{cli::Answer, stack::signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{Refusal, create, place::Place};

/// `--wait-timeout` and Ctrl-C, while the first environment is being built.
pub(crate) async fn story(place: &Place) -> Result<()> {
    // Nobody builds an environment within a second.
    let late = place
        .cli
        .run(&create("first", &["--wait-timeout", "1s"]))
        .await?;
    Refusal {
        code: 124,
        reason: "WAIT_TIMEOUT",
        says: &["first is still", "it goes on"],
        advises: &["server show --watch first", "server delete first"],
    }
    .check(&late)?;
    goes_on(place).await?;

    let interrupted = interrupted(place, &["server", "start", "first"]).await?;
    Refusal {
        code: 130,
        reason: "INTERRUPTED",
        says: &["first goes on", "Ctrl-C"],
        advises: &["server show --watch first", "server delete first"],
    }
    .check(&interrupted)?;
    goes_on(place).await
}

async fn goes_on(place: &Place) -> Result<()> {
    let server = place.show("first").await?;
    ensure!(
        server["state"] == "SERVER_STATE_PROVISIONING" || server["state"] == "SERVER_STATE_READY",
        "{server:#}"
    );
    Ok(())
}

/// Presses Ctrl-C once the command says that it waits.
async fn interrupted(place: &Place, arguments: &[&str]) -> Result<Answer> {
    let mut child = place
        .cli
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.contains("Provisioning") {
            break;
        }
    }
    let pid = child.id().context("it ended before Ctrl-C")?;
    signal(i32::try_from(pid)?, "INT").await?;
    Ok(Answer::from(&child.wait_with_output().await?))
}
