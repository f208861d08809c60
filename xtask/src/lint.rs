//! What a reviewer should not have to look for.

use anyhow::Result;

use crate::run::{answers, cargo, run, say};

const CARGO_DENY: &str = "0.20.2";

/// Format, clippy, dependencies, documentation.
pub(crate) fn lint() -> Result<()> {
    run(cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    if !answers("cargo-deny", &["--version"]) {
        say("installing cargo-deny");
        run(cargo(&[
            "install",
            "--locked",
            "--quiet",
            "cargo-deny",
            "--version",
            CARGO_DENY,
        ]))?;
    }
    // Advisories need their database from a host that is not always reached.
    run(cargo(&[
        "deny",
        "--workspace",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))?;
    let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    run(docs)
}
