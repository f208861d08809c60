//! The tests: one command that is everything CI needs, and the same code for longer.

use anyhow::Result;

use crate::{
    provision,
    run::{cargo, program, run},
};

/// Everything that CI needs.
pub(crate) fn test() -> Result<()> {
    provision::for_tests()?;
    suites()?;
    nix(&["parse"])?;
    nix(&["eval"])?;
    nix(&["module"])?;
    // Two services in one shared target folder: the mechanism is the same for all, and the
    // rest of them is built by `soak`.
    nix(&["build", "billing-svc", "cnlab"])
}

/// The same for longer, and every Nix build.
pub(crate) fn soak() -> Result<()> {
    test()?;
    for _ in 0..4 {
        suites()?;
    }
    nix(&[
        "build",
        "gateway",
        "scheduler-svc",
        "node-svc",
        "migration-svc",
        "cloud-svc",
        "billing-svc",
        "cnlab",
    ])?;
    nix(&["repro"])
}

fn suites() -> Result<()> {
    // Binaries first: the end-to-end suites start them as a user would.
    run(cargo(&["test", "--workspace", "--no-run", "--locked"]))?;
    run(cargo(&["test", "--workspace", "--locked"]))
}

fn nix(arguments: &[&str]) -> Result<()> {
    let mut all = vec!["nix/check.sh"];
    all.extend(arguments);
    run(program("bash", &all))
}
