//! `cnlab run explain`: why it waits or runs where it does.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use crate::{
    command::explain,
    console::Console,
    error::Result,
    names,
    session::{Effect, Session},
};

/// What to explain.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  cnlab run explain train\n  cnlab run explain train -o json")]
pub struct ExplainArgs {
    /// Name or id of the run.
    #[arg(value_name = "RUN")]
    pub run: String,
}

/// Explains where the run stands.
///
/// # Errors
/// When there is none, or the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console, args: &ExplainArgs) -> Result<()> {
    let request = pb::ExplainRunRequest {
        run: names::run(&args.run, session.project())?,
    };
    let send = async |request| session.queue().explain_run(request).await;
    let message = session.call(Effect::Read, request, send).await?.message;
    let (program, name) = (session.program().name(), &message.name);
    let how = format!(
        "a run keeps its request: `{program} run cancel {name}`, then submit it again with the change"
    );
    explain::show(console, &message, &how)
}
