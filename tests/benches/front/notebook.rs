//! From `server create` to a cell that answered in a browser, as a user does it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cnlab_tests::{browser::Browser, lab};
use tokio::time::Instant;

use crate::{
    Extent,
    create::Site,
    figures::{median, millis, quantile},
    rows::{Row, say},
};

/// One way from the command to the answer, each time since the command was typed.
struct Way {
    ready: Duration,
    page: Duration,
    kernel: Duration,
    answer: Duration,
}

/// Goes it several times, each with a new server and a browser context that knows nothing.
pub(crate) async fn measure(site: &Site, extent: Extent) -> Result<Vec<Row>> {
    let browser = Browser::launch().await?;
    let count = extent.pick(9, 1);
    let mut ways = Vec::new();
    for number in 0..count {
        let name = format!("cell-{number}");
        ways.push(go(site, &browser, &name).await?);
        site.delete(&name).await?;
        say(&format!("answered {} of {count}", number + 1));
    }
    browser.close().await?;
    let seconds = |stretch: fn(&Way) -> Duration| -> Vec<f64> {
        ways.iter().map(|way| millis(stretch(way)) / 1e3).collect()
    };
    let p50 = |stretch| median(&seconds(stretch)).context("no way was gone");
    let each = format!("{count} new servers, one after another");
    let row = |name: &str, value| Row::new(format!("(b) {name}"), value, "s", &each);
    Ok(vec![
        row("command to Ready, p50", p50(|way| way.ready)?),
        row(
            "Ready to JupyterLab's launcher, p50",
            p50(|way| way.page - way.ready)?,
        ),
        row(
            "launcher to an idle kernel, p50",
            p50(|way| way.kernel - way.page)?,
        ),
        row(
            "kernel to the cell's answer, p50",
            p50(|way| way.answer - way.kernel)?,
        ),
        row(
            "warm create to a cell's answer, p50",
            p50(|way| way.answer)?,
        )
        .target("<= 5"),
        row(
            "warm create to a cell's answer, p90",
            quantile(&seconds(|way| way.answer), 0.9).context("no way was gone")?,
        ),
    ])
}

async fn go(site: &Site, browser: &Browser, name: &str) -> Result<Way> {
    let page = browser.page().await?;
    let began = Instant::now();
    site.create(name).await?;
    let ready = began.elapsed();
    let link = site.cli.ok(&["server", "open", name, "--print"]).await?;
    page.goto(link.trim()).await?;
    lab::wait_until_open(&page).await?;
    let open = began.elapsed();
    lab::new_notebook(&page).await?;
    let kernel = began.elapsed();
    lab::run_cell(&page, "1+1", "2").await?;
    Ok(Way {
        ready,
        page: open,
        kernel,
        answer: began.elapsed(),
    })
}
