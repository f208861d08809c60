//! Running other programs, visibly.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

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

/// Runs a program to its end, shows what it prints, and gives each line to `take` as it comes.
pub(crate) fn lines(mut command: Command, mut take: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    say(&shown);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{shown} does not start"))?;
    let mut taken = Ok(());
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.with_context(|| format!("what {shown} prints"))?;
            show(&line);
            // A line that makes no sense does not leave the program without a reader.
            taken = taken.and_then(|()| take(&line));
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    taken
}

#[expect(clippy::print_stdout, reason = "it is what the program printed")]
fn show(line: &str) {
    println!("{line}");
}

/// What a program prints, trimmed; nothing when it fails.
pub(crate) fn answer(mut command: Command) -> Option<String> {
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a program answers.
pub(crate) fn answers(name: &str, arguments: &[&str]) -> bool {
    program(name, arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}
