//! The command line as clap sees it: global options and one subcommand per noun.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::{command, environment::Program, output::Format};

/// Everything on the command line.
#[derive(Debug, Parser)]
#[command(
    name = "cnlab",
    version,
    about = "GPU slices for everybody: JupyterLab servers and batch runs on shares of a GPU",
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Environment: CNLAB_ENDPOINT, CNLAB_TOKEN (or AUTOLAB_TOKEN), CNLAB_CONFIG, CNLAB_OTLP_ENDPOINT."
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// How results and errors are written.
    #[arg(short, long, value_enum, default_value_t = Format::Table, global = true, value_name = "FORMAT")]
    pub output: Format,
    /// The gateway, such as http://127.0.0.1:8080.
    ///
    /// Without it CNLAB_ENDPOINT counts, then the context in use.
    #[arg(long, global = true, value_name = "URL")]
    pub endpoint: Option<String>,
    /// The configuration file.
    ///
    /// Without it CNLAB_CONFIG counts, then cnlab/config.toml in your configuration folder.
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The project, written `<owner>/<slug>`; your default one where it is not given.
    #[arg(
        help = "The project, written <owner>/<slug>; your default one where it is not given",
        long,
        global = true,
        value_name = "PROJECT"
    )]
    pub project: Option<String>,
    /// Write no progress and no notes.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// One entry per noun.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sign in with a token and keep it for this gateway.
    Login(command::login::LoginArgs),
    /// Forget the token that is kept for this gateway.
    Logout,
    /// Show who is signed in.
    Whoami,
    /// What servers and runs can run on.
    #[command(subcommand)]
    Profiles(command::profiles::ProfilesCommand),
    /// What servers and runs can run.
    #[command(subcommand)]
    Images(command::images::ImagesCommand),
    /// JupyterLab servers on slices.
    #[command(subcommand)]
    Server(command::server::ServerCommand),
    /// Commands that run on slices until they end.
    #[command(subcommand)]
    Run(command::run::RunCommand),
    /// Show who waits for a slice, and when yours start.
    Queue(command::queue::QueueArgs),
    /// The machines with the GPUs, for those who operate them.
    #[command(subcommand)]
    Node(command::node::NodeCommand),
    /// Start every service on this machine, until Ctrl-C.
    #[cfg(feature = "up")]
    Up(command::up::UpArgs),
    /// Print a completion script for a shell.
    Completion(command::completion::CompletionArgs),
    /// Print the version.
    Version,
    /// Candidates for a word, for the completion scripts.
    #[command(name = "__complete", hide = true)]
    Complete(command::completion::CompleteArgs),
    /// The reference of all commands as Markdown.
    #[command(name = "__reference", hide = true)]
    Reference,
}

/// The command line under the name that the program acts under.
#[must_use]
pub fn command(program: Program) -> clap::Command {
    Cli::command().name(program.name()).bin_name(program.name())
}
