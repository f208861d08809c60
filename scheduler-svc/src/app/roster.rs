//! The nodes: who they are, and where the notebook of a server is.

use cnlab_model::{
    ProjectName, ServerName,
    id::{NodeId, ServerId, UserId},
};
use scheduler_core::server::State;

use super::App;
use crate::{
    error::SchedulerError,
    store::{
        self, grant,
        record::{Gpu, Node, Server},
        roster,
    },
};

/// Where the notebook of a server is, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) server: ServerId,
    pub(crate) name: ServerName,
    pub(crate) owner: UserId,
    pub(crate) project: ProjectName,
    /// Node and fence, while it has a slice.
    pub(crate) place: Option<(String, u64)>,
    pub(crate) ready: bool,
    pub(crate) state_text: String,
}

impl App {
    /// Writes down a node as it is now.
    pub(crate) async fn register(&self, node: &Node, gpus: &[Gpu]) -> Result<(), SchedulerError> {
        self.write(|tx| async move { roster::register(&tx, node, gpus).await })
            .await?;
        tracing::info!(cnlab.node_id = %node.id, name = node.name, gpus = gpus.len(), "node registered");
        self.cell.registered(node, gpus);
        // What could not be sent to it may go out now.
        self.outbox.wake();
        Ok(())
    }

    /// The node of this id.
    pub(crate) async fn node(&self, id: NodeId) -> Result<Option<Node>, SchedulerError> {
        roster::node(self.db.read(), id).await
    }

    /// Where the notebook of a server is.
    pub(crate) async fn route(&self, id: ServerId) -> Result<Route, SchedulerError> {
        let db = self.db.read();
        let server = store::server::get(db, id)
            .await?
            .filter(|server| server.state != State::Deleted)
            .ok_or_else(|| SchedulerError::ServerUnknown {
                wanted: id.to_string(),
                near: Vec::new(),
            })?;
        let mut place = None;
        if let (Some(node), Some(id)) = (server.node, server.grant)
            && let (Some(node), Some(grant)) =
                (roster::node(db, node).await?, grant::get(db, id).await?)
        {
            place = Some((node.endpoint, grant.fence));
        }
        Ok(Route {
            ready: server.state == State::Ready && place.is_some(),
            state_text: state_text(&server),
            server: server.id,
            name: server.name,
            owner: server.owner,
            project: server.project,
            place,
        })
    }
}

/// What to tell a visitor.
fn state_text(server: &Server) -> String {
    let detail = server.phase_detail.as_str();
    match server.state {
        State::Ready => "ready".to_owned(),
        State::Failed => match &server.failure {
            Some(failure) => format!("failed: {}", failure.message),
            None => "failed".to_owned(),
        },
        State::Queued
        | State::Provisioning { .. }
        | State::Stopping
        | State::Stopped
        | State::Deleting
        | State::Deleted
            if detail.is_empty() =>
        {
            server.state.to_string()
        }
        State::Queued
        | State::Provisioning { .. }
        | State::Stopping
        | State::Stopped
        | State::Deleting
        | State::Deleted => format!("{}: {detail}", server.state),
    }
}
