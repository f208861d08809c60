//! `cnlab server delete`: asks on a terminal, since files go too.

use clap::Args;
use cnlab_model::ByteSize;
use cnlab_proto::scheduler::v1 as pb;

use super::{WaitArgs, get, left_waiting, result, wait};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    session::{Effect, Session},
    text,
};

/// What to delete.
#[derive(Debug, Clone, Default, Args)]
pub struct DeleteArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// How to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Deletes the server and its volume.
///
/// # Errors
/// When the answer is no, the gateway refuses, or the server does not go away.
pub async fn run(session: &Session, console: &mut Console, args: &DeleteArgs) -> Result<()> {
    let mut target = names::server(&args.server, session.project())?;
    if !args.yes && console.interactive() {
        let server = get(session, &args.server).await?.message;
        let size = ByteSize(server.storage_bytes);
        if !console.confirm(&format!(
            "delete server {} and its files ({size})?",
            server.name
        ))? {
            return Err(Failure::new(
                Exit::Error,
                "CANCELLED",
                format!("server {} was not deleted", server.name),
            ));
        }
        // Exactly the one that was asked about.
        target = server.id;
    }
    let work = async {
        let send = async |request| session.servers().delete_server(request).await;
        let request = pb::DeleteServerRequest { server: target };
        let answer = session.call(Effect::Mutation, request, send).await?;
        let mut server = answer.message;
        if args.wait.no_wait {
            result(console, &server)?;
            return console.milestone(&format!("✓ Deleting: {}", text::one_line(&server.name)));
        }
        server = wait::until(
            session,
            console,
            server,
            wait::Goal::Deleted,
            args.wait.wait_timeout,
        )
        .await
        .map_err(|failure| failure.traced(answer.trace_id))?;
        result(console, &server)?;
        console.milestone(&format!("✓ Deleted: {}", text::one_line(&server.name)))
    };
    interruptible(work, || left_waiting(session, &args.server, "the deletion")).await
}
