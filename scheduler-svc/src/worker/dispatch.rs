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
use cnlab_service::{Next, Wake, trace};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::{
    destinations::{Destinations, Ended},
    jobs::{self, Stays},
};
use crate::{app::App, store::job::Job};

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
/// No message waits for longer than this at once.
pub(crate) const LATEST: Duration = AFTER_REFUSAL;
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
        if !self.app.cell.leads() {
            // What follows from a delivery is written by who leads.
            return Next::After(IDLE);
        }
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
            performed = jobs::perform(app, &job, message.attempts) => performed,
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
