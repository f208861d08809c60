//! `cargo xtask <verb>`: what people who work on CNLab run, and what CI runs.

mod bench;
mod lint;
mod provision;
mod run;
mod sim;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tools for people who work on CNLab.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Installs what is missing (Debian, as root; elsewhere it lists it) and runs every test
    Test,
    /// The same tests for longer, and every Nix build
    Soak,
    /// Format, clippy, licences and sources of dependencies, documentation
    Lint,
    /// Measures, prints a table and writes it under docs/benchmarks and target/bench
    Bench {
        /// Which bench
        #[arg(value_enum)]
        name: bench::Name,
        #[command(flatten)]
        extent: bench::Extent,
    },
    /// Replays the public trace and synthetic days through the scheduler, beside simpler ones
    Sim(sim::Simulation),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.verb {
        Verb::Test => test::test(),
        Verb::Soak => test::soak(),
        Verb::Lint => lint::lint(),
        Verb::Bench { name, extent } => bench::bench(name, &extent),
        Verb::Sim(wanted) => sim::sim(&wanted),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::say(&format!("failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
