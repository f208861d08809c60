//! The use cases: load, ask the core, write down, tell.
//!
//! A change of a server or run is one transaction, which also holds the messages for other services
//! and the answer for a repeated request. What follows a commit here (waking workers, telling
//! watchers) may be lost in a crash; nothing depends on it.

pub(crate) mod catalog;
pub(crate) mod create;
pub(crate) mod find;
pub(crate) mod lifecycle;
pub(crate) mod once;
pub(crate) mod open;
pub(crate) mod place;
pub(crate) mod renew;
pub(crate) mod report;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod view;
pub(crate) mod watch;

use std::sync::Arc;

use cnlab_db::Db;
use cnlab_lease::LeaseStore;
use cnlab_model::Timestamp;
use cnlab_service::{Runtime, Wake};
use tokio::sync::{Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{GrantConfig, NotebookConfig},
    metrics::Metrics,
    ports::{Billing, Nodes},
    store::{
        cell::{Cell, silent_before},
        record::{Run, Server},
    },
};
use catalog::Catalogue;

/// A server or run as it was just written down.
#[derive(Debug)]
pub(crate) enum Change {
    Server(Server),
    Run(Run),
}

impl From<&Server> for Change {
    fn from(server: &Server) -> Self {
        Self::Server(server.clone())
    }
}

impl From<&Run> for Change {
    fn from(run: &Run) -> Self {
        Self::Run(run.clone())
    }
}

/// Changes that a watcher may lag behind before it reads the row again instead.
const CHANGES_KEPT: usize = 1024;

/// Everything that a use case needs.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) db: Db,
    pub(crate) leases: Arc<dyn LeaseStore>,
    pub(crate) nodes: Arc<dyn Nodes>,
    pub(crate) billing: Arc<dyn Billing>,
    pub(crate) catalogue: Catalogue,
    pub(crate) notebook: NotebookConfig,
    pub(crate) grants: GrantConfig,
    pub(crate) runtime: Runtime,
    pub(crate) metrics: Metrics,
    /// Wakes the dispatcher of the outbox.
    pub(crate) outbox: Wake,
    /// Wakes the queue.
    pub(crate) queue: Wake,
    /// Cancelled when serving ends, which open streams must not hold up.
    pub(crate) closing: CancellationToken,
    changes: broadcast::Sender<Arc<Change>>,
    /// One placement at a time in this process, so that a lost compare-and-set can only come
    /// from another process.
    placing: Semaphore,
}

/// What an [`App`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) db: Db,
    pub(crate) leases: Arc<dyn LeaseStore>,
    pub(crate) nodes: Arc<dyn Nodes>,
    pub(crate) billing: Arc<dyn Billing>,
    pub(crate) catalogue: Catalogue,
    pub(crate) notebook: NotebookConfig,
    pub(crate) grants: GrantConfig,
    pub(crate) runtime: Runtime,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            db: parts.db,
            leases: parts.leases,
            nodes: parts.nodes,
            billing: parts.billing,
            catalogue: parts.catalogue,
            notebook: parts.notebook,
            grants: parts.grants,
            runtime: parts.runtime,
            metrics: Metrics::new(),
            outbox: Wake::new(),
            queue: Wake::new(),
            closing: CancellationToken::new(),
            changes: broadcast::Sender::new(CHANGES_KEPT),
            placing: Semaphore::new(1),
        }
    }

    fn now(&self) -> Timestamp {
        self.runtime.clock.now()
    }

    /// The cell as it is now.
    pub(crate) async fn cell(&self) -> Result<Cell, crate::error::SchedulerError> {
        let silent = silent_before(self.now(), self.grants.ttl.0);
        Cell::load(self.db.read(), silent).await
    }

    /// Tells watchers and workers of a committed change.
    fn publish(&self, change: impl Into<Change>) {
        // Nobody may be watching.
        let _ = self.changes.send(Arc::new(change.into()));
        self.outbox.wake();
    }
}
