//! Tells other services what the outbox holds, at least once and in order per server.
//!
//! A delivery holds its message by a short claim, which it renews for as long as it takes; a
//! delivery whose claim is lost is broken off. So nothing is taken over from a dispatcher that
//! works, however many there are, and what a killed one left goes out when its claims have run
//! out, without any step at the start.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cnlab_db::outbox::{self, Message};
use cnlab_model::{
    ErrorKind,
    id::{GrantId, NodeId, ServerId, VolumeId},
};
use cnlab_service::{Next, Wake, trace};
use scheduler_core::server::State;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::destinations::{Destinations, Ended};
use crate::{
    app::{
        App,
        report::{failure_of, lost_by_node},
    },
    error::{CallError, SchedulerError},
    ports::{Launch, Slice, Usage},
    store::{
        self, grant,
        job::Job,
        record::{Failure, Grant, Node, Server},
    },
};

/// Messages that are delivered side by side.
const AT_ONCE: usize = 64;
/// A message is handed out again after this time, by this process or another one, unless its
/// claim is renewed. Short, since what a scheduler had in its hands when it was killed waits
/// for so long.
const CLAIMED_FOR: Duration = Duration::from_secs(6);
/// How often the claim of a delivery that goes on is renewed.
const RENEWED_EVERY: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long a refusal that repeating does not change is left alone.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_millis(250);
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// Delivers the messages of the outbox.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    app: Arc<App>,
    /// No other process has this name, nor another life of this one.
    owner: Arc<str>,
    places: Arc<Semaphore>,
    destinations: Arc<Mutex<Destinations>>,
}

/// One call in [`Destinations`], until it is dropped.
struct Call {
    app: Arc<App>,
    destinations: Arc<Mutex<Destinations>>,
    name: String,
    ended: Ended,
}

impl Drop for Call {
    fn drop(&mut self) {
        let now = self.app.runtime.clock.now();
        locked(&self.destinations).end(&self.name, self.ended, now);
    }
}

fn locked(destinations: &Mutex<Destinations>) -> std::sync::MutexGuard<'_, Destinations> {
    destinations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a message stays.
enum Stays {
    /// The other side is away.
    Away(CallError),
    /// The other side does not want it.
    Refused(CallError),
    /// It is our side that failed.
    Ours(SchedulerError),
}

impl Stays {
    /// What it says of the other side.
    fn ended(&self) -> Ended {
        match self {
            Self::Away(error) if error.error.kind == ErrorKind::Deadline => Ended::TimedOut,
            Self::Away(_) | Self::Refused(_) => Ended::Answered,
            Self::Ours(_) => Ended::Unknown,
        }
    }
}

impl From<SchedulerError> for Stays {
    fn from(error: SchedulerError) -> Self {
        Self::Ours(error)
    }
}

impl From<CallError> for Stays {
    fn from(error: CallError) -> Self {
        if error.is_final() {
            Self::Refused(error)
        } else {
            Self::Away(error)
        }
    }
}

impl Dispatcher {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            owner: app.runtime.ids.ulid().to_string().into(),
            app,
            places: Arc::new(Semaphore::new(AT_ONCE)),
            destinations: Arc::default(),
        }
    }

    /// What wakes it.
    pub(crate) fn wake(&self) -> Wake {
        self.app.outbox.clone()
    }

    /// Hands out what can be delivered now; each delivery goes on by itself.
    pub(crate) async fn tick(&self) -> Next {
        let free = self.places.available_permits();
        if free == 0 {
            // Every delivery wakes this loop when it ends.
            return Next::WhenWoken;
        }
        match self.hand_out(free).await {
            Ok(0) => match outbox::waiting(&self.app.db).await {
                Ok(0) => Next::WhenWoken,
                Ok(_) => Next::After(IDLE),
                Err(error) => failed(&error),
            },
            Ok(_) => Next::Now,
            Err(error) => failed(&error),
        }
    }

    async fn hand_out(&self, free: usize) -> Result<usize, cnlab_db::DbError> {
        let now = self.app.runtime.clock.now();
        let free = u64::try_from(free).unwrap_or(1);
        let room = locked(&self.destinations).room(free, now);
        let until = now.plus(CLAIMED_FOR);
        let messages = outbox::claim(&self.app.db, &self.owner, now, until, &room).await?;
        let count = messages.len();
        for message in messages {
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                // Only this loop takes places, and it asked for no more than were free.
                break;
            };
            let mut call = self.call(&message);
            let owner = Arc::clone(&self.owner);
            self.app.runtime.tasks.spawn("deliver", async move {
                call.ended = deliver(&call.app, &owner, &message).await;
                let app = Arc::clone(&call.app);
                drop((call, place));
                app.outbox.wake();
            });
        }
        Ok(count)
    }

    fn call(&self, message: &Message) -> Call {
        locked(&self.destinations).begin(&message.destination);
        Call {
            app: Arc::clone(&self.app),
            destinations: Arc::clone(&self.destinations),
            name: message.destination.clone(),
            ended: Ended::Unknown,
        }
    }
}

