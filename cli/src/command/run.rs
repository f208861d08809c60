//! `cnlab run …`: batch workloads.

pub mod cancel;
pub mod explain;
pub mod list;
pub mod logs;
pub mod remove;
pub mod show;
pub mod submit;
pub mod wait;

use std::time::Duration;

use clap::Subcommand;
use cnlab_proto::{convert, scheduler::v1 as pb};

use crate::{
    command::Setting,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    output::Document,
    session::{Answer, Effect, Session},
    text,
};

/// What can be done with runs.
#[derive(Debug, Clone, Subcommand)]
pub enum RunCommand {
    /// Queue a command that runs on a slice until it ends.
    Submit(submit::SubmitArgs),
    /// List your runs, newest first.
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a run.
    Show(show::ShowArgs),
    /// Tell why a run waits and what would start it sooner, or why it runs where it does.
    Explain(explain::ExplainArgs),
    /// Print what a run's command wrote.
    Logs(logs::LogsArgs),
    /// End a run: its slice is freed, its log stays.
    Cancel(cancel::CancelArgs),
    /// Delete a run together with its log and its files.
    #[command(visible_alias = "rm")]
    Delete(remove::DeleteArgs),
}

impl RunCommand {
    /// The name of the command's root span.
    #[must_use]
    pub const fn span_name(&self) -> &'static str {
        match self {
            Self::Submit(_) => "cnlab run submit",
            Self::List => "cnlab run list",
            Self::Show(_) => "cnlab run show",
            Self::Explain(_) => "cnlab run explain",
            Self::Logs(_) => "cnlab run logs",
            Self::Cancel(_) => "cnlab run cancel",
            Self::Delete(_) => "cnlab run delete",
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Whatever the command fails with.
pub async fn run(setting: Setting<'_>, console: &mut Console, command: RunCommand) -> Result<()> {
    if let RunCommand::Submit(args) = &command {
        // Before anything else: a wrong value needs no gateway to be found out.
        submit::check(args)?;
    }
    let session = setting.session(console)?;
    match command {
        RunCommand::Submit(args) => submit::run(&session, console, args).await,
        RunCommand::List => list::run(&session, console).await,
        RunCommand::Show(args) => show::run(&session, console, &args).await,
        RunCommand::Explain(args) => explain::run(&session, console, &args).await,
        RunCommand::Logs(args) => logs::run(&session, console, &args).await,
        RunCommand::Cancel(args) => cancel::run(&session, console, &args).await,
        RunCommand::Delete(args) => remove::run(&session, console, &args).await,
    }
}

/// The run that a text means.
///
/// # Errors
/// When the text means none, or the gateway does not answer.
pub async fn get(session: &Session, run: &str) -> Result<Answer<pb::Run>> {
    let run = names::run(run, session.project())?;
    let send = async |request| session.runs().get_run(request).await;
    session
        .call(Effect::Read, pb::GetRunRequest { run }, send)
        .await
}

/// Writes the run as the result of a command, except for people, who were told already.
fn result(console: &mut Console, run: &pb::Run) -> Result<()> {
    console.result(String::new, || vec![run.name.clone()], || document(run))
}

/// The run in machine-readable form.
fn document(run: &pb::Run) -> Result<Document> {
    Document::of("Run", "cnlab.scheduler.v1.Run", run)
}

/// The expected time until its command begins.
fn eta(run: &pb::Run) -> Option<Duration> {
    run.eta.as_ref().map(convert::decode_duration)
}

/// The state in a few words for a table.
fn state_text(run: &pb::Run) -> String {
    let word = state_word(run.state());
    match run.state() {
        pb::RunState::Queued => eta(run).map_or_else(
            || word.to_owned(),
            |eta| format!("{word} ({})", text::minutes(eta)),
        ),
        pb::RunState::Provisioning => match phase_word(run.phase()) {
            "" => word.to_owned(),
            phase => format!("{word} ({phase})"),
        },
        pb::RunState::Failed => match (ending(run), &run.failure) {
            (Some(ending), _) => format!("{word} ({ending})"),
            (None, Some(failure)) if !failure.reason.is_empty() => {
                format!("{word} ({})", failure.reason)
            }
            (None, Some(_) | None) => word.to_owned(),
        },
        pb::RunState::Unspecified
        | pb::RunState::Running
        | pb::RunState::Cancelling
        | pb::RunState::Succeeded
        | pb::RunState::Cancelled
        | pb::RunState::TimedOut
        | pb::RunState::Deleting
        | pb::RunState::Deleted => word.to_owned(),
    }
}

/// What the command returned, or which signal ended it.
fn ending(run: &pb::Run) -> Option<String> {
    match (run.exit_code, run.signal) {
        (Some(code), _) => Some(format!("exit code {code}")),
        (None, Some(signal)) => Some(format!("signal {signal}")),
        (None, None) => None,
    }
}

/// The state in one word.
const fn state_word(state: pb::RunState) -> &'static str {
    match state {
        pb::RunState::Unspecified => "unknown",
        pb::RunState::Queued => "queued",
        pb::RunState::Provisioning => "provisioning",
        pb::RunState::Running => "running",
        pb::RunState::Cancelling => "cancelling",
        pb::RunState::Succeeded => "succeeded",
        pb::RunState::Failed => "failed",
        pb::RunState::Cancelled => "cancelled",
        pb::RunState::TimedOut => "timed out",
        pb::RunState::Deleting => "deleting",
        pb::RunState::Deleted => "deleted",
    }
}

/// The phase in a few words; empty when none is said.
const fn phase_word(phase: pb::RunPhase) -> &'static str {
    match phase {
        pb::RunPhase::Unspecified => "",
        pb::RunPhase::WaitingForSlice => "waiting for a slice",
        pb::RunPhase::SendingToNode => "sending to the node",
        pb::RunPhase::BuildingEnvironment => "building the environment",
        pb::RunPhase::Starting => "starting",
    }
}

/// The command as it could be typed into a shell.
fn command_line(run: &pb::Run) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte))
    };
    let quoted = run.command.iter().map(|word| {
        if plain(word) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// What to say when somebody stops waiting: the work is the services', and goes on.
fn left_waiting(session: &Session, name: &str, what: &str) -> Failure {
    Failure::new(
        Exit::Interrupted,
        "INTERRUPTED",
        format!("stopped waiting; {what} {name} goes on"),
    )
    .caused_by("Ctrl-C")
    .try_this(advice(session.program().name(), name))
}

/// How to go on with a run that nobody waits for.
fn advice(program: &str, name: &str) -> String {
    format!(
        "`{program} run show --watch {name}` to watch it\n`{program} run cancel {name}` to end it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let run = |words: &[&str]| pb::Run {
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            ..pb::Run::default()
        };
        assert_eq!(
            command_line(&run(&["python", "a.py", "--n=3"])),
            "python a.py --n=3"
        );
        assert_eq!(
            command_line(&run(&["sh", "-c", "echo 'a' $b", ""])),
            r"sh -c 'echo '\''a'\'' $b' ''"
        );
    }
}
