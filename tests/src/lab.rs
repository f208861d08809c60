//! `JupyterLab` in a browser, used as a person uses it.

use std::time::Duration;

use anyhow::Result;

use crate::browser::Page;

/// The page brings megabytes of script; on a busy machine that takes its time.
const PATIENCE: Duration = Duration::from_secs(120);
const ATTEMPTS: u32 = 6;

/// Waits until the page is usable: the launcher of a first visit, or what was open before.
///
/// # Errors
/// When it is not.
pub async fn wait_until_open(page: &Page) -> Result<()> {
    page.wait_for(
        "JupyterLab",
        "document.querySelector('.jp-LauncherCard, .jp-NotebookPanel, .jp-Terminal')",
        PATIENCE,
    )
    .await
}

/// Opens a new notebook from the launcher and waits for its kernel. The status bar tells:
/// the notebook's own indicator shows "idle" even before it has a kernel.
///
/// # Errors
/// When the kernel does not become idle.
pub async fn new_notebook(page: &Page) -> Result<()> {
    page.click(".jp-LauncherCard[data-category=\"Notebook\"]")
        .await?;
    page.wait_for(
        "a notebook with an idle kernel",
        "document.querySelector('.jp-NotebookPanel') \
         && document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')",
        PATIENCE,
    )
    .await
}

/// Types code into the notebook's last cell, runs it with Shift-Enter, and waits until an
/// output of the notebook is this text.
///
/// # Errors
/// When it is not seen.
pub async fn run_cell(page: &Page, code: &str, output: &str) -> Result<()> {
    let cell = ".jp-Notebook .jp-Cell:last-child .cm-content";
    let typed = format!(
        "document.querySelector('{cell}')?.innerText.trim() === {}",
        serde_json::to_string(code)?
    );
    // A click that lands while the page still moves its parts goes elsewhere: click again.
    for _ in 0..ATTEMPTS {
        page.click(cell).await?;
        let focused = format!("document.activeElement === document.querySelector('{cell}')");
        if page
            .wait_for("the cell's focus", &focused, Duration::from_secs(5))
            .await
            .is_ok()
        {
            page.type_text(code).await?;
            break;
        }
    }
    page.wait_for("the code in the cell", &typed, PATIENCE)
        .await?;
    page.press_enter(true).await?;
    let output = serde_json::to_string(output)?;
    page.wait_for(
        &format!("output {output} of {code}"),
        &format!("[...document.querySelectorAll('.jp-OutputArea-output')].some(e => e.innerText.trim() === {output})"),
        PATIENCE,
    )
    .await
}

/// Opens a terminal in a tab of its own and types a command that writes to `echo.txt`, until
/// that file holds this text. The screen itself is a canvas, which only a picture shows.
///
/// # Errors
/// When it does not.
pub async fn run_in_terminal(page: &Page, command: &str, file: &str, holds: &str) -> Result<()> {
    // The launcher is a tab like any other: open a new one beside the notebook.
    page.click("[data-command=\"launcher:create\"]").await?;
    let card = ".jp-LauncherCard[title=\"Start a new terminal session\"]";
    page.wait_for(
        "the terminal's card",
        &format!("document.querySelector('{card}')"),
        PATIENCE,
    )
    .await?;
    page.click(card).await?;
    let input = ".jp-Terminal .xterm-helper-textarea";
    page.wait_for(
        "a terminal",
        &format!("document.querySelector('{input}')"),
        PATIENCE,
    )
    .await?;
    let holds = serde_json::to_string(holds)?;
    let written = format!(
        "fetch('/api/contents/{file}?content=1').then(r => r.ok ? r.json() : null)\
         .then(f => f !== null && f.content.trim() === {holds})"
    );
    // What is typed before the terminal's WebSocket is open is lost: type again.
    for _ in 0..ATTEMPTS {
        page.click(".jp-Terminal .xterm-screen").await?;
        page.type_keys(command).await?;
        page.press_enter(false).await?;
        if page
            .wait_for("the command's file", &written, Duration::from_secs(5))
            .await
            .is_ok()
        {
            return Ok(());
        }
    }
    page.wait_for("the command's file", &written, PATIENCE)
        .await
}
