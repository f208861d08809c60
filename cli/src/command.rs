//! Commands, one module per noun, and the way from the parsed command line to them.

pub mod completion;
pub mod explain;
pub mod follow;
pub mod images;
pub mod login;
pub mod logout;
pub mod node;
pub mod profiles;
pub mod queue;
pub mod run;
pub mod server;
#[cfg(feature = "up")]
pub mod up;
pub mod version;
pub mod whoami;

use tracing::Instrument as _;

use crate::{
    cli::{Cli, Command, Globals},
    console::Console,
    context::Paths,
    environment::Environment,
    error::Result,
    reference,
    session::{Session, Target},
    telemetry,
};

/// What every command gets: its surroundings and the global options.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// Surroundings of the process.
    pub environment: &'a Environment,
    /// Options of every command.
    pub globals: &'a Globals,
}

impl Setting<'_> {
    /// Where the configuration is.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn paths(&self) -> Result<Paths> {
        Paths::find(self.globals.config.as_deref(), self.environment)
    }

    /// What was said about the gateway.
    #[must_use]
    pub fn target(&self) -> Target {
        Target {
            endpoint: self.globals.endpoint.clone(),
            project: self.globals.project.clone(),
        }
    }

    /// The signed-in connection. Warns where a token would cross a network in the clear.
    ///
    /// # Errors
    /// When no gateway is known or nobody is signed in.
    pub fn session(&self, console: &mut Console) -> Result<Session> {
        let session = Session::open(&self.target(), &self.paths()?, self.environment)?;
        if !session.endpoint().is_loopback() {
            console.note(&format!(
                "warning: your token goes to {} without encryption",
                session.endpoint()
            ))?;
        }
        Ok(session)
    }
}

/// Runs the command.
///
/// # Errors
/// Whatever the command fails with.
pub async fn dispatch(cli: Cli, environment: &Environment, console: &mut Console) -> Result<()> {
    let Cli { globals, command } = cli;
    let setting = Setting {
        environment,
        globals: &globals,
    };
    match command {
        Command::Version => version::run(setting, console),
        Command::Completion(args) => completion::script(setting, console, &args),
        Command::Reference => console.raw(&reference::markdown()),
        Command::Complete(args) => completion::complete(setting, console, args).await,
        #[cfg(feature = "up")]
        Command::Up(args) => up::run(setting, console, args).await,
        Command::Logout => logout::run(setting, console),
        Command::Login(args) => {
            traced(setting, "cnlab login", login::run(setting, console, args)).await
        }
        Command::Whoami => traced(setting, "cnlab whoami", whoami::run(setting, console)).await,
        Command::Profiles(command) => {
            traced(
                setting,
                "cnlab profiles list",
                profiles::run(setting, console, command),
            )
            .await
        }
        Command::Images(command) => {
            traced(
                setting,
                "cnlab images list",
                images::run(setting, console, command),
            )
            .await
        }
        Command::Queue(args) => {
            traced(setting, "cnlab queue", queue::run(setting, console, args)).await
        }
        Command::Run(command) => {
            traced(
                setting,
                command.span_name(),
                Box::pin(run::run(setting, console, command)),
            )
            .await
        }
        Command::Node(command) => {
            traced(
                setting,
                command.span_name(),
                Box::pin(node::run(setting, console, command)),
            )
            .await
        }
        Command::Server(command) => {
            traced(
                setting,
                command.span_name(),
                Box::pin(server::run(setting, console, command)),
            )
            .await
        }
    }
}

/// Runs a command that speaks to the gateway under a root span of its own.
async fn traced(
    setting: Setting<'_>,
    name: &'static str,
    command: impl Future<Output = Result<()>>,
) -> Result<()> {
    let guard = telemetry::start(setting.environment);
    let result = command.instrument(telemetry::root(name)).await;
    if let Some(guard) = guard {
        guard.shutdown().await;
    }
    result
}
