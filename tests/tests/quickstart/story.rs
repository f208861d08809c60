//! One data folder from its first minute through restarts, crashes and the end.
//!
//! It is one test because each step begins where the one before ended, and because the
//! software environment is built once, as for a newcomer.

use std::time::Duration;

use cnlab_testkit::{free_port, wait_for, wait_until};
use cnlab_tests::{
    browser::{Browser, Page},
    cli::Cli,
    lab,
    stack::{Up, http_get, server_pids, signal},
};
use serde_json::Value;

use crate::screenshots;

/// The first start builds an environment from the Python index.
const FIRST: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(120);
const SERVER: &str = "first-experiment";

async fn link_in(up: &Up, times: usize) -> String {
    let seen = async || {
        let said = up.said();
        said.lines()
            .filter_map(|line| line.strip_prefix("✓ Open in your browser: "))
            .nth(times - 1)
            .map(str::to_owned)
    };
    let link = wait_for(FIRST, "the printed link", seen).await;
    link.unwrap_or_else(|error| panic!("{error}: {}", up.said()))
}

async fn show(cli: &Cli) -> Value {
    cli.json(&["server", "show", SERVER]).await.unwrap()
}

async fn wait_for_state(cli: &Cli, state: &str) -> Value {
    let wanted = format!("SERVER_STATE_{}", state.to_uppercase());
    let waited = wait_until(SOON, state, async || show(cli).await["state"] == *wanted).await;
    let server = show(cli).await;
    assert!(waited.is_ok(), "the server is not {state}: {server:#}");
    server
}

async fn open(browser: &Browser, cli: &Cli) -> Page {
    let link = cli
        .ok(&["server", "open", SERVER, "--print"])
        .await
        .unwrap();
    let page = browser.page().await.unwrap();
    page.goto(link.trim()).await.unwrap();
    lab::wait_until_open(&page).await.unwrap();
    page
}

