//! Forgets the answers of requests that nobody repeats any more.

use std::{sync::Arc, time::Duration};

use cnlab_db::idempotency;
use cnlab_service::Next;

use crate::app::App;

const EVERY: Duration = Duration::from_secs(3600);

/// Removes what is older than it is kept for.
pub(crate) async fn tick(app: &Arc<App>) -> Next {
    match idempotency::purge(&app.db, app.runtime.clock.now()).await {
        Ok(0) => {}
        Ok(rows) => tracing::debug!(rows, "old idempotency keys removed"),
        Err(error) => tracing::warn!(%error, "old idempotency keys were not removed"),
    }
    Next::After(EVERY)
}
