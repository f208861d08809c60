//! The quickstart, command by command.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cnlab_tests::{browser::Browser, cli::Cli, lab, six::Six};

use crate::{IMAGE, notebook, on_six, servers, text};

const NAME: &str = "first-experiment";

#[tokio::test(flavor = "multi_thread")]
async fn the_quickstart_works_on_six_processes() -> Result<()> {
    on_six(None, async |six| {
        let cli = six.admin().await?;
        let browser = Browser::launch().await?;
        story(six, &cli, &browser).await?;
        browser.close().await
    })
    .await
}

async fn story(six: &Six, cli: &Cli, browser: &Browser) -> Result<()> {
    let profiles = cli.ok(&["profiles", "list"]).await?;
    for name in ["h100-25pct", "h100-full", "a100-50pct", "l40s-block"] {
        ensure!(profiles.contains(name), "{name} is missing:\n{profiles}");
    }

    let said = cli
        .ok(&[
            "server",
            "create",
            "--name",
            NAME,
            "--image",
            IMAGE,
            "--profile",
            "h100-25pct",
            "--storage",
            "1gb",
        ])
        .await?;
    let shown = cli.json(&["server", "show", NAME]).await?;
    let (id, url) = (text(&shown, "id")?, text(&shown, "url")?);
    ensure!(said.contains(&format!("✓ Ready: {url}")), "{said}");
    ensure!(
        url == format!("http://nb.localhost:{}/{id}", six.port("gateway")),
        "{url}"
    );
    ensure!(shown["runtime"]["simulatedGpu"] == true, "{shown}");

    let printed = cli.ok(&["server", "open", NAME, "--print"]).await?;
    let link = printed.trim_end();
    ensure!(
        link.starts_with("http://srv-") && !link.contains(char::is_whitespace),
        "the link and nothing else: {printed:?}"
    );
    let page = notebook(browser, link, "one").await?;
    lab::run_cell(&page, "1+1", "2").await?;
    lab::run_cell(&page, "open('kept.txt', 'w').write('still here')", "10").await?;

    let before = six.jupyter(&id)?;
    cli.ok(&["server", "stop", NAME]).await?;
    ensure!(!before.is_alive(), "stopped, and {before:?} still runs");
    ensure!(servers(cli).await?[0][2] == "SERVER_STATE_STOPPED");

    let said = cli.ok(&["server", "start", NAME]).await?;
    ensure!(said.contains("✓ Ready: "), "{said}");
    let link = crate::link(cli, NAME).await?;
    let page = notebook(browser, &link, "two").await?;
    lab::run_cell(&page, "print(open('kept.txt').read())", "still here").await?;

    let volumes = || fs::read_dir(six.data().join("volumes")).map(Iterator::count);
    ensure!(volumes().context("volumes")? == 1);
    let after = six.jupyter(&id)?;
    cli.ok(&["server", "delete", NAME, "--yes"]).await?;
    ensure!(servers(cli).await?.is_empty());
    ensure!(!after.is_alive(), "deleted, and {after:?} still runs");
    ensure!(
        volumes().context("volumes")? == 0,
        "the files of a deleted server are still there"
    );
    Ok(())
}
