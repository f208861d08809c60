//! Watching a server or run: its present state, then every change, and nothing after its
//! deletion.

use std::{sync::Arc, time::Duration};

use cnlab_model::id::WorkloadId;
use cnlab_service::Caller;
use scheduler_core::server::State;
use tokio::sync::{
    broadcast::{Receiver, error::RecvError},
    mpsc,
};

use super::{App, Change, view::View};
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
pub(crate) type Views<T> = mpsc::Receiver<Result<<T as Watched>::View, SchedulerError>>;

/// Something that can be watched.
pub(crate) trait Watched: Sized + Clone + Send + Sync + 'static {
    /// As callers see it.
    type View: Send + 'static;

    /// Which one this is.
    fn id(&self) -> WorkloadId;

    /// Grows with every change.
    fn version(&self) -> u64;

    /// Whether no further change comes.
    fn is_deleted(&self) -> bool;

    /// The new state, if the change is one of this kind.
    fn of(change: &Change) -> Option<&Self>;

    /// The row as it is now.
    fn read(&self, app: &App) -> impl Future<Output = Result<Option<Self>, SchedulerError>> + Send;

    /// How callers see it now.
    fn view(self, app: &App) -> impl Future<Output = Result<Self::View, SchedulerError>> + Send;
}

impl Watched for Server {
    type View = View;

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
            Change::Server(server) => Some(server),
            Change::Run(_) => None,
        }
    }

    async fn read(&self, app: &App) -> Result<Option<Self>, SchedulerError> {
        store::server::get(app.db.read(), self.id).await
    }

    async fn view(self, app: &App) -> Result<View, SchedulerError> {
        app.view(self).await
    }
}

impl App {
    /// Starts to watch the server that a caller means.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Views<Server>, SchedulerError> {
        // Before the read, so that no change falls in between.
        let changes = self.changes();
        let server = self.find(caller, wanted).await?;
        Ok(self.send_changes_of(server, changes))
    }

    /// Sends what was found and what it becomes.
    pub(super) fn send_changes_of<T: Watched>(
        self: &Arc<Self>,
        first: T,
        changes: Receiver<Arc<Change>>,
    ) -> Views<T> {
        let (views, received) = mpsc::channel(AHEAD);
        let app = Arc::clone(self);
        self.runtime.tasks.spawn("watch", async move {
            let token = app.runtime.tasks.token().clone();
            tokio::select! {
                () = token.cancelled() => {}
                () = views.closed() => {}
                () = app.send_changes(first, changes, &views) => {}
            }
        });
        received
    }

    /// The changes from now on, for a watch that begins with a read.
    pub(super) fn changes(&self) -> Receiver<Arc<Change>> {
        self.changes.subscribe()
    }

    async fn send_changes<T: Watched>(
        &self,
        first: T,
        mut changes: Receiver<Arc<Change>>,
        views: &mpsc::Sender<Result<T::View, SchedulerError>>,
    ) {
        let mut sent = 0;
        let mut latest = first;
        let mut is_news = true;
        loop {
            if is_news && latest.version() > sent {
                sent = latest.version();
                let last = latest.is_deleted();
                let view = latest.clone().view(self).await;
                let failed = view.is_err();
                if views.send(view).await.is_err() || last || failed {
                    return;
                }
            }
            let change = tokio::time::timeout(REREAD, changes.recv()).await;
            let next = match change {
                Ok(Ok(change)) => T::of(&change)
                    .filter(|changed| changed.id() == latest.id())
                    .cloned(),
                // Too slow for the channel, or nobody said anything: the row knows.
                Ok(Err(RecvError::Lagged(_))) | Err(_) => match latest.read(self).await {
                    Ok(row) => row,
                    Err(error) => {
                        let _ = views.send(Err(error)).await;
                        return;
                    }
                },
                Ok(Err(RecvError::Closed)) => return,
            };
            is_news = next.is_some();
            latest = next.unwrap_or(latest);
        }
    }
}
