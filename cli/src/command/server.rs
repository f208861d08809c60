//! `cnlab server …`: interactive workloads.

pub mod create;
pub mod explain;
pub mod list;
pub mod logs;
pub mod open;
pub mod remove;
pub mod show;
pub mod start;
pub mod stop;
pub mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use cnlab_proto::{convert, scheduler::v1 as pb};

use crate::{
    command::Setting,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    output::Document,
    session::{Answer, Effect, Session},
    text,
};

/// What can be done with servers.
#[derive(Debug, Clone, Subcommand)]
pub enum ServerCommand {
    /// Create a server and wait until its page answers.
    Create(create::CreateArgs),
    /// Open a server's page in the browser.
    Open(open::OpenArgs),
    /// Stop a server: its slice is freed, its files stay.
    Stop(stop::StopArgs),
    /// Start a stopped or failed server again.
    Start(start::StartArgs),
    /// List your servers.
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a server.
    Show(show::ShowArgs),
    /// Tell why a server waits and what would start it sooner, or why it runs where it does.
    Explain(explain::ExplainArgs),
    /// Print what a server's processes wrote.
    Logs(logs::LogsArgs),
    /// Delete a server together with its files.
    #[command(visible_alias = "rm")]
    Delete(remove::DeleteArgs),
}

impl ServerCommand {
    /// The name of the command's root span.
    #[must_use]
    pub const fn span_name(&self) -> &'static str {
        match self {
            Self::Create(_) => "cnlab server create",
            Self::Open(_) => "cnlab server open",
            Self::Stop(_) => "cnlab server stop",
            Self::Start(_) => "cnlab server start",
            Self::List => "cnlab server list",
            Self::Show(_) => "cnlab server show",
            Self::Explain(_) => "cnlab server explain",
            Self::Logs(_) => "cnlab server logs",
            Self::Delete(_) => "cnlab server delete",
        }
    }
}

/// Whether and how long to wait for the end of something.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WaitArgs {
    /// Do not wait: return as soon as the request is accepted.
    #[arg(long)]
    pub no_wait: bool,
    /// Wait at most so long, for example 90s, 10m or 2h; then exit with 124.
    #[arg(long, value_name = "TIME", value_parser = names::span, conflicts_with = "no_wait")]
    pub wait_timeout: Option<Duration>,
}

/// Runs the command.
///
/// # Errors
/// Whatever the command fails with.
pub async fn run(
    setting: Setting<'_>,
    console: &mut Console,
    command: ServerCommand,
) -> Result<()> {
    if let ServerCommand::Create(args) = &command {
        // Before anything else: a wrong value needs no gateway to be found out.
        create::check(args)?;
    }
    let session = setting.session(console)?;
    match command {
        ServerCommand::Create(args) => create::run(&session, console, args).await.map(drop),
        ServerCommand::Open(args) => {
            open::run(&session, console, setting.environment.display, &args).await
        }
        ServerCommand::Stop(args) => stop::run(&session, console, &args).await.map(drop),
        ServerCommand::Start(args) => start::run(&session, console, &args).await.map(drop),
        ServerCommand::List => list::run(&session, console).await,
        ServerCommand::Show(args) => show::run(&session, console, &args).await,
        ServerCommand::Explain(args) => explain::run(&session, console, &args).await,
        ServerCommand::Logs(args) => logs::run(&session, console, &args).await,
        ServerCommand::Delete(args) => remove::run(&session, console, &args).await,
    }
}

/// The server that a text means.
///
/// # Errors
/// When the text means none, or the gateway does not answer.
pub async fn get(session: &Session, server: &str) -> Result<Answer<pb::Server>> {
    let server = names::server(server, session.project())?;
    let send = async |request| session.servers().get_server(request).await;
    session
        .call(Effect::Read, pb::GetServerRequest { server }, send)
        .await
}

/// Writes the server as the result of a command, except for people, who were told already.
fn result(console: &mut Console, server: &pb::Server) -> Result<()> {
    console.result(
        String::new,
        || vec![server.name.clone()],
        || document(server),
    )
}

/// The server in machine-readable form.
fn document(server: &pb::Server) -> Result<Document> {
    Document::of("Server", "cnlab.scheduler.v1.Server", server)
}

/// The expected time until the server is ready.
fn eta(server: &pb::Server) -> Option<Duration> {
    server.eta.as_ref().map(convert::decode_duration)
}

/// The state in a few words for a table.
fn state_text(server: &pb::Server) -> String {
    let word = state_word(server.state());
    match server.state() {
        pb::ServerState::Queued => eta(server).map_or_else(
            || word.to_owned(),
            |eta| format!("{word} ({})", text::minutes(eta)),
        ),
        pb::ServerState::Provisioning => match phase_word(server.phase()) {
            "" => word.to_owned(),
            phase => format!("{word} ({phase})"),
        },
        pb::ServerState::Failed => match &server.failure {
            Some(failure) if !failure.reason.is_empty() => format!("{word} ({})", failure.reason),
            _ => word.to_owned(),
        },
        pb::ServerState::Unspecified
        | pb::ServerState::Ready
        | pb::ServerState::Stopping
        | pb::ServerState::Stopped
        | pb::ServerState::Deleting
        | pb::ServerState::Deleted => word.to_owned(),
    }
}

/// The state in one word.
const fn state_word(state: pb::ServerState) -> &'static str {
    match state {
        pb::ServerState::Unspecified => "unknown",
        pb::ServerState::Queued => "queued",
        pb::ServerState::Provisioning => "provisioning",
        pb::ServerState::Ready => "ready",
        pb::ServerState::Stopping => "stopping",
        pb::ServerState::Stopped => "stopped",
        pb::ServerState::Failed => "failed",
        pb::ServerState::Deleting => "deleting",
        pb::ServerState::Deleted => "deleted",
    }
}

/// The phase in a few words; empty when none is said.
const fn phase_word(phase: pb::ServerPhase) -> &'static str {
    match phase {
        pb::ServerPhase::Unspecified => "",
        pb::ServerPhase::WaitingForSlice => "waiting for a slice",
        pb::ServerPhase::SendingToNode => "sending to the node",
        pb::ServerPhase::BuildingEnvironment => "building the environment",
        pb::ServerPhase::Starting => "starting",
        pb::ServerPhase::WaitingForPage => "waiting for the page",
    }
}

/// What to say when somebody stops waiting: the work is the services', and goes on.
fn left_waiting(session: &Session, name: &str, what: &str) -> Failure {
    let program = session.program();
    Failure::new(
        Exit::Interrupted,
        "INTERRUPTED",
        format!("stopped waiting; {what} of server {name} goes on"),
    )
    .caused_by("Ctrl-C")
    .try_this(advice(program.name(), name))
}

/// How to go on with a server that nobody waits for.
fn advice(program: &str, name: &str) -> String {
    format!(
        "`{program} server show --watch {name}` to watch it\n`{program} server delete {name}` to remove it"
    )
}
