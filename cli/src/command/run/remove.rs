//! `cnlab run delete`: asks on a terminal, since log and files go too.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{get, left_waiting, result, wait};
use crate::{
    command::{follow::interruptible, server::WaitArgs},
    console::Console,
    error::{Exit, Failure, Result},
    names,
    session::{Effect, Session},
    text,
};

/// What to delete.
#[derive(Debug, Clone, Default, Args)]
pub struct DeleteArgs {
    /// Name or id of the run.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Deletes the run, its log and its volume.
///
/// # Errors
/// When the answer is no, the gateway refuses, or the run does not go away.
pub async fn run(session: &Session, console: &mut Console, args: &DeleteArgs) -> Result<()> {
    let mut target = names::run(&args.run, session.project())?;
    if !args.yes && console.interactive() {
        let run = get(session, &args.run).await?.message;
        let question = format!("delete run {}, its log and its files?", run.name);
        if !console.confirm(&question)? {
            return Err(Failure::new(
                Exit::Error,
                "CANCELLED",
                format!("run {} was not deleted", run.name),
            ));
        }
        // Exactly the one that was asked about.
        target = run.id;
    }
    let work = async {
        let send = async |request| session.runs().delete_run(request).await;
        let request = pb::DeleteRunRequest { run: target };
        let answer = session.call(Effect::Mutation, request, send).await?;
        let mut run = answer.message;
        if args.wait.no_wait {
            result(console, &run)?;
            return console.milestone(&format!("✓ Deleting: {}", text::one_line(&run.name)));
        }
        let timeout = args.wait.wait_timeout;
        run = wait::until(session, console, run, wait::Goal::Deleted, timeout)
            .await
            .map_err(|failure| failure.traced(answer.trace_id))?;
        result(console, &run)?;
        console.milestone(&format!("✓ Deleted: {}", text::one_line(&run.name)))
    };
    interruptible(work, || {
        left_waiting(session, &args.run, "the deletion of run")
    })
    .await
}
