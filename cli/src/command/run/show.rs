//! `cnlab run show`: everything that is known, said as it is.

use clap::Args;
use cnlab_model::ByteSize;
use cnlab_proto::{convert, scheduler::v1 as pb};

use super::{command_line, document, ending, get, list::priority_word, state_text, wait};
use crate::{
    command::{
        follow::interruptible,
        server::show::{grant_facts, profile_text, runtime_facts, to_the_second, with_note},
    },
    console::Console,
    error::{Exit, Failure, Result},
    output::table::Facts,
    session::Session,
    text,
};

/// What to show.
#[derive(Debug, Clone, Default, Args)]
pub struct ShowArgs {
    /// Name or id of the run.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// First wait until it has ended.
    #[arg(short, long)]
    pub watch: bool,
}

/// Shows the run.
///
/// # Errors
/// When there is none, or the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console, args: &ShowArgs) -> Result<()> {
    let mut run = get(session, &args.run).await?.message;
    if args.watch {
        let interrupted = || {
            Failure::new(Exit::Interrupted, "INTERRUPTED", "stopped watching").caused_by("Ctrl-C")
        };
        let work = wait::until(session, console, run, wait::Goal::Over, None);
        run = interruptible(work, interrupted).await?;
    }
    console.result(|| table(&run), || vec![run.name.clone()], || document(&run))
}

const fn kind_word(kind: pb::RunKind) -> &'static str {
    match kind {
        pb::RunKind::Unspecified => "unknown",
        pb::RunKind::Training => "training",
        pb::RunKind::Inference => "inference",
        pb::RunKind::Evaluation => "evaluation",
    }
}

/// The deadline, and whether it was met where that is known.
fn deadline_text(run: &pb::Run) -> String {
    let Some(deadline) = &run.deadline else {
        return String::new();
    };
    let at = to_the_second(deadline);
    let order = |at: &prost_types::Timestamp| (at.seconds, at.nanos);
    match &run.ended_at {
        Some(ended) if order(ended) > order(deadline) => format!("{at} (missed)"),
        Some(_) => format!("{at} (met)"),
        None => at,
    }
}

fn table(run: &pb::Run) -> String {
    let mut facts = Facts::default();
    facts.add("Name", run.name.as_str());
    facts.add("Id", run.id.as_str());
    facts.add("Project", run.project.as_str());
    facts.add("State", state_text(run));
    facts.add("Detail", run.phase_detail.as_str());
    if matches!(
        run.state(),
        pb::RunState::Queued | pb::RunState::Provisioning
    ) {
        let eta = super::eta(run);
        facts.add(
            "Expected",
            eta.map_or_else(String::new, |eta| format!("begins in {}", text::wait(eta))),
        );
    }
    facts.add("Exit", ending(run).unwrap_or_default());
    facts.add("Command", command_line(run));
    facts.add("Priority", priority_word(run.priority()));
    facts.add("Kind", kind_word(run.run_kind()));
    facts.add("Deadline", deadline_text(run));
    let longest = run.max_runtime.as_ref().map(convert::decode_duration);
    facts.add("Max runtime", longest.map_or_else(String::new, text::wait));
    facts.add("Image", with_note(&run.image, &run.image_reference));
    let size = ByteSize(run.storage_bytes);
    facts.add(
        "Storage",
        with_note(&format!("{size} = {} bytes", size.0), &run.volume_id),
    );
    facts.add("Profile", profile_text(&run.profile, run.gpus));
    if let Some(grant) = &run.grant {
        grant_facts(&mut facts, grant);
    }
    facts.add("Node", with_note(&run.node_name, &run.node_id));
    if run.attempt > 1 {
        let because = run.requeued_because.as_str();
        facts.add("Attempt", with_note(&run.attempt.to_string(), because));
    }
    for (label, at) in [
        ("Submitted", &run.created_at),
        ("Placed", &run.placed_at),
        ("Started", &run.started_at),
        ("Ended", &run.ended_at),
    ] {
        facts.add(label, at.as_ref().map_or_else(String::new, to_the_second));
    }
    if let Some(runtime) = &run.runtime {
        runtime_facts(&mut facts, runtime);
    }
    if let Some(failure) = &run.failure {
        facts.add(
            "Failure",
            format!("error[{}]: {}", failure.reason, failure.message),
        );
        facts.add_all("  cause", failure.cause.lines().map(str::to_owned));
        facts.add_all("  try", failure.try_this.lines().map(str::to_owned));
    }
    facts.render()
}
