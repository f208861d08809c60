//! The `cnlab` command line: a thin, careful client of the gateway's gRPC API.
//!
//! Commands are functions over a [`session::Session`] and a [`console::Console`], so that
//! tests and `cnlab up --demo` run the very code that the terminal runs.
//!
//! **Invariants**: stdout carries data and stderr words; every failure has a reason and an
//! exit code ([`error::Exit`]); nothing from elsewhere reaches a terminal unescaped; a token
//! is never printed, logged or sent to another gateway than its own.
//!
//! Deliberately absent: decisions. Whatever could be wrong without I/O is the services' to say;
//! names and sizes are only checked early with the same code.
#![warn(missing_docs)]

pub mod cli;
pub mod command;
pub mod complete;
pub mod connect;
pub mod console;
pub mod context;
pub mod demo;
pub mod environment;
pub mod error;
pub mod names;
pub mod output;
pub mod private_file;
pub mod reference;
pub mod session;
mod telemetry;
pub mod text;

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use clap::{FromArgMatches as _, error::ErrorKind};

use crate::{
    cli::Cli,
    console::Console,
    environment::Environment,
    error::{Failure, Result},
    output::Format,
};

/// Runs one command line and answers with the exit code of the process.
#[must_use]
pub fn run(args: &[OsString], environment: &Environment) -> ExitCode {
    let parsed = cli::command(environment.program)
        .try_get_matches_from(args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refuse(args, environment, &error),
    };
    let mut console = Console::of_process(environment, cli.globals.output, cli.globals.quiet);
    match execute(cli, environment, &mut console) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console.failure(&failure);
            failure.exit().into()
        }
    }
}

fn execute(cli: Cli, environment: &Environment, console: &mut Console) -> Result<()> {
    let mut builder = match cli.command {
        // The whole stack runs in this process.
        #[cfg(feature = "up")]
        cli::Command::Up(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::local("the program cannot start its runtime", &error))?;
    let result = runtime.block_on(command::dispatch(cli, environment, console));
    // A thread that still waits for stdin must not keep the process.
    runtime.shutdown_background();
    result
}

/// Help and version go to stdout; a wrong command line gets the error form.
fn refuse(args: &[OsString], environment: &Environment, error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // Clap colours it where stdout is a terminal; a reader that left is no error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let failure = usage(environment, error);
    Console::of_process(environment, wanted_format(args), false).failure(&failure);
    failure.exit().into()
}

fn usage(environment: &Environment, error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let program = environment.program;
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let usage = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Usage: "))
            .unwrap_or_default();
        let command = usage.split(" [").next().unwrap_or(program.name());
        return Failure::usage("a command is missing")
            .caused_by(format!("usage: {usage}"))
            .try_this(format!("`{command} --help`"));
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let message = first
        .strip_prefix("error: ")
        .unwrap_or(first)
        .trim_end_matches([':', '.']);
    let mut cause = Vec::new();
    let mut advice = Vec::new();
    for line in lines {
        if line.starts_with("For more information") {
            continue;
        }
        if let Some(tip) = line.strip_prefix("tip: ") {
            advice.push(tip.to_owned());
        } else if let Some(usage) = line.strip_prefix("Usage: ") {
            advice.push(usage.to_owned());
        } else {
            cause.push(line.to_owned());
        }
    }
    let failure = Failure::usage(message).caused_by(cause.join("\n"));
    if advice.is_empty() {
        failure.try_this(format!("`{program} --help`"))
    } else {
        failure.try_this(advice.join("\n"))
    }
}

/// The form that was asked for on a command line that cannot be parsed as a whole.
fn wanted_format(args: &[OsString]) -> Format {
    let mut wanted = None;
    let mut words = args.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        let value = match word {
            "--" => break,
            "-o" | "--output" => words.next(),
            _ => word
                .strip_prefix("--output=")
                .or_else(|| word.strip_prefix("-o"))
                .map(|value| value.trim_start_matches('=')),
        };
        wanted = value.or(wanted);
    }
    wanted
        .and_then(|value| <Format as clap::ValueEnum>::from_str(value, false).ok())
        .unwrap_or_default()
}

/// The command line of this process.
#[must_use]
pub fn process_args() -> Vec<OsString> {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if args.is_empty() {
        args.push(OsStr::new("cnlab").to_owned());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        cli::command(environment::Program::Cnlab).debug_assert();
    }

    #[test]
    fn the_form_is_found_on_wrong_command_lines() {
        for (line, format) in [
            ("cnlab nope -o json", Format::Json),
            ("cnlab --output=yaml nope", Format::Yaml),
            ("cnlab -oname nope", Format::Name),
            ("cnlab nope -o", Format::Table),
            ("cnlab nope -o nope", Format::Table),
            ("cnlab nope -- -o json", Format::Table),
        ] {
            assert_eq!(wanted_format(&words(line)), format, "{line}");
        }
    }

    #[test]
    fn wrong_command_lines_get_the_error_form() {
        let environment = Environment::default();
        for (line, says) in [
            ("cnlab sevrer list", "unrecognized subcommand"),
            ("cnlab server create", "required arguments"),
            ("cnlab server", "a command is missing"),
            ("cnlab -o nope whoami", "invalid value 'nope'"),
        ] {
            let error = cli::command(environment.program)
                .try_get_matches_from(words(line))
                .unwrap_err();
            let failure = usage(&environment, &error);
            assert_eq!(failure.exit(), crate::error::Exit::Usage);
            assert!(failure.facts().message.contains(says), "{line}: {failure}");
            assert!(failure.facts().try_this.is_some(), "{line}");
        }
    }
}
