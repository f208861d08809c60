//! A notebook server that is killed before its page has answered.

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{marked, wait_for};

use crate::{
    Refusal,
    place::{PATIENCE, Place},
};

/// Whoever waits is told; the slice is free again, and a next start succeeds.
pub(crate) async fn killed_while_starting(place: &Place) -> Result<()> {
    let (id, volume) = crate::ids(&place.cli, "first").await?;
    place.cli.ok(&["server", "stop", "first"]).await?;
    let kill = async {
        let jupyter = wait_for(PATIENCE, "JupyterLab's process", async || {
            marked("CNLAB_SERVER_ID", &id)
                .ok()?
                .into_iter()
                .find(|process| process.command.contains("start_jupyterlab.py"))
        })
        .await?;
        jupyter.kill();
        anyhow::Ok(jupyter)
    };
    let command = ["server", "start", "first"];
    let (answer, killed) = tokio::join!(place.cli.run(&command), kill);
    let (answer, killed) = (answer?, killed?);
    Refusal {
        code: 1,
        reason: "NOTEBOOK_ENDED",
        says: &["ended by itself", "SIGKILL"],
        advises: &["log", "start it again"],
    }
    .check(&answer)?;
    ensure!(!killed.is_alive());
    let server = place.show("first").await?;
    ensure!(server["state"] == "SERVER_STATE_FAILED", "{server:#}");
    ensure!(
        marked("CNLAB_SERVER_ID", &id)?.is_empty(),
        "a process is left of {id}"
    );
    ensure!(place.volumes().contains(&volume), "the volume is gone");
    place.cli.ok(&["server", "start", "first"]).await?;
    let server = place.show("first").await?;
    server["runtime"].as_object().context("no runtime")?;
    Ok(())
}
