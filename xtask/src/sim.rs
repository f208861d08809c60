//! The simulator of the scheduler: the public trace and synthetic days, in virtual time.

use anyhow::Result;
use clap::ValueEnum;

use crate::run::{cargo, run};

/// What is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// The public trace: what share of the GPUs each policy gives away
    Trace,
    /// Days with queues: waits, slowdown, fairness and missed deadlines beside simpler schedulers
    Days,
}

/// How it is replayed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Simulation {
    /// One of them; both without it
    #[arg(value_enum)]
    what: Option<What>,
    /// Draw the pictures under docs/benchmarks
    #[arg(long)]
    draw: bool,
    /// The trace: fewer seeds and the default workload only
    #[arg(long)]
    quick: bool,
}

/// Replays and prints.
pub(crate) fn sim(wanted: &Simulation) -> Result<()> {
    let of = |what| wanted.what.is_none_or(|only| only == what);
    if of(What::Trace) {
        let mut options = vec!["grid"];
        if wanted.quick {
            options.extend(["workloads=default", "seeds=1"]);
        }
        if wanted.draw {
            options.push("svg=docs/benchmarks/scheduler-packing.svg");
        }
        simulator(&options)?;
    }
    if of(What::Days) {
        let mut options = vec!["days"];
        if wanted.draw {
            options.push("svg=docs/benchmarks/scheduler-days.svg");
        }
        simulator(&options)?;
    }
    Ok(())
}

fn simulator(options: &[&str]) -> Result<()> {
    let mut arguments = vec![
        "run",
        "--release",
        "--locked",
        "--quiet",
        "-p",
        "scheduler-sim",
        "--",
    ];
    arguments.extend(options);
    run(cargo(&arguments))
}
