//! The queue: when capacity frees, the oldest server that fits gets it.

use std::{sync::Arc, time::Duration};

use cnlab_service::Next;

use crate::app::App;

/// Estimates and silent nodes change without anybody saying so.
const AGAIN: Duration = Duration::from_secs(10);
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// Places what fits.
pub(crate) async fn tick(app: &Arc<App>) -> Next {
    match app.place_queued().await {
        Ok(0) => Next::WhenWoken,
        Ok(_) => Next::After(AGAIN),
        Err(error) => {
            tracing::warn!(%error, "the queue could not be looked through");
            Next::After(AFTER_ERROR)
        }
    }
}
