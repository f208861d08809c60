//! A gateway that is restarted or killed loses no kernel, no page and no session.

use anyhow::{Result, ensure};
use cnlab_tests::{
    browser::{Browser, Page},
    lab,
    six::{PATIENCE, Six},
};

use crate::{create, link, notebook, on_six};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_gateway_loses_no_kernel() -> Result<()> {
    on_six(None, async |six| {
        let cli = six.admin().await?;
        let id = create(&cli, "steady", "h100-25pct").await?;
        let jupyter = six.jupyter(&id)?;
        let browser = Browser::launch().await?;
        let page = notebook(&browser, &link(&cli, "steady").await?, "one").await?;
        lab::run_cell(&page, "import os\nx = 41\nx + 1", "42").await?;
        let kernel = kernel_of(&page).await?;
        // Gone if the page were loaded anew.
        page.eval("window.cnlabSameDocument = true").await?;

        six.terminate("gateway").await?;
        ensure!(jupyter.is_alive());
        six.launch("gateway").await?;
        goes_on(six, &page, "x + 2", "43").await?;

        six.kill("gateway").await?;
        ensure!(jupyter.is_alive());
        six.launch("gateway").await?;
        goes_on(six, &page, "x + 3", "44").await?;

        ensure!(kernel_of(&page).await? == kernel, "another kernel answers");
        ensure!(six.jupyter(&id)? == jupyter, "another JupyterLab answers");
        browser.close().await
    })
    .await
}

/// The page comes back by itself, on the session that it had, and its kernel still knows `x`.
pub(crate) async fn goes_on(six: &Six, page: &Page, code: &str, output: &str) -> Result<()> {
    page.wait_for(
        "an answer on the old cookie",
        "fetch('/api/status').then(answer => answer.ok)",
        PATIENCE,
    )
    .await?;
    // The page says that it was cut off; a person reads that and goes on.
    page.wait_for(
        "the page without a dialog",
        "(() => { const b = document.querySelector('.jp-Dialog button.jp-mod-accept, .jp-Dialog button'); \
         if (b) b.click(); return !document.querySelector('.jp-Dialog'); })()",
        PATIENCE,
    )
    .await?;
    lab::run_cell(page, code, output).await?;
    let same = page.eval("window.cnlabSameDocument === true").await?;
    ensure!(same == true, "the page was loaded anew\n{}", six.said());
    Ok(())
}

/// The ids of all kernels of the page's server.
pub(crate) async fn kernel_of(page: &Page) -> Result<String> {
    let kernels = page
        .eval("fetch('/api/kernels').then(a => a.json()).then(all => all.map(k => k.id).join(' '))")
        .await?;
    let kernels = kernels.as_str().unwrap_or_default().to_owned();
    ensure!(!kernels.is_empty(), "no kernel runs");
    Ok(kernels)
}