async fn file_content(page: &Page, name: &str) -> Value {
    page.eval(&format!(
        "fetch('/api/contents/{name}?content=1').then(r => r.ok ? r.json() : null).then(f => f && f.content.trim())"
    ))
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomers_first_hour() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let port = free_port().unwrap();
    let cli = Cli::new().unwrap();
    let browser = Browser::launch().await.unwrap();

    // --- the main command, from nothing to the page
    let up = Up::start(&cli, &data, port, &["--demo"]).await.unwrap();
    let link = link_in(&up, 1).await;
    let said = up.said();
    assert!(
        said.contains("simulated"),
        "it says which GPUs these are: {said}"
    );
    let provisioning = said
        .lines()
        .find(|line| line.starts_with("✓ Provisioning... ETA "))
        .unwrap();
    let eta = provisioning.trim_start_matches("✓ Provisioning... ETA ");
    assert!(eta.ends_with('s') || eta.ends_with("min"), "{provisioning}");
    let ready = format!("✓ Ready: http://nb.localhost:{port}/srv_");
    assert!(said.contains(&ready), "{said}");

    // --- the link signs one browser in, once
    let page = browser.page().await.unwrap();
    page.goto(&link).await.unwrap();
    lab::wait_until_open(&page).await.unwrap();
    lab::new_notebook(&page).await.unwrap();
    lab::run_cell(&page, "1+1", "2").await.unwrap();
    lab::run_in_terminal(
        &page,
        "echo hello-$((40+2)) | tee echo.txt",
        "echo.txt",
        "hello-42",
    )
    .await
    .unwrap();
    page.screenshot(&screenshots().join("quickstart.png"))
        .await
        .unwrap();
    let origin = page.eval("location.host").await.unwrap();
    assert!(
        origin.as_str().unwrap().starts_with("srv-"),
        "a server has an origin of its own: {origin}"
    );
    assert_eq!(
        page.eval("document.cookie.includes('__Host-')")
            .await
            .unwrap(),
        false,
        "no script reads the cookie"
    );

    let stranger = browser.page().await.unwrap();
    stranger.goto(&link).await.unwrap();
    stranger
        .wait_for(
            "that a used link is refused",
            "document.body.innerText.includes('server open')",
            SOON,
        )
        .await
        .unwrap();
    assert!(
        stranger
            .eval("document.querySelector('.jp-LauncherCard') === null")
            .await
            .unwrap()
            .as_bool()
            .unwrap()
    );
    stranger
        .screenshot(&screenshots().join("sign-in.png"))
        .await
        .unwrap();

    // --- a second terminal
    cli.login(up.endpoint(), &up.admin_token()).await.unwrap();
    let profiles = cli.ok(&["profiles", "list"]).await.unwrap();
    let header: Vec<_> = profiles
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(header, ["NAME", "GPU", "SLICE", "AVAILABLE"]);
    for (name, gpu, slice) in [
        ("h100-25pct", "H100", "25%"),
        ("h100-full", "H100", "100%"),
        ("a100-50pct", "A100", "50%"),
        ("l40s-block", "L40S", "10%"),
    ] {
        let line = profiles
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(&words[1..3], [gpu, slice]);
        // The demo's server holds a quarter of the only H100.
        let available = words[3..].join(" ");
        if name == "h100-full" {
            assert!(
                available.starts_with("queue: ") && available.ends_with(" min"),
                "{line}"
            );
        } else {
            assert_eq!(available, "✓ now");
        }
    }
    let redirect = http_get(
        port,
        "nb.localhost",
        &format!("/{}", show(&cli).await["id"].as_str().unwrap()),
    )
    .await
    .unwrap();
    assert!(redirect.starts_with("HTTP/1.1 302"), "{redirect}");
    assert!(
        redirect
            .to_lowercase()
            .contains(&format!("location: http://{}", origin.as_str().unwrap())),
        "{redirect}"
    );
    let shown = cli.ok(&["server", "show", SERVER]).await.unwrap();
    assert!(
        shown.contains("simulated") && shown.contains("jupyterlab==") && shown.contains("torch"),
        "{shown}"
    );

    // --- stop frees the slice and keeps the files; start brings them back
    cli.ok(&["server", "stop", SERVER]).await.unwrap();
    assert_eq!(server_pids(&data), Vec::<i32>::new());
    let full = cli.ok(&["profiles", "list"]).await.unwrap();
    assert!(
        full.lines()
            .any(|line| line.starts_with("h100-full") && line.ends_with("✓ now")),
        "{full}"
    );
    cli.ok(&["server", "start", SERVER]).await.unwrap();
    let page = open(&browser, &cli).await;
    assert_eq!(file_content(&page, "echo.txt").await, "hello-42");

    // --- kill -9: the notebook runs on, the next start adopts it
    let before = server_pids(&data);
    assert_eq!(before.len(), 1, "{before:?}");
    up.kill().await.unwrap();
    assert_eq!(server_pids(&data), before, "the server outlives its stack");
    let up = Up::start(&cli, &data, port, &[]).await.unwrap();
    wait_for_state(&cli, "ready").await;
    assert_eq!(server_pids(&data), before, "adopted, not started anew");
    let page = open(&browser, &cli).await;
    assert_eq!(file_content(&page, "echo.txt").await, "hello-42");

    // --- a killed Jupyter is noticed, says why, and can be started again
    signal(before[0], "KILL").await.unwrap();
    let failed = wait_for_state(&cli, "failed").await;
    assert!(
        failed["failure"]["reason"].as_str().unwrap().len() > 3,
        "{failed:#}"
    );
    assert_eq!(server_pids(&data), Vec::<i32>::new());
    cli.ok(&["server", "start", SERVER]).await.unwrap();
    let page = open(&browser, &cli).await;
    assert_eq!(file_content(&page, "echo.txt").await, "hello-42");
    let logs = cli
        .ok(&["server", "logs", SERVER, "-n", "50"])
        .await
        .unwrap();
    assert!(!logs.is_empty());

    // --- Ctrl-C ends everything that it started; a second start finds the same server
    let id = show(&cli).await["id"].clone();
    up.interrupt().await.unwrap();
    assert_eq!(
        server_pids(&data),
        Vec::<i32>::new(),
        "nothing is left running"
    );
    assert!(
        http_get(port, "127.0.0.1", "/readyz").await.is_err(),
        "the port is free"
    );
    let up = Up::start(&cli, &data, port, &["--demo"]).await.unwrap();
    let link = link_in(&up, 2).await;
    assert_eq!(show(&cli).await["id"], id, "--demo finds its server again");
    let page = browser.page().await.unwrap();
    page.goto(&link).await.unwrap();
    lab::wait_until_open(&page).await.unwrap();
    assert_eq!(file_content(&page, "echo.txt").await, "hello-42");

    // --- delete takes the volume with it
    cli.ok(&["server", "delete", SERVER, "-y"]).await.unwrap();
    let volumes = std::fs::read_dir(data.join("volumes")).unwrap().count();
    assert_eq!(volumes, 0, "no file is left of a deleted server");
    up.interrupt().await.unwrap();
    browser.close().await.unwrap();
}
