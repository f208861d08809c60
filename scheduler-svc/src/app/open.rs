//! The way into a server: links that sign a browser in, and what its processes wrote.

use cnlab_model::Timestamp;
use cnlab_service::Caller;
use scheduler_core::server::State;

use super::App;
use crate::{
    error::SchedulerError,
    ports::Logs,
    store::{self, roster},
};

/// A way into a server.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Signs one browser in, once.
    pub(crate) link: String,
    pub(crate) url: String,
    pub(crate) expires_at: Timestamp,
}

impl App {
    /// Makes a link that signs the caller's browser in to a server that is ready.
    pub(crate) async fn open(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Opened, SchedulerError> {
        let server = self.find(caller, wanted).await?;
        match server.state {
            State::Ready => {}
            State::Queued | State::Provisioning { .. } => {
                return Err(SchedulerError::NotReady {
                    state: server.state.to_string(),
                    retry: true,
                });
            }
            State::Stopping | State::Stopped | State::Failed | State::Deleting | State::Deleted => {
                return Err(SchedulerError::NotReady {
                    state: server.state.to_string(),
                    retry: false,
                });
            }
        }
        let code = self
            .billing
            .issue_open_code(caller.user_id, server.id)
            .await
            .map_err(SchedulerError::Upstream)?;
        Ok(Opened {
            link: self.notebook.open_link(server.id, &code.code),
            url: self.notebook.url(server.id),
            expires_at: code.expires_at,
        })
    }

    /// What the processes of a server wrote, also after they ended.
    pub(crate) async fn logs(
        &self,
        caller: &Caller,
        wanted: &str,
        follow: bool,
        tail_lines: u32,
    ) -> Result<Logs, SchedulerError> {
        let server = self.find(caller, wanted).await?;
        let node = match server.node {
            Some(node) => Some(node),
            None => store::volume::node_of(self.db.read(), server.volume).await?,
        };
        let node = match node {
            Some(id) => roster::node(self.db.read(), id).await?,
            None => None,
        };
        let node = node.ok_or(SchedulerError::NeverRan)?;
        self.nodes
            .logs(&node.endpoint, server.id.into(), follow, tail_lines)
            .await
            .map_err(SchedulerError::Upstream)
    }
}
