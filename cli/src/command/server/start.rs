//! `cnlab server start`.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{WaitArgs, create, left_waiting};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::Result,
    names,
    session::{Effect, Session},
};

/// What to start.
#[derive(Debug, Clone, Default, Args)]
pub struct StartArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Starts the server, waits for it where that is wanted, and answers with it.
///
/// # Errors
/// When the gateway refuses or the server does not become ready.
pub async fn run(session: &Session, console: &mut Console, args: &StartArgs) -> Result<pb::Server> {
    let request = pb::StartServerRequest {
        server: names::server(&args.server, session.project())?,
    };
    let work = async {
        let send = async |request| session.servers().start_server(request).await;
        let answer = session.call(Effect::Mutation, request, send).await?;
        create::finish(session, console, answer.message, args.wait)
            .await
            .map_err(|failure| failure.traced(answer.trace_id))
    };
    interruptible(work, || left_waiting(session, &args.server, "the start")).await
}
