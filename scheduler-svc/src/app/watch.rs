//! Watching a server: its present state, then every change, and nothing after its deletion.

use std::{sync::Arc, time::Duration};

use cnlab_model::id::ServerId;
use cnlab_service::Caller;
use scheduler_core::server::State;
use tokio::sync::{broadcast::error::RecvError, mpsc};

use super::{App, view::View};
use crate::{
    error::SchedulerError,
    store::{self, record::Server},
};

/// Views that a slow reader may lag behind.
const AHEAD: usize = 16;
/// How often the row is read although nobody told of a change: another process may have made
/// one.
const REREAD: Duration = Duration::from_secs(5);

/// What a watcher receives.
pub(crate) type Views = mpsc::Receiver<Result<View, SchedulerError>>;

impl App {
    /// Starts to watch the server that a caller means.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Views, SchedulerError> {
        // Before the read, so that no change falls in between.
        let changes = self.changes.subscribe();
        let server = self.find(caller, wanted).await?;
        let (views, received) = mpsc::channel(AHEAD);
        let app = Arc::clone(self);
        self.runtime.tasks.spawn("watch", async move {
            let token = app.runtime.tasks.token().clone();
            let id = server.id;
            tokio::select! {
                () = token.cancelled() => {}
                () = views.closed() => {}
                () = app.send_changes(id, server, changes, &views) => {}
            }
        });
        Ok(received)
    }

    async fn send_changes(
        &self,
        id: ServerId,
        first: Server,
        mut changes: tokio::sync::broadcast::Receiver<Arc<Server>>,
        views: &mpsc::Sender<Result<View, SchedulerError>>,
    ) {
        let mut sent = 0;
        let mut next = Some(first);
        loop {
            if let Some(server) = next.take().filter(|server| server.version > sent) {
                sent = server.version;
                let last = server.state == State::Deleted;
                let view = self.view(server).await;
                let failed = view.is_err();
                if views.send(view).await.is_err() || last || failed {
                    return;
                }
            }
            let change = tokio::time::timeout(REREAD, changes.recv()).await;
            next = match change {
                Ok(Ok(change)) if change.id == id => Some((*change).clone()),
                Ok(Ok(_)) => None,
                // Too slow for the channel, or nobody said anything: the row knows.
                Ok(Err(RecvError::Lagged(_))) | Err(_) => {
                    match store::server::get(self.db.read(), id).await {
                        Ok(server) => server,
                        Err(error) => {
                            let _ = views.send(Err(error)).await;
                            return;
                        }
                    }
                }
                Ok(Err(RecvError::Closed)) => return,
            };
        }
    }
}
