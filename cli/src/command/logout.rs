//! `cnlab logout`: forgets the token of one gateway.

use crate::{
    command::Setting, console::Console, context, error::Result, output::Document, session,
};

/// Forgets the token.
///
/// # Errors
/// When no gateway is known or the file cannot be written.
pub fn run(setting: Setting<'_>, console: &mut Console) -> Result<()> {
    let paths = setting.paths()?;
    let (endpoint, _) = session::find(&setting.target(), &paths, setting.environment)?;
    let removed = context::forget_token(&paths, endpoint.as_str())?;
    if setting.environment.token.is_some() {
        console.note("note: a token is still set in the environment, and counts")?;
    }
    console.result(
        || {
            if removed {
                format!(
                    "✓ Logged out of {endpoint}; the token itself stays valid until it is revoked"
                )
            } else {
                format!("✓ Nobody was logged in at {endpoint}")
            }
        },
        || vec![endpoint.to_string()],
        || {
            Ok(Document::new("Logout")
                .with("endpoint", endpoint.as_str())
                .with("removed", removed))
        },
    )
}
