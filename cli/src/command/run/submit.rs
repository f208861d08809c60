//! `cnlab run submit`.

use std::time::Duration;

use clap::Args;
use cnlab_model::ByteSize;
use cnlab_proto::{
    convert::{encode_duration, encode_timestamp},
    scheduler::v1 as pb,
};
use cnlab_service::Runtime;

use super::{left_waiting, result, wait};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    names::{self, Deadline},
    session::{Effect, Session},
};

/// Who goes first of those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Priority {
    /// Behind everything else.
    Low,
    /// What servers have, too.
    #[default]
    Normal,
    /// Ahead of the normal.
    High,
    /// Ahead of everything else.
    Critical,
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Kind {
    /// It makes something better, such as a model.
    #[default]
    Training,
    /// It answers with something that was made before.
    Inference,
    /// It says how good something is.
    Evaluation,
}

/// What becomes of a run that cannot be expected to end by its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnLate {
    /// It is not accepted.
    #[default]
    Refuse,
    /// It is queued all the same.
    Accept,
}

/// What to run.
#[derive(Debug, Clone, Default, Args)]
pub struct SubmitArgs {
    /// Its name, unique in the project: a-z, 0-9 and dashes; one is made where none is given.
    #[arg(long)]
    pub name: Option<String>,
    /// The image, such as pytorch:2.4-cuda12.4; see `images list`.
    #[arg(long)]
    pub image: String,
    /// The profile, such as h100-25pct; see `profiles list`.
    #[arg(long)]
    pub profile: String,
    /// How many GPUs of one node, where the profile is an entire one.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub gpus: Option<u8>,
    /// Size of its storage, which is at /workspace inside, empty at first, and kept until the run
    /// is deleted.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1gb",
        allow_hyphen_values = true
    )]
    pub storage: String,
    /// Its place in the queue: class, then deadline, then age.
    #[arg(long, value_enum, default_value_t)]
    pub priority: Priority,
    /// What it is for.
    #[arg(long, value_enum, default_value_t)]
    pub kind: Kind,
    /// By when it is to have ended: a time from now, such as 90m, or 2030-05-01T18:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = names::deadline)]
    pub deadline: Option<Deadline>,
    /// What to do where the deadline cannot be expected to be met.
    #[arg(long, value_enum, default_value_t, requires = "deadline")]
    pub on_late: OnLate,
    /// End the command after this time, for example 90s, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = names::span)]
    pub max_runtime: Option<Duration>,
    /// Install the image's heavy packages (such as torch) even where no real GPU is.
    #[arg(long)]
    pub with_heavy_packages: bool,
    /// Wait until it has ended, and exit as its command did: with its exit code, with 128 and the
    /// number of the signal that ended it, or with 124 when its time was over.
    #[arg(short, long)]
    pub wait: bool,
    /// Wait at most so long, for example 90s, 10m or 2h; then exit with 124.
    #[arg(long, value_name = "TIME", value_parser = names::span, requires = "wait")]
    pub wait_timeout: Option<Duration>,
    /// Program and arguments, executed as they are: no shell takes part.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Longest name of an image or a profile, in bytes.
const MAX_REFERENCE: usize = 255;

/// Checks what can be checked without a gateway, and answers with the storage.
///
/// # Errors
/// When a value is wrong.
pub fn check(args: &SubmitArgs) -> Result<ByteSize> {
    if let Some(name) = &args.name {
        names::new_run(name)?;
    }
    for (field, value) in [("image", &args.image), ("profile", &args.profile)] {
        // Everything else is for the catalogue to say, with the near matches.
        if value.is_empty() || value.len() > MAX_REFERENCE {
            return Err(Failure::new(
                Exit::Usage,
                "INVALID_FIELD",
                format!("the {field} must have 1 to {MAX_REFERENCE} characters"),
            )
            .field(field));
        }
    }
    names::storage(&args.storage)
}

/// Submits the run, and waits for its end where that is wanted.
///
/// # Errors
/// When a value is wrong, the gateway refuses, or the command that was waited for failed.
pub async fn run(session: &Session, console: &mut Console, args: SubmitArgs) -> Result<()> {
    let storage = check(&args)?;
    let deadline = args.deadline.map(|deadline| match deadline {
        Deadline::In(span) => Runtime::system().clock.now().plus(span),
        Deadline::At(at) => at,
    });
    let request = pb::SubmitRunRequest {
        name: args.name.clone().unwrap_or_default(),
        image: args.image,
        profile: args.profile,
        command: args.command,
        storage_bytes: storage.0,
        project: session.project().unwrap_or_default().to_owned(),
        priority: priority(args.priority).into(),
        run_kind: kind(args.kind).into(),
        deadline: deadline.map(encode_timestamp),
        on_late: on_late(args.on_late).into(),
        max_runtime: args.max_runtime.map(encode_duration),
        install_heavy: args.with_heavy_packages,
        gpus: args.gpus.map(u32::from),
    };
    let send = async |request| session.runs().submit_run(request).await;
    let answer = session.call(Effect::Mutation, request, send).await?;
    let run = answer.message;
    console.milestone(&format!("✓ Submitted: {}", run.name))?;
    if !args.wait {
        result(console, &run)?;
        let (program, name) = (session.program(), &run.name);
        console.note(&format!("  watch it: {program} run show --watch {name}"))?;
        return console.note(&format!("  its log: {program} run logs -f {name}"));
    }
    let name = run.name.clone();
    let work = async {
        let run = wait::until(session, console, run, wait::Goal::Over, args.wait_timeout).await?;
        result(console, &run)?;
        wait::verdict(session, console, &run)
    };
    let end = interruptible(work, || left_waiting(session, &name, "the run")).await;
    end.map_err(|failure| failure.traced(answer.trace_id))
}

const fn priority(priority: Priority) -> pb::Priority {
    match priority {
        Priority::Low => pb::Priority::Low,
        Priority::Normal => pb::Priority::Normal,
        Priority::High => pb::Priority::High,
        Priority::Critical => pb::Priority::Critical,
    }
}

const fn kind(kind: Kind) -> pb::RunKind {
    match kind {
        Kind::Training => pb::RunKind::Training,
        Kind::Inference => pb::RunKind::Inference,
        Kind::Evaluation => pb::RunKind::Evaluation,
    }
}

const fn on_late(on_late: OnLate) -> pb::OnLate {
    match on_late {
        OnLate::Refuse => pb::OnLate::Refuse,
        OnLate::Accept => pb::OnLate::Accept,
    }
}
