//! An environment that cannot be built: no index, no way to make one.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{ScratchDir, find_program, free_port};
use cnlab_tests::cli::Cli;

use crate::{Refusal, create, place::Place};

/// A folder for `PATH` with a `python3` as Debian has it without `python3-venv`, and nothing
/// else.
pub(crate) fn bare_python(folder: &Path) -> Result<String> {
    let python = find_program("python3", "python3")?;
    let path = std::env::var_os("PATH").context("no PATH")?;
    let (bin, hidden) = (folder.join("bin"), folder.join("hidden"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&hidden)?;
    for module in ["ensurepip", "pip", "virtualenv"] {
        let text = format!("raise ImportError('No module named {module}')\n");
        fs::write(hidden.join(format!("{module}.py")), text)?;
    }
    let program = bin.join("python3");
    // The machine's own python3 may be a script that needs the whole path.
    let script = format!(
        "#!/bin/sh\nPATH='{}' PYTHONPATH={} exec {} \"$@\"\n",
        path.display(),
        hidden.display(),
        python.display()
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    bin.to_str()
        .map(str::to_owned)
        .context("a folder with an odd name")
}

/// The record stays and says what failed; nothing else does, and it goes at once.
async fn failed_and_removable(place: &mut Place, expected: Refusal<'_>) -> Result<()> {
    let answer = place.cli.run(&create("fresh", &[])).await?;
    expected.check(&answer)?;
    let server = place.show("fresh").await?;
    ensure!(
        server["state"] == "SERVER_STATE_FAILED" && server["failure"]["reason"] == expected.reason,
        "{server:#}"
    );
    place.idle().await?;
    let environments: Vec<_> = fs::read_dir(place.data().join("envs"))?
        .flatten()
        .filter_map(|image| fs::read_dir(image.path()).ok())
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .collect();
    ensure!(environments.is_empty(), "half-made: {environments:?}");

    // It is the same after a restart, and again when it is tried again.
    place.stop().await?;
    place.start().await?;
    let again = place.cli.run(&["server", "start", "fresh"]).await?;
    expected.check(&again)?;
    place.cli.ok(&["server", "delete", "fresh", "-y"]).await?;
    place.idle().await?;
    let records = place.records().await?;
    ensure!(records.is_empty(), "{records:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_index_that_does_not_answer() -> Result<()> {
    let scratch = ScratchDir::new("faults")?;
    let data = scratch.path().join("data");
    let index = format!("http://127.0.0.1:{}/simple", free_port()?);
    let cli = Cli::new()?
        .with_env("PIP_INDEX_URL", &index)
        .with_env("PIP_FIND_LINKS", "")
        .with_env("PIP_EXTRA_INDEX_URL", "")
        .with_env("PIP_CONFIG_FILE", "/dev/null")
        // pip asks five times, with longer and longer breaks.
        .with_env("PIP_RETRIES", "1");
    let mut place = Place::at(scratch, data, cli)?;
    place.start().await?;
    let expected = Refusal {
        code: 1,
        reason: "PYTHON_INDEX_UNREACHABLE",
        says: &["index does not answer"],
        advises: &["network", "PIP_INDEX_URL"],
    };
    failed_and_removable(&mut place, expected).await?;
    place.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_without_venv() -> Result<()> {
    let scratch = ScratchDir::new("faults")?;
    let data = scratch.path().join("data");
    let cli = Cli::new()?.with_env("PATH", &bare_python(scratch.path())?);
    let mut place = Place::at(scratch, data, cli)?;
    place.start().await?;
    let expected = Refusal {
        code: 1,
        reason: "PYTHON_WITHOUT_VENV",
        says: &["python3", "cannot make virtual environments", "ensurepip"],
        advises: &["apt-get install python3-venv"],
    };
    failed_and_removable(&mut place, expected).await?;
    place.end().await
}
