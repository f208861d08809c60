//! `cnlab version`.

use crate::{command::Setting, console::Console, error::Result, output::Document};

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints the version.
///
/// # Errors
/// When stdout cannot be written to.
pub fn run(setting: Setting<'_>, console: &mut Console) -> Result<()> {
    let program = setting.environment.program;
    console.result(
        || format!("{program} {VERSION}"),
        || vec![VERSION.to_owned()],
        || {
            Ok(Document::new("Version")
                .with("program", program.name())
                .with("version", VERSION)
                .with("up", cfg!(feature = "up")))
        },
    )
}