fn failed(error: &cnlab_db::DbError) -> Next {
    tracing::warn!(%error, "the outbox could not be read");
    Next::After(AFTER_ERROR)
}

async fn deliver(app: &Arc<App>, owner: &str, message: &Message) -> Ended {
    let job = match Job::read(message) {
        Ok(job) => job,
        Err(error) => {
            keep(app, owner, message, &Stays::Ours(error)).await;
            return Ended::Unknown;
        }
    };
    let span = trace::span_with_parent(message.traceparent.as_deref(), job.span_name());
    async {
        let performed = tokio::select! {
            performed = perform(app, &job) => performed,
            () = until_lost(app, owner, message) => {
                tracing::warn!(topic = message.topic, "a delivery is broken off, its claim is not held any more");
                return Ended::Unknown;
            }
        };
        match performed {
            Ok(()) => {
                if let Err(error) = outbox::done(&app.db, message.id).await {
                    tracing::warn!(%error, topic = message.topic, "a delivered message stays in the outbox");
                }
            }
            Err(stays) => {
                keep(app, owner, message, &stays).await;
                return stays.ended();
            }
        }
        Ended::Answered
    }
    .instrument(span)
    .await
}

/// Renews the claim of a message; returns when it is lost, or not to be renewed any more since
/// this process ends.
async fn until_lost(app: &App, owner: &str, message: &Message) {
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        if app.runtime.tasks.token().is_cancelled() {
            return;
        }
        let until = app.runtime.clock.now().plus(CLAIMED_FOR);
        match outbox::renew(&app.db, message, owner, until).await {
            Ok(true) => {}
            Ok(false) => return,
            // The next one may come in time; somebody who takes the message over says so.
            Err(error) => tracing::warn!(%error, topic = message.topic, "a claim was not renewed"),
        }
    }
}

async fn keep(app: &App, owner: &str, message: &Message, stays: &Stays) {
    let (wait, text) = match stays {
        Stays::Away(error) => (retry_after(message.attempts), error.to_string()),
        Stays::Refused(error) => {
            tracing::warn!(topic = message.topic, aggregate = message.aggregate, %error, "a message was refused");
            (AFTER_REFUSAL, error.to_string())
        }
        Stays::Ours(error) => {
            tracing::error!(topic = message.topic, aggregate = message.aggregate, %error, "a message could not be delivered");
            (retry_after(message.attempts), error.to_string())
        }
    };
    let not_before = app.runtime.clock.now().plus(wait);
    if let Err(error) = outbox::retry(&app.db, message, owner, not_before, &text).await {
        // It is handed out again when the claim has run out.
        tracing::warn!(%error, topic = message.topic, "a message could not be put back");
    }
}

fn retry_after(attempts: u32) -> Duration {
    let doubled = attempts.saturating_sub(1).min(10);
    FIRST_RETRY.saturating_mul(1 << doubled).min(LAST_RETRY)
}

async fn perform(app: &Arc<App>, job: &Job) -> Result<(), Stays> {
    match job {
        Job::Launch { server, grant } => launch(app, *server, *grant).await,
        Job::Stop { server, grant } => stop(app, *server, *grant).await,
        Job::RemoveVolume {
            server,
            volume,
            node,
        } => remove_volume(app, *server, *volume, *node).await,
        Job::OpenUsage { grant } => open_usage(app, *grant).await,
        Job::CloseUsage { grant, ended_at } => {
            if let Some(grant) = grant::get(app.db.read(), *grant).await? {
                app.end_lease(&grant).await;
            }
            Ok(app.billing.close_usage(*grant, *ended_at).await?)
        }
    }
}

/// The server and grant of a job, if the grant is still the server's.
async fn present(
    app: &App,
    server: ServerId,
    id: GrantId,
) -> Result<Option<(Server, Grant)>, SchedulerError> {
    let db = app.db.read();
    let server = store::server::get(db, server).await?;
    let grant = grant::get(db, id).await?;
    Ok(server
        .zip(grant)
        .filter(|(server, grant)| server.grant == Some(id) && grant.released_at.is_none()))
}

