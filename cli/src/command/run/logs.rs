//! `cnlab run logs`: what a run's command wrote.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{get, wait};
use crate::{
    command::{follow::interruptible, server::logs::write},
    console::Console,
    error::{Exit, Failure, Result},
    session::Session,
    text::LogFilter,
};

/// Which logs.
#[derive(Debug, Clone, Default, Args)]
pub struct LogsArgs {
    /// Name or id of the run.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Wait until it begins, and go on with what is written until it has ended.
    #[arg(short, long)]
    pub follow: bool,
    /// Start with the last N lines only.
    #[arg(short = 'n', long = "lines", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub lines: Option<u32>,
}

/// Prints the logs.
///
/// # Errors
/// When there is no such run, or the stream breaks.
pub async fn run(session: &Session, console: &mut Console, args: &LogsArgs) -> Result<()> {
    let run = get(session, &args.run).await?.message;
    let work = async {
        if args.follow {
            follow(session, console, run, args.lines.unwrap_or(0)).await
        } else {
            let tail = args.lines.unwrap_or(0);
            print(session, console, &run, false, tail).await
        }
    };
    interruptible(work, || Failure::silent(Exit::Interrupted)).await
}

/// Prints what every attempt from now on writes, until the run is over.
async fn follow(
    session: &Session,
    console: &mut Console,
    mut run: pb::Run,
    tail: u32,
) -> Result<()> {
    let mut attempt = 0;
    loop {
        run = wait::until(session, console, run, wait::Goal::Begun(attempt), None).await?;
        if run.attempt >= attempt {
            print(session, console, &run, true, tail).await?;
            attempt = run.attempt.saturating_add(1);
        }
        if wait::is_over(run.state()) {
            return Ok(());
        }
    }
}

async fn print(
    session: &Session,
    console: &mut Console,
    run: &pb::Run,
    follow: bool,
    tail_lines: u32,
) -> Result<()> {
    let request = pb::GetRunLogsRequest {
        run: run.id.clone(),
        follow,
        tail_lines,
    };
    let send = async |request| session.runs().get_run_logs(request).await;
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
}
