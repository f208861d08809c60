//! The tree against its own rules: who may import whom, and what the documents name against
//! what exists.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commands;
mod configuration;
mod documents;
mod layers;
mod rust_source;

use std::path::PathBuf;

/// The root of the workspace.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}
