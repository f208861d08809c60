//! The quickstart as a newcomer does it: `cnlab up`, a browser, a second terminal, and what
//! may happen to the stack meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod story;

use std::path::PathBuf;

/// Where screenshots are left for a person to look at.
fn screenshots() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
