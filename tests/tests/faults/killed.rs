//! `kill -9` of the stack at named moments.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{create, place::Place};

/// While a server is sent to the node, and while an environment is being built.
pub(crate) async fn while_provisioning(place: &mut Place) -> Result<()> {
    place.cli.ok(&create("second", &["--no-wait"])).await?;
    let before = place.records().await?;
    // The one has just been accepted; what the other waits for is half-built.
    place.kill().await?;
    place.start().await?;
    ensure!(
        place.records().await? == before,
        "{:?}",
        place.records().await?
    );

    let caught = place
        .wait_for("first", "building", |server| {
            server["phase"] == "SERVER_PHASE_BUILDING_ENVIRONMENT"
                || server["state"] != "SERVER_STATE_PROVISIONING"
        })
        .await?;
    ensure!(
        is_provisioning(&caught),
        "the moment was missed: {caught:#}"
    );
    place.kill().await?;
    place.start().await?;
    ensure!(
        place.records().await? == before,
        "{:?}",
        place.records().await?
    );
    for name in ["first", "second"] {
        place.comes_back(name).await?;
    }
    let builds = fs::read_dir(place.data().join("envs/jupyter_minimal"))?
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .count();
    ensure!(builds == 1, "{builds} environments instead of one");
    place.cli.ok(&["server", "stop", "second"]).await.map(drop)
}

/// While JupyterLab starts: it is adopted, or ended and said so. Files stay.
pub(crate) async fn while_waiting_for_the_page(place: &mut Place) -> Result<()> {
    let before = place.records().await?;
    let (_, volume) = crate::ids(&place.cli, "second").await?;
    let file = place.data().join("volumes").join(volume).join("work.txt");
    fs::write(&file, "written before")?;
    place
        .cli
        .ok(&["server", "start", "second", "--no-wait"])
        .await?;
    let caught = place
        .wait_for("second", "starting", |server| {
            server["phase"] == "SERVER_PHASE_STARTING"
                || server["phase"] == "SERVER_PHASE_WAITING_FOR_PAGE"
                || server["state"] != "SERVER_STATE_PROVISIONING"
        })
        .await?;
    ensure!(
        is_provisioning(&caught),
        "the moment was missed: {caught:#}"
    );
    place.kill().await?;
    ensure!(fs::read_to_string(&file)? == "written before");
    place.start().await?;
    ensure!(
        place.records().await? == before,
        "{:?}",
        place.records().await?
    );
    place.comes_back("second").await?;
    ensure!(fs::read_to_string(&file)? == "written before");
    Ok(())
}

fn is_provisioning(server: &Value) -> bool {
    server["state"] == "SERVER_STATE_PROVISIONING"
}

/// After everything that happened, nothing is stuck.
pub(crate) async fn everything_can_be_deleted(place: &mut Place) -> Result<()> {
    for [name, _, _] in place.records().await? {
        place.cli.ok(&["server", "delete", &name, "-y"]).await?;
    }
    place.idle().await?;
    let records = place.records().await?;
    ensure!(records.is_empty(), "{records:?}");
    Ok(())
}
