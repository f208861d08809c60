//! The product as six separate processes on a real Redis and a real PostgreSQL: what a
//! deployment promises when its parts are restarted, killed, or emptied.
//!
//! Needs root, `redis-server`, `postgresql`, `chromium` and `python3-venv`; one that is missing
//! is named by the test that fails.

mod crashes;
mod gateway_restart;
mod one_trace;
mod operator;
mod quickstart;
mod stores;
mod strangers;

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::wait_until;
use cnlab_tests::{
    browser::{Browser, Page},
    cli::Cli,
    lab,
    six::{PATIENCE, Six},
};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

/// The image of the quickstart; its environment is built once for all tests.
const IMAGE: &str = "pytorch:2.4-cuda12.4";

/// A browser, a notebook server and ten more processes are enough for a small machine at one
/// time.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// Runs a story on six processes: what it leaves is checked too, and what goes wrong is told
/// together with the logs.
async fn on_six(otlp: Option<&str>, story: impl AsyncFnOnce(&mut Six) -> Result<()>) -> Result<()> {
    let _turn = turn().await;
    let mut six = Six::start(otlp).await?;
    if let Err(error) = story(&mut six).await {
        return Err(error.context(six.said()));
    }
    six.stop().await
}

/// Creates a server and waits until it is ready; its id.
async fn create(cli: &Cli, name: &str, profile: &str) -> Result<String> {
    cli.ok(&[
        "server",
        "create",
        "--name",
        name,
        "--image",
        IMAGE,
        "--profile",
        profile,
        "--storage",
        "1gb",
    ])
    .await?;
    let server = show(cli, name).await?;
    ensure!(server["state"] == "SERVER_STATE_READY", "{server}");
    text(&server, "id")
}

/// What is known of a server.
async fn show(cli: &Cli, name: &str) -> Result<Value> {
    cli.json(&["server", "show", name]).await
}

/// Waits until a server is in this state.
async fn wait_for_state(cli: &Cli, name: &str, state: &str) -> Result<()> {
    let state = format!("SERVER_STATE_{state}");
    wait_until(PATIENCE, &format!("{name} to be {state}"), async || {
        show(cli, name)
            .await
            .is_ok_and(|server| server["state"] == state.as_str())
    })
    .await
}

/// Name, id and state of every server of this person, in order.
async fn servers(cli: &Cli) -> Result<Vec<[String; 3]>> {
    let list = cli.json(&["server", "list"]).await?;
    let mut servers = list["servers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|server| {
            Ok([
                text(server, "name")?,
                text(server, "id")?,
                text(server, "state")?,
            ])
        })
        .collect::<Result<Vec<_>>>()?;
    servers.sort();
    Ok(servers)
}

fn text(value: &Value, field: &str) -> Result<String> {
    value[field]
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("no {field} in {value}"))
}

/// A fresh single-use link.
async fn link(cli: &Cli, name: &str) -> Result<String> {
    Ok(cli
        .ok(&["server", "open", name, "--print"])
        .await?
        .trim()
        .to_owned())
}

/// Signs a new tab in with a link, in a layout of its own, with a notebook that is ready to
/// be typed into.
async fn notebook(browser: &Browser, link: &str, layout: &str) -> Result<Page> {
    let page = browser.page().await?;
    sign_in(&page, link).await?;
    let (origin, _) = link.split_once("/_cnlab/").context("a link of ours")?;
    // A layout that was never used shows the launcher, whatever was open before.
    page.goto(&format!("{origin}/lab/workspaces/{layout}"))
        .await?;
    lab::wait_until_open(&page).await?;
    lab::new_notebook(&page).await?;
    Ok(page)
}

/// Follows a link until the notebook server's own page is there.
async fn sign_in(page: &Page, link: &str) -> Result<()> {
    page.goto(link).await?;
    page.wait_for(
        "JupyterLab behind the link",
        "location.pathname.startsWith('/lab')",
        PATIENCE,
    )
    .await
}
