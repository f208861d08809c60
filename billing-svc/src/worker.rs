//! The loops: one that forgets what expired long ago.

use std::time::Duration;

use cnlab_service::{Next, status};

use crate::app::App;

const PURGE_EVERY: Duration = Duration::from_secs(60 * 60);
const AFTER_A_FAILURE: Duration = Duration::from_secs(60);

/// Deletes expired codes and sessions.
pub(crate) async fn purge(app: &App) -> Next {
    match app.purge_credentials().await {
        Ok(deleted) => {
            if deleted > 0 {
                tracing::info!(deleted, "expired sign-ins deleted");
            }
            Next::After(PURGE_EVERY)
        }
        Err(error) => {
            tracing::warn!(error = %status::chain(&error), "deleting expired sign-ins failed");
            Next::After(AFTER_A_FAILURE)
        }
    }
}
