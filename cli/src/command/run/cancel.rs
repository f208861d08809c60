//! `cnlab run cancel`.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{left_waiting, result, state_word, wait};
use crate::{
    command::{follow::interruptible, server::WaitArgs},
    console::Console,
    error::Result,
    names,
    session::{Effect, Session},
};

/// What to cancel.
#[derive(Debug, Clone, Default, Args)]
pub struct CancelArgs {
    /// Name or id of the run.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Cancels the run, and waits until its processes are gone where that is wanted.
///
/// # Errors
/// When the gateway refuses or the run does not end.
pub async fn run(session: &Session, console: &mut Console, args: &CancelArgs) -> Result<()> {
    let request = pb::CancelRunRequest {
        run: names::run(&args.run, session.project())?,
    };
    let work = async {
        let send = async |request| session.runs().cancel_run(request).await;
        let answer = session.call(Effect::Mutation, request, send).await?;
        let run = answer.message;
        if args.wait.no_wait && !wait::is_over(run.state()) {
            result(console, &run)?;
            return console.milestone(&format!("✓ Cancelling: {}", run.name));
        }
        let timeout = args.wait.wait_timeout;
        let run = wait::until(session, console, run, wait::Goal::Ended, timeout)
            .await
            .map_err(|failure| failure.traced(answer.trace_id))?;
        result(console, &run)?;
        if run.state() == pb::RunState::Cancelled {
            return console.milestone(&format!("✓ Cancelled: {}", run.name));
        }
        let state = state_word(run.state());
        console.note(&format!("run {} is over already: {state}", run.name))
    };
    let what = "the cancellation of run";
    interruptible(work, || left_waiting(session, &args.run, what)).await
}
