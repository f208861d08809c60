//! What goes wrong on a user's machine: each fault gives one error that says what to do,
//! loses nothing, and leaves no process, port or half-made record.
//!
//! Needs root (small disks are mounted), `python3` with `venv` and the Python index.

mod any_moment;
mod disk;
mod environment;
mod jupyter;
mod killed;
mod place;
mod signing_in;
mod starting;
mod values;
mod waiting;

use anyhow::{Result, ensure};
use cnlab_tests::cli::{Answer, Cli};

use crate::place::Place;

/// What an error must be.
#[derive(Debug, Clone, Copy)]
struct Refusal<'a> {
    code: i32,
    reason: &'a str,
    /// Parts of what is said after `error[…]:` and `cause:`.
    says: &'a [&'a str],
    /// Parts of the advice.
    advises: &'a [&'a str],
}

impl Refusal<'_> {
    /// One error in the form of every command, and nothing else that looks like one.
    fn check(&self, answer: &Answer) -> Result<()> {
        let errors: Vec<_> = answer
            .stderr
            .lines()
            .filter(|line| line.starts_with("error"))
            .collect();
        let head = format!("error[{}]: ", self.reason);
        ensure!(
            answer.code == self.code && errors.len() == 1 && errors[0].starts_with(&head),
            "expected {self:?}: {answer:?}"
        );
        let (said, advice) = answer
            .stderr
            .split_once("\n  try: ")
            .ok_or_else(|| anyhow::anyhow!("no advice: {answer:?}"))?;
        for part in self.says {
            ensure!(said.contains(part), "{part:?} is not said: {answer:?}");
        }
        for part in self.advises {
            ensure!(advice.contains(part), "{part:?} is no advice: {answer:?}");
        }
        let control = |c: char| c.is_control() && c != '\n';
        ensure!(
            answer.stderr.len() < 2_000
                && !answer.stderr.contains(control)
                && !answer.stderr.contains("panicked"),
            "not fit for a terminal: {answer:?}"
        );
        Ok(())
    }
}

/// The arguments of `server create` for the smallest image.
fn create<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "server",
        "create",
        "--name",
        name,
        "--image",
        "jupyter:minimal",
        "--profile",
        "l40s-block",
        "--storage",
        "10mb",
    ];
    all.extend(more);
    all
}

/// A server's id and volume.
async fn ids(cli: &Cli, name: &str) -> Result<(String, String)> {
    let server = cli.json(&["server", "show", name]).await?;
    let field = |name: &str| server[name].as_str().unwrap_or_default().to_owned();
    let ids = (field("id"), field("volumeId"));
    ensure!(
        !ids.0.is_empty() && !ids.1.is_empty(),
        "no ids in {server:#}"
    );
    Ok(ids)
}

/// Everything that happens to one server while an environment is built and used, one after
/// the other, since building it takes most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_running_stack() -> Result<()> {
    let mut place = Place::new()?;
    let story = async {
        place.start().await?;
        waiting::story(&place).await?;
        killed::while_provisioning(&mut place).await?;
        jupyter::killed_while_starting(&place).await?;
        killed::while_waiting_for_the_page(&mut place).await?;
        any_moment::story(&mut place).await?;
        killed::everything_can_be_deleted(&mut place).await
    };
    match Box::pin(story).await {
        Ok(()) => place.end().await,
        Err(error) => Err(error.context(place.said())),
    }
}
