//! Says how full the cell is and how much waits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cnlab_db::outbox;
use cnlab_model::BLOCKS_PER_GPU;
use cnlab_service::Next;

use crate::{
    app::App,
    cell::{Image, Who},
    error::SchedulerError,
};

const EVERY: Duration = Duration::from_secs(15);

/// Looks once.
pub(crate) async fn tick(app: &Arc<App>) -> Next {
    if let Err(error) = look(app).await {
        tracing::debug!(%error, "the cell could not be counted");
    }
    Next::After(EVERY)
}

async fn look(app: &App) -> Result<(), SchedulerError> {
    let (types, servers, runs) = app.cell.ask(|image, _| count(image)).await?;
    for (family, (taken, blocks)) in types {
        app.metrics.capacity(&family, taken, blocks);
    }
    app.metrics
        .backlog(servers, runs, outbox::waiting(&app.db).await?);
    Ok(())
}

type Types = BTreeMap<String, (u64, u64)>;

/// Taken and all blocks by type of GPU, and how many servers and runs wait.
fn count(image: &Image) -> (Types, u64, u64) {
    let mut types = Types::new();
    for gpu in image.gpus() {
        let (taken, blocks) = types.entry(gpu.family.clone()).or_default();
        *taken += u64::from(gpu.taken.count());
        *blocks += u64::from(BLOCKS_PER_GPU);
    }
    let (mut servers, mut runs) = (0, 0);
    for who in image.waiting() {
        match who {
            Who::Server(_) => servers += 1,
            Who::Run(_) => runs += 1,
        }
    }
    (types, servers, runs)
}
