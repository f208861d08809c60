//! Benches: built optimised, run alone, their rows kept beside the commit and the machine.

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    provision,
    run::{cargo, run},
};

/// Which bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// The way from `server create` to a page, and the gateway beside nginx
    Front,
}

/// Runs one bench.
pub(crate) fn bench(name: Name, quick: bool) -> Result<()> {
    provision::for_benches()?;
    match name {
        Name::Front => {
            run(cargo(&[
                "build",
                "--release",
                "--locked",
                "-p",
                "cnlab",
                "-p",
                "gateway",
            ]))?;
            let mut arguments = vec![
                "bench",
                "--locked",
                "-p",
                "cnlab-tests",
                "--bench",
                "front",
                "--",
            ];
            if quick {
                arguments.push("--quick");
            }
            run(cargo(&arguments))
        }
    }
}
