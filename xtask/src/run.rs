//! Running other programs, visibly.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

/// Prints a line of our own, apart from what the programs print.
#[expect(clippy::print_stderr, reason = "this is a tool for a terminal")]
pub(crate) fn say(text: &str) {
    eprintln!("xtask: {text}");
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// A program in the root of the workspace.
pub(crate) fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(root());
    command
}

/// The cargo that runs this very tool.
#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells its tools by the environment which cargo it is"
)]
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    program(
        &std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
        arguments,
    )
}

/// Runs a program to its end; anything but success is an error.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    say(&shown);
    let status = command
        .status()
        .with_context(|| format!("{shown} does not start"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Whether a program answers.
pub(crate) fn answers(name: &str, arguments: &[&str]) -> bool {
    program(name, arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
