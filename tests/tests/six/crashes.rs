//! `kill -9` of node-svc and scheduler-svc while a server runs.

use anyhow::{Result, ensure};
use cnlab_tests::{browser::Browser, cli::Cli, lab, six::Six};

use crate::{
    create,
    gateway_restart::{goes_on, kernel_of},
    link, notebook, on_six, servers, wait_for_state,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_or_scheduler_stops_nothing() -> Result<()> {
    on_six(None, async |six| {
        let cli = six.admin().await?;
        let id = create(&cli, "lasting", "h100-25pct").await?;
        let jupyter = six.jupyter(&id)?;
        let browser = Browser::launch().await?;
        let page = notebook(&browser, &link(&cli, "lasting").await?, "one").await?;
        lab::run_cell(&page, "x = 41\nx + 1", "42").await?;
        page.eval("window.cnlabSameDocument = true").await?;
        let known = (servers(&cli).await?, kernel_of(&page).await?);

        six.kill("node-svc").await?;
        ensure!(jupyter.is_alive(), "JupyterLab went with its node-svc");
        six.launch("node-svc").await?;
        goes_on(six, &page, "x + 2", "43").await?;
        wait_for_state(&cli, "lasting", "READY").await?;
        ensure!(
            six.jupyter(&id)? == jupyter,
            "started anew instead of adopted"
        );

        six.kill("scheduler-svc").await?;
        ensure!(jupyter.is_alive());
        six.launch("scheduler-svc").await?;
        ensure!(
            servers(&cli).await? == known.0,
            "{:?}",
            servers(&cli).await?
        );
        goes_on(six, &page, "x + 3", "44").await?;
        // And somebody new gets in.
        let other = notebook(&browser, &link(&cli, "lasting").await?, "two").await?;
        lab::run_cell(&other, "2+3", "5").await?;

        ensure!(
            kernel_of(&page).await?.contains(&known.1),
            "the first kernel is gone"
        );
        ensure!(six.jupyter(&id)? == jupyter);
        browser.close().await?;
        // What was adopted can also be ended.
        cli.ok(&["server", "stop", "lasting"]).await?;
        ensure!(!jupyter.is_alive());
        orderly(six, &cli, &id).await
    })
    .await
}

/// A node that is asked to end takes its servers with it and says so; they can be started
/// again as soon as it is back.
async fn orderly(six: &mut Six, cli: &Cli, id: &str) -> Result<()> {
    cli.ok(&["server", "start", "lasting"]).await?;
    let jupyter = six.jupyter(id)?;
    six.terminate("node-svc").await?;
    ensure!(
        !jupyter.is_alive(),
        "node-svc ended and {jupyter:?} runs on"
    );
    wait_for_state(cli, "lasting", "STOPPED").await?;
    six.launch("node-svc").await?;
    cli.ok(&["server", "start", "lasting"]).await?;
    ensure!(six.jupyter(id)?.is_alive());
    Ok(())
}