async fn launch(app: &App, server: ServerId, grant: GrantId) -> Result<(), Stays> {
    let Some((server, grant)) = present(app, server, grant).await? else {
        return Ok(());
    };
    let State::Provisioning { .. } = server.state else {
        // Somebody wants it to end before it began; the stop comes next.
        return Ok(());
    };
    let Some(node) = app.node(grant.node).await? else {
        let lost = lost_by_node(&grant.node.to_string());
        app.gone(server.id, grant.id, Some(&lost)).await?;
        return Ok(());
    };
    let launch = match order(app, &server, &grant, &node) {
        Ok(launch) => launch,
        Err(failure) => {
            app.gone(server.id, grant.id, Some(&failure)).await?;
            return Ok(());
        }
    };
    app.open_lease(&grant).await;
    match app.nodes.launch(&node.endpoint, launch).await {
        Ok(workload) => Ok(app.take_in(node.id, &workload).await?),
        Err(error) if error.is_final() => {
            tracing::warn!(cnlab.server_id = %server.id, cnlab.node_id = %node.id, %error, "the node refused a launch");
            app.gone(server.id, grant.id, Some(&failure_of(&error)))
                .await?;
            Ok(())
        }
        Err(error) => {
            app.note(server.id, &no_answer(&node, &error)).await?;
            Err(Stays::Away(error))
        }
    }
}

/// What the node is asked to run.
fn order(app: &App, server: &Server, grant: &Grant, node: &Node) -> Result<Launch, Failure> {
    let image = app
        .catalogue
        .image(&server.image)
        .map_err(|error| Failure {
            reason: "IMAGE_NOT_FOUND".to_owned(),
            message: error.to_string(),
            cause: "the catalogue has changed since the server was created".to_owned(),
            try_this: "create a new server from one of the images that are offered".to_owned(),
        })?;
    Ok(Launch {
        server: server.id,
        display_name: server.name.to_string(),
        grant: grant.id,
        fence: grant.fence,
        slice: slice(grant),
        image: image.recipe.clone(),
        install_heavy: server.install_heavy,
        volume: server.volume,
        storage_bytes: server.storage_bytes,
        // Ceilings: a machine with less gives what it has.
        memory_bytes: at_most(server.profile.memory_bytes, node.memory_bytes),
        cpu_milli: at_most(server.profile.cpu_milli, node.cpu_milli),
    })
}

fn at_most<T: Ord + Default>(ceiling: T, there_is: T) -> T {
    // A node that does not say what it has sets no limit of its own.
    if there_is == T::default() {
        ceiling
    } else {
        ceiling.min(there_is)
    }
}

fn slice(grant: &Grant) -> Slice {
    Slice {
        gpu_uuid: grant.gpu_uuid.clone(),
        gpu_type: grant.gpu_type.clone(),
        blocks: grant.blocks,
        vram_bytes: grant.vram_bytes,
    }
}

fn no_answer(node: &Node, error: &CallError) -> String {
    let (name, message) = (&node.name, &error.error.message);
    // A status without a reason of ours is one of the connection.
    if matches!(
        error.error.reason.as_str(),
        "UNAVAILABLE" | "DEADLINE" | "INTERNAL"
    ) {
        format!("{name} does not answer, trying again ({message})")
    } else {
        format!("{name} cannot do it now, trying again ({message})")
    }
}

async fn stop(app: &App, server: ServerId, grant: GrantId) -> Result<(), Stays> {
    let Some((server, grant)) = present(app, server, grant).await? else {
        return Ok(());
    };
    let Some(node) = app.node(grant.node).await? else {
        app.gone(server.id, grant.id, None).await?;
        return Ok(());
    };
    match app.nodes.stop(&node.endpoint, server.id, grant.fence).await {
        Ok(Some(workload)) if workload.state.is_over() => {
            app.take_in(node.id, &workload).await?;
            // The report may have been taken in before, or be older than what was: the
            // answer itself says that it is gone.
            Ok(app.gone(server.id, grant.id, None).await?)
        }
        Ok(Some(workload)) => {
            app.take_in(node.id, &workload).await?;
            Err(Stays::Ours(SchedulerError::ChangedMeanwhile))
        }
        Ok(None) => Ok(app.gone(server.id, grant.id, None).await?),
        Err(error) => {
            app.note(server.id, &no_answer(&node, &error)).await?;
            Err(error.into())
        }
    }
}

async fn remove_volume(
    app: &App,
    server: ServerId,
    volume: VolumeId,
    node: NodeId,
) -> Result<(), Stays> {
    if let Some(node) = app.node(node).await?
        && let Err(error) = app.nodes.remove_volume(&node.endpoint, volume).await
    {
        app.note(server, &no_answer(&node, &error)).await?;
        return Err(error.into());
    }
    Ok(app.volume_removed(server).await?)
}

async fn open_usage(app: &App, grant: GrantId) -> Result<(), Stays> {
    let Some(grant) = grant::get(app.db.read(), grant).await? else {
        return Ok(());
    };
    let Some(server) = store::server::get(app.db.read(), grant.server).await? else {
        return Ok(());
    };
    let usage = Usage {
        grant: grant.id,
        owner: server.owner,
        project: server.project.to_string(),
        server: server.id,
        slice: slice(&grant),
        started_at: grant.granted_at,
    };
    Ok(app.billing.open_usage(usage).await?)
}
