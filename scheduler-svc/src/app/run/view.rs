//! A run as callers see it.

use std::time::Duration;

use cnlab_model::{Timestamp, id::WorkloadId};
use scheduler_core::{estimate, run::State};
use serde::{Deserialize, Serialize};

use crate::{
    app::{App, Change, watch::Watched},
    error::SchedulerError,
    store::{
        self,
        record::{Grant, Run},
    },
};

/// A run with its grant, its node's name and what is left until it begins.
///
/// It is also the kept answer of a request, so that a repetition gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunView {
    pub(crate) run: Run,
    pub(crate) grant: Option<Grant>,
    pub(crate) node_name: Option<String>,
    /// From the moment at which this was made.
    pub(crate) eta: Option<Duration>,
}

impl RunView {
    pub(crate) fn new(
        run: Run,
        grant: Option<Grant>,
        node_name: Option<String>,
        now: Timestamp,
    ) -> Self {
        let waits = matches!(run.state, State::Queued | State::Provisioning { .. });
        let eta = run
            .expected_at
            .filter(|_| waits)
            .map(|at| estimate::remaining(at.since(now), Duration::ZERO));
        Self {
            run,
            grant,
            node_name,
            eta,
        }
    }
}

impl Watched for Run {
    type View = RunView;

    fn id(&self) -> WorkloadId {
        self.id.into()
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn is_deleted(&self) -> bool {
        self.state == State::Deleted
    }

    fn of(change: &Change) -> Option<&Self> {
        match change {
            Change::Run(run) => Some(run),
            Change::Server(_) => None,
        }
    }

    async fn read(&self, app: &App) -> Result<Option<Self>, SchedulerError> {
        store::run::get(app.db.read(), self.id).await
    }

    async fn view(self, app: &App) -> Result<RunView, SchedulerError> {
        app.run_view(self).await
    }
}

impl App {
    /// The view of a run that was read.
    pub(super) async fn run_view(&self, run: Run) -> Result<RunView, SchedulerError> {
        let (grant, node_name) = store::surroundings(self.db.read(), run.grant, run.node).await?;
        Ok(RunView::new(run, grant, node_name, self.now()))
    }
}
