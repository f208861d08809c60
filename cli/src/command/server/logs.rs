//! `cnlab server logs`: what a server's processes wrote.
//!
//! **Invariant**: to a file or a pipe the text goes as it is; on a terminal colours stay and
//! everything else that could act on it is left out.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    output::{Document, Format},
    session::Session,
    text::LogFilter,
};

/// Which logs.
#[derive(Debug, Clone, Default, Args)]
pub struct LogsArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Go on with what is written from now on, until Ctrl-C.
    #[arg(short, long)]
    pub follow: bool,
    /// Start with the last N lines only.
    #[arg(short = 'n', long = "lines", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub lines: Option<u32>,
}

/// Prints the logs.
///
/// # Errors
/// When there is no such server, or the stream breaks.
pub async fn run(session: &Session, console: &mut Console, args: &LogsArgs) -> Result<()> {
    let request = pb::GetServerLogsRequest {
        server: names::server(&args.server, session.project())?,
        follow: args.follow,
        tail_lines: args.lines.unwrap_or(0),
    };
    let work = async {
        let send = async |request| session.servers().get_server_logs(request).await;
        let mut chunks = session
            .stream(request, send)
            .await
            .map_err(|status| session.failure(&status))?
            .message;
        let mut filter = console.out_is_terminal().then(LogFilter::default);
        while let Some(chunk) = chunks
            .message()
            .await
            .map_err(|status| session.failure(&status))?
        {
            write(console, filter.as_mut(), &chunk)?;
        }
        Ok(())
    };
    interruptible(work, || Failure::silent(Exit::Interrupted)).await
}

pub(in crate::command) fn write(
    console: &mut Console,
    filter: Option<&mut LogFilter>,
    chunk: &pb::LogChunk,
) -> Result<()> {
    match (console.format(), filter) {
        (Format::Json | Format::Yaml, _) => console.stream_item(Document::of(
            "LogChunk",
            "cnlab.scheduler.v1.LogChunk",
            chunk,
        )?),
        (Format::Table | Format::Name, Some(filter)) => console.raw(&filter.pass(&chunk.text)),
        (Format::Table | Format::Name, None) => console.raw(&chunk.text),
    }
}
