//! `cnlab server stop`.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{WaitArgs, left_waiting, result, wait};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::Result,
    names,
    session::{Effect, Session},
    text,
};

/// What to stop.
#[derive(Debug, Clone, Default, Args)]
pub struct StopArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Stops the server, waits until it is where that is wanted, and answers with it.
///
/// # Errors
/// When the gateway refuses or the server does not stop.
pub async fn run(session: &Session, console: &mut Console, args: &StopArgs) -> Result<pb::Server> {
    let request = pb::StopServerRequest {
        server: names::server(&args.server, session.project())?,
    };
    let work = async {
        let send = async |request| session.servers().stop_server(request).await;
        let answer = session.call(Effect::Mutation, request, send).await?;
        let mut server = answer.message;
        if args.wait.no_wait {
            result(console, &server)?;
            console.milestone(&format!("✓ Stopping: {}", text::one_line(&server.name)))?;
            return Ok(server);
        }
        server = wait::until(
            session,
            console,
            server,
            wait::Goal::Stopped,
            args.wait.wait_timeout,
        )
        .await
        .map_err(|failure| failure.traced(answer.trace_id))?;
        result(console, &server)?;
        console.milestone(&format!("✓ Stopped: {}", text::one_line(&server.name)))?;
        console.note(&format!(
            "  its files stay; start it again: {} server start {}",
            session.program(),
            server.name
        ))?;
        Ok(server)
    };
    interruptible(work, || left_waiting(session, &args.server, "the stop")).await
}
