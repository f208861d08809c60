//! The use cases: load, ask the core, write down, tell.
//!
//! A change of a server or run is one transaction, which also holds the messages for other services
//! and the answer for a repeated request. What follows a commit here (waking workers, telling
//! watchers) may be lost in a crash; nothing depends on it.

pub(crate) mod catalog;
pub(crate) mod create;
pub(crate) mod explain;
pub(crate) mod find;
pub(crate) mod lifecycle;
pub(crate) mod node;
pub(crate) mod once;
pub(crate) mod open;
pub(crate) mod renew;
pub(crate) mod report;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod view;
pub(crate) mod watch;

use std::sync::Arc;

use cnlab_db::{Db, Tx};
use cnlab_lease::LeaseStore;
use cnlab_model::Timestamp;
use cnlab_service::{Runtime, Wake};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{
    cell::{Cell, Teams, Who},
    config::{GrantConfig, NotebookConfig},
    error::SchedulerError,
    metrics::Metrics,
    ports::{Billing, Nodes},
    store::{
        lead,
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

impl From<&Server> for Who {
    fn from(server: &Server) -> Self {
        Self::Server(Box::new(server.clone()))
    }
}

impl From<&Run> for Who {
    fn from(run: &Run) -> Self {
        Self::Run(Box::new(run.clone()))
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
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) notebook: NotebookConfig,
    pub(crate) grants: GrantConfig,
    pub(crate) teams: Arc<Teams>,
    pub(crate) runtime: Runtime,
    pub(crate) metrics: Metrics,
    /// Wakes the dispatcher of the outbox.
    pub(crate) outbox: Wake,
    /// Who places.
    pub(crate) cell: Cell,
    /// Cancelled when serving ends, which open streams must not hold up.
    pub(crate) closing: CancellationToken,
    changes: broadcast::Sender<Arc<Change>>,
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
    pub(crate) teams: Teams,
    pub(crate) runtime: Runtime,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            db: parts.db,
            leases: parts.leases,
            nodes: parts.nodes,
            billing: parts.billing,
            catalogue: Arc::new(parts.catalogue),
            notebook: parts.notebook,
            grants: parts.grants,
            teams: Arc::new(parts.teams),
            runtime: parts.runtime,
            metrics: Metrics::new(),
            outbox: Wake::new(),
            cell: Cell::new(),
            closing: CancellationToken::new(),
            changes: broadcast::Sender::new(CHANGES_KEPT),
        }
    }

    fn now(&self) -> Timestamp {
        self.runtime.clock.now()
    }

    /// Runs `body` in a write transaction of the leader: one that another scheduler has taken
    /// the lead from without its knowledge writes nothing, since nobody would hear of it there.
    ///
    /// # Errors
    /// [`SchedulerError::NotLeading`], those of [`Db::write`] and those of `body`.
    pub(crate) async fn write<T, F, Fut>(&self, body: F) -> Result<T, SchedulerError>
    where
        F: Fn(Tx) -> Fut + Sync,
        Fut: Future<Output = Result<T, SchedulerError>> + Send,
        T: Send,
    {
        let (term, body) = (self.cell.term()?, &body);
        self.db
            .write(|tx| async move {
                lead::keep(&tx, term).await?;
                body(tx).await
            })
            .await
    }

    /// Tells watchers, workers and who places of a committed change.
    fn publish(&self, changed: impl Into<Who>) {
        let who = changed.into();
        self.announce(&who);
        self.outbox.wake();
        self.cell.changed(who);
    }

    /// Tells watchers of a committed change.
    pub(crate) fn announce(&self, who: &Who) {
        let change = match who {
            Who::Server(server) => Change::Server((**server).clone()),
            Who::Run(run) => Change::Run((**run).clone()),
        };
        // Nobody may be watching.
        let _ = self.changes.send(Arc::new(change));
    }
}
