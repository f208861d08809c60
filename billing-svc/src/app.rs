//! The use cases: load, ask the core, apply.

mod account;
mod bootstrap;
mod credential;
mod usage;

use std::sync::Arc;

use cnlab_db::Db;
use cnlab_model::Timestamp;
use cnlab_service::{
    Runtime,
    runtime::{Clock, IdSource},
};

pub(crate) use usage::Opening;

/// What all use cases share.
#[derive(Debug)]
pub(crate) struct App {
    db: Db,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
}

impl App {
    pub(crate) fn new(db: Db, runtime: &Runtime) -> Self {
        Self {
            db,
            clock: Arc::clone(&runtime.clock),
            ids: Arc::clone(&runtime.ids),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) async fn close(&self) {
        self.db.close().await;
    }
}
