//! Says how full the cell is and how much waits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cnlab_db::outbox;
use cnlab_model::BLOCKS_PER_GPU;
use cnlab_service::Next;

use crate::{app::App, error::SchedulerError, store::cell::Waiter};

const EVERY: Duration = Duration::from_secs(15);

/// Looks once.
pub(crate) async fn tick(app: &Arc<App>) -> Next {
    if let Err(error) = look(app).await {
        tracing::debug!(%error, "the cell could not be counted");
    }
    Next::After(EVERY)
}

async fn look(app: &App) -> Result<(), SchedulerError> {
    let cell = app.cell().await?;
    let mut types: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for gpu in &cell.gpus {
        let (taken, blocks) = types.entry(&gpu.family).or_default();
        *taken += u64::from(gpu.taken.count());
        *blocks += u64::from(BLOCKS_PER_GPU);
    }
    for (family, (taken, blocks)) in types {
        app.metrics.capacity(family, taken, blocks);
    }
    let (mut servers, mut runs) = (0, 0);
    for waiting in &cell.queue {
        match waiting.who {
            Waiter::Server(_) => servers += 1,
            Waiter::Run(_) => runs += 1,
        }
    }
    app.metrics
        .backlog(servers, runs, outbox::waiting(&app.db).await?);
    Ok(())
}
