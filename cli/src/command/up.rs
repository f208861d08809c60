//! `cnlab up`: every service in this process, and the quickstart with `--demo`.
//!
//! **Invariant**: the stack is stopped before the command ends, however the demo went.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use cnlab_service::{StartError, config::TelemetryConfig, status::chain, telemetry};
use cnlab_up::Stack;

use crate::{
    command::Setting,
    connect::Endpoint,
    console::Console,
    context, demo,
    error::{Exit, Failure, Result},
    output::Document,
    private_file,
    session::Session,
    text,
};

/// How to start the stack.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Then do the quickstart: create a server and print a link that opens it.
    #[arg(long)]
    pub demo: bool,
    /// Where everything is kept; a folder of your data directory where it is not given.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub data_dir: Option<PathBuf>,
    /// Port of the gateway on 127.0.0.1; 8080 where it is not given.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Which GPUs: those that NVML finds, simulated ones, or whichever there are.
    #[arg(long, value_enum, default_value_t = Gpu::Auto)]
    pub gpu: Gpu,
    /// Keep leases in this Redis instead of in the process.
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,
    /// Keep records in this Postgres instead of in SQLite files.
    #[arg(long, value_name = "URL")]
    pub postgres: Option<String>,
}

/// Where GPUs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Gpu {
    /// Those that NVML finds, else simulated ones.
    Auto,
    /// Those that NVML finds.
    Nvml,
    /// Simulated ones.
    Simulated,
}

impl From<Gpu> for cnlab_up::GpuChoice {
    fn from(gpu: Gpu) -> Self {
        match gpu {
            Gpu::Auto => Self::Auto,
            Gpu::Nvml => Self::Nvml,
            Gpu::Simulated => Self::Simulated,
        }
    }
}

/// The name of the context that a local stack is kept under.
const CONTEXT: &str = "local";

/// The gateway's port where none is given.
const PORT: u16 = 8080;

/// Starts the stack, does the quickstart where asked, and waits for Ctrl-C.
///
/// # Errors
/// When the stack cannot start, or the demo does not get its server.
pub async fn run(setting: Setting<'_>, console: &mut Console, args: UpArgs) -> Result<()> {
    let telemetry = TelemetryConfig {
        otlp_endpoint: setting.environment.otlp.clone(),
        log: "warn".to_owned(),
        ..TelemetryConfig::default()
    };
    let guard = telemetry::init_quiet(setting.environment.program.name(), &telemetry)
        .map_err(|error| failure(&error))?;
    let result = start_and_serve(setting, console, args, telemetry).await;
    guard.shutdown().await;
    result
}

async fn start_and_serve(
    setting: Setting<'_>,
    console: &mut Console,
    args: UpArgs,
    telemetry: TelemetryConfig,
) -> Result<()> {
    let data_dir = match args.data_dir {
        Some(data_dir) => data_dir,
        None => setting
            .environment
            .data_dir
            .as_ref()
            .map(|folder| folder.join("cnlab"))
            .ok_or_else(|| {
                Failure::usage("there is no place for the data folder")
                    .caused_by("neither HOME nor XDG_DATA_HOME is set")
                    .try_this("pass --data-dir DIR")
            })?,
    };
    let config = cnlab_up::UpConfig {
        data_dir,
        port: args.port.unwrap_or(PORT),
        gpu: args.gpu.into(),
        redis: args.redis,
        postgres: args.postgres,
        telemetry,
    };
    console.note("  starting the services")?;
    let stack = Box::pin(Stack::start(config))
        .await
        .map_err(|error| failure(&error))?;
    let result = serve(setting, console, args.demo, &stack).await;
    // The stack has to be stopped, whoever still reads what we say of it.
    let _ = console.note("  stopping; Ctrl-C again leaves at once, and servers run on");
    tokio::select! {
        () = stack.stop() => {}
        // Whatever runs is adopted by the next start, as after a kill.
        _ = asked_to_end() => {
            let _ = console.note("  left at once");
        }
    }
    result
}

/// Says how to get in, does the quickstart where asked, and waits for Ctrl-C.
async fn serve(
    setting: Setting<'_>,
    console: &mut Console,
    demo: bool,
    stack: &Stack,
) -> Result<()> {
    let program = setting.environment.program;
    let endpoint = Endpoint::parse(&stack.endpoint())?;
    context::write(&setting.paths()?, CONTEXT, endpoint.as_str())?;
    let token_file = stack.admin_token_file();
    console.result(
        || format!("✓ Up: {endpoint} with {}", text::one_line(&stack.gpus())),
        || vec![endpoint.to_string()],
        || {
            Ok(Document::new("Stack")
                .with("endpoint", endpoint.as_str())
                .with("gpus", stack.gpus())
                .with("simulated", stack.simulated())
                .with("dataDir", stack.data_dir().display().to_string())
                .with("adminTokenFile", token_file.display().to_string()))
        },
    )?;
    console.note(&format!(
        "  log in from a second terminal: {program} login --token-stdin < {}",
        quoted(&token_file)
    ))?;
    let work = async {
        if demo {
            let token = private_file::read(&token_file)
                .map_err(|error| Failure::local("the admin's token cannot be read", &error))?
                .unwrap_or_default();
            let session = Session::with_token(program, endpoint, None, token.trim())?;
            show_demo(&session, console).await?;
        }
        console.note("  Ctrl-C stops everything")?;
        std::future::pending().await
    };
    tokio::select! {
        // First, so that the demo inside does not take the same Ctrl-C for its own.
        biased;
        signal = asked_to_end() => {
            signal.map_err(|error| Failure::local("Ctrl-C cannot be noticed", &error))
        }
        result = work => result,
    }
}

/// Returns when the process is asked to end: by Ctrl-C, or as service supervisors do it.
async fn asked_to_end() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

async fn show_demo(session: &Session, console: &mut Console) -> Result<()> {
    let link = Box::pin(demo::run(session, console)).await?;
    console.milestone(&format!(
        "✓ Open in your browser: {}",
        text::one_line(&link.link)
    ))?;
    console.note(&format!(
        "  the link works once, within a minute; `{} server open {}` makes another",
        session.program(),
        demo::SERVER
    ))
}

/// The path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if text.bytes().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What the stack says of an error, in the form of every command.
fn failure(error: &StartError) -> Failure {
    let failure = Failure::new(Exit::Error, "START_FAILED", error.to_string());
    let failure = match std::error::Error::source(error) {
        Some(source) => failure.caused_by(chain(source)),
        None => failure,
    };
    match error.advice() {
        Some(advice) => failure.try_this(advice),
        None => failure,
    }
}
