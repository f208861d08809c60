//! A server as callers see it.

use std::time::Duration;

use cnlab_model::Timestamp;
use scheduler_core::{estimate, server::State};
use serde::{Deserialize, Serialize};

use super::App;
use crate::{
    error::SchedulerError,
    store::{
        self,
        record::{Grant, Server},
    },
};

/// A server with its grant, its node's name and what is left of its start.
///
/// It is also the kept answer of a request, so that a repetition gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    pub(crate) server: Server,
    pub(crate) grant: Option<Grant>,
    pub(crate) node_name: Option<String>,
    /// From the moment at which this was made.
    pub(crate) eta: Option<Duration>,
}

impl View {
    pub(crate) fn new(
        server: Server,
        grant: Option<Grant>,
        node_name: Option<String>,
        now: Timestamp,
    ) -> Self {
        let waits = match server.state {
            State::Queued | State::Provisioning { .. } => true,
            State::Ready
            | State::Stopping
            | State::Stopped
            | State::Failed
            | State::Deleting
            | State::Deleted => false,
        };
        let eta = server
            .expected_at
            .filter(|_| waits)
            .map(|at| estimate::remaining(at.since(now), Duration::ZERO));
        Self {
            server,
            grant,
            node_name,
            eta,
        }
    }
}

impl App {
    /// The view of a server that was read.
    pub(crate) async fn view(&self, server: Server) -> Result<View, SchedulerError> {
        let (grant, node_name) =
            store::surroundings(self.db.read(), server.grant, server.node).await?;
        Ok(View::new(server, grant, node_name, self.now()))
    }
}
