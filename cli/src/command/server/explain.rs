//! `cnlab server explain`: why it waits or runs where it does.

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
#[command(
    after_help = "Examples:\n  cnlab server explain first-experiment\n  cnlab server explain first-experiment -o json"
)]
pub struct ExplainArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
}

/// Explains where the server stands.
///
/// # Errors
/// When there is none, or the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console, args: &ExplainArgs) -> Result<()> {
    let request = pb::ExplainServerRequest {
        server: names::server(&args.server, session.project())?,
    };
    let send = async |request| session.queue().explain_server(request).await;
    let message = session.call(Effect::Read, request, send).await?.message;
    let how = "a server keeps its request: create another one with the change; the files of this one stay with it";
    explain::show(console, &message, how)
}
