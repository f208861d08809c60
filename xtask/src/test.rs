//! The tests: one command that is everything CI needs, and the same code for longer.

use std::ffi::OsStr;

use anyhow::Result;

use crate::{
    provision,
    run::{cargo, program, run},
};

/// How many rounds the tests with random moments take.
const ROUNDS: &str = "CNLAB_SOAK_ROUNDS";
/// Of a soak, where nobody says otherwise.
const MORE_ROUNDS: &str = "50";

/// Everything that CI needs.
pub(crate) fn test() -> Result<()> {
    provision::for_tests()?;
    suites(&[])?;
    nix(Profile::Dev, &["parse"])?;
    nix(Profile::Dev, &["eval"])?;
    nix(Profile::Dev, &["module", "gateway"])?;
    // Two services in one shared target folder: the mechanism is the same for all, and the
    // rest of them is built, optimised, by `soak`.
    nix(Profile::Dev, &["build", "gateway", "node-svc"])?;
    nix(Profile::Dev, &["repro"])
}

/// The same for longer, and every Nix build as it is released.
pub(crate) fn soak() -> Result<()> {
    test()?;
    let rounds = std::env::var_os(ROUNDS).unwrap_or_else(|| MORE_ROUNDS.into());
    for _ in 0..4 {
        suites(&[(ROUNDS, &rounds)])?;
    }
    nix(
        Profile::Release,
        &[
            "build",
            "gateway",
            "scheduler-svc",
            "node-svc",
            "migration-svc",
            "cloud-svc",
            "billing-svc",
            "cnlab",
        ],
    )?;
    nix(Profile::Release, &["repro"])
}

fn suites(environment: &[(&str, &OsStr)]) -> Result<()> {
    // Binaries first: the end-to-end suites start them as a user would.
    run(cargo(&["test", "--workspace", "--no-run", "--locked"]))?;
    let mut tests = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    tests.envs(environment.iter().copied());
    run(tests)
}

/// How the Nix builds are compiled. What is checked is the packaging, not the optimiser.
#[derive(Debug, Clone, Copy)]
enum Profile {
    Dev,
    Release,
}

fn nix(profile: Profile, arguments: &[&str]) -> Result<()> {
    let mut all = vec!["nix/check.sh"];
    all.extend(arguments);
    let mut check = program("bash", &all);
    check.env(
        "CNLAB_NIX_PROFILE",
        match profile {
            Profile::Dev => "dev",
            Profile::Release => "release",
        },
    );
    run(check)
}
