//! The binary of a service: its subcommands, signals and exit code.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    config::{self, ConfigFault, ServiceConfig as _},
    runtime::Runtime,
    service::{Service, StartError, start},
    status, telemetry,
};

const USAGE: u8 = 2;

/// A service of CNLab. Configuration: defaults < `--config` < environment < flags.
#[derive(Debug, Parser)]
#[command(disable_version_flag = true)]
struct Arguments {
    /// TOML file with the configuration
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Address to listen on, such as 127.0.0.1:7101
    #[arg(long, value_name = "ADDRESS", global = true)]
    listen: Option<String>,
    /// Any key of the configuration, such as common.telemetry.log=debug
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Run the service (the default)
    Serve,
    /// Bring the database to the present version, then end
    Migrate,
    /// Say whether the configuration makes sense, then end
    CheckConfig,
    /// Print the configuration that results from all sources, secrets masked
    PrintConfig,
    /// Print the version
    Version,
}

/// Runs the binary of a service: the whole body of its `main`.
#[must_use]
pub fn main<S: Service>() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return complain(
                S::NAME,
                &StartError::new("the async runtime does not start").caused_by(error),
            );
        }
    };
    runtime.block_on(run::<S>(arguments))
}

#[expect(
    clippy::print_stdout,
    reason = "the output of these subcommands is for a person or a script"
)]
async fn run<S: Service>(arguments: Arguments) -> ExitCode {
    if matches!(arguments.command, Some(Command::Version)) {
        println!("{} {}", S::NAME, env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let config: S::Config = match flags(&arguments)
        .and_then(|flags| config::load(S::NAME, arguments.config.as_deref(), &flags))
    {
        Ok(config) => config,
        Err(faults) => return refuse(S::NAME, &faults),
    };
    match arguments.command.unwrap_or(Command::Serve) {
        Command::Version => ExitCode::SUCCESS,
        Command::CheckConfig => {
            println!("{}: the configuration makes sense", S::NAME);
            ExitCode::SUCCESS
        }
        Command::PrintConfig => match toml::to_string_pretty(&config) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => complain(
                S::NAME,
                &StartError::new("the configuration cannot be shown").caused_by(error),
            ),
        },
        Command::Migrate => match S::migrate(&config).await {
            Ok(()) => {
                println!("{}: the database is at the present version", S::NAME);
                ExitCode::SUCCESS
            }
            Err(error) => complain(S::NAME, &error),
        },
        Command::Serve => match serve::<S>(config).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(S::NAME, &error),
        },
    }
}

async fn serve<S: Service>(config: S::Config) -> Result<(), StartError> {
    let telemetry = telemetry::init(S::NAME, &config.common().telemetry)?;
    let result = serve_until_signal::<S>(config).await;
    telemetry.shutdown().await;
    result
}

async fn serve_until_signal<S: Service>(config: S::Config) -> Result<(), StartError> {
    let listener = bind(config.common().listen).await?;
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    let mut terminate = listen_for(SignalKind::terminate())?;
    let mut running = start::<S>(config, Runtime::system(), listener).await?;
    let ended = tokio::select! {
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        ended = running.ended() => Some(ended),
    };
    match ended {
        None => {
            tracing::info!(service = S::NAME, "stopping");
            running.stop().await;
            Ok(())
        }
        Some(ended) => {
            let cause = ended
                .err()
                .unwrap_or_else(|| std::io::Error::other("the listener closed"));
            Err(StartError::new("serving ended by itself").caused_by(cause))
        }
    }
}

fn listen_for(kind: SignalKind) -> Result<tokio::signal::unix::Signal, StartError> {
    signal(kind).map_err(|error| StartError::new("signals cannot be received").caused_by(error))
}

/// Binds a listener; a port in use says so and what to do.
///
/// # Errors
/// When the address cannot be bound.
pub async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| {
        let advice = if error.kind() == std::io::ErrorKind::AddrInUse {
            format!(
                "end the program that uses port {}, or choose another port",
                address.port()
            )
        } else {
            "choose another address".to_owned()
        };
        StartError::new(format!("cannot listen on {address}"))
            .caused_by(error)
            .try_this(advice)
    })
}

fn flags(arguments: &Arguments) -> Result<Vec<(String, String)>, Vec<ConfigFault>> {
    let mut flags = Vec::new();
    for pair in &arguments.set {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            vec![ConfigFault::new(
                "--set",
                format!("{pair:?} is not of the form key=value"),
            )]
        })?;
        flags.push((key.to_owned(), value.to_owned()));
    }
    if let Some(listen) = &arguments.listen {
        flags.push(("common.listen".to_owned(), listen.clone()));
    }
    Ok(flags)
}

#[expect(clippy::print_stderr, reason = "the service has no log yet")]
fn refuse(service: &str, faults: &[ConfigFault]) -> ExitCode {
    eprintln!("{service}: the configuration has {} fault(s)", faults.len());
    for fault in faults {
        eprintln!("  {fault}");
    }
    ExitCode::from(USAGE)
}

#[expect(clippy::print_stderr, reason = "the last word of a program that ends")]
fn complain(service: &str, error: &StartError) -> ExitCode {
    eprintln!("{service}: {}", status::chain(error));
    if let Some(advice) = error.advice() {
        eprintln!("  try: {advice}");
    }
    ExitCode::FAILURE
}
