//! Takes the runs away from nodes that were not heard of for the time of a lease.
//!
//! **Invariant**: a scheduler that was away, asleep or cut off itself heard of nobody; it waits
//! for the time of a lease after it is back before it believes that a node is lost.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cnlab_model::Timestamp;
use cnlab_service::Next;

use crate::{app::App, cell::silent_before};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// Looks after the grants that expire.
#[derive(Debug)]
pub(crate) struct Expiry {
    app: Arc<App>,
    awake: Mutex<Awake>,
}

/// Since when this process has been listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Awake {
    since: Timestamp,
    looked: Timestamp,
}

impl Awake {
    const fn from(now: Timestamp) -> Self {
        Self {
            since: now,
            looked: now,
        }
    }

    /// Whether it has listened for so long without a gap of half that time, until now.
    fn listened(&mut self, ttl: Duration, now: Timestamp) -> bool {
        if now.since(self.looked) > ttl / 2 || now < self.looked {
            self.since = now;
        }
        self.looked = now;
        now.since(self.since) >= ttl
    }
}

impl Expiry {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let now = app.runtime.clock.now();
        Self {
            app,
            awake: Mutex::new(Awake::from(now)),
        }
    }

    /// Looks once.
    pub(crate) async fn tick(&self) -> Next {
        let (now, ttl) = (self.app.runtime.clock.now(), self.app.grants.ttl.0);
        let mut awake = *self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.app.cell.leads() {
            // Nodes speak to who leads.
            awake = Awake::from(now);
        }
        let listened = awake.listened(ttl, now);
        *self.awake.lock().unwrap_or_else(PoisonError::into_inner) = awake;
        if listened && let Err(error) = self.app.expire_runs(silent_before(now, ttl)).await {
            tracing::warn!(%error, "expired grants could not be looked for");
        }
        Next::After(EVERY.min(ttl / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_listen_believes_nothing() {
        let ttl = Duration::from_secs(30);
        let at = |seconds: u64| Timestamp(0).plus(Duration::from_secs(seconds));
        let mut awake = Awake::from(at(0));
        for second in 1..30 {
            assert!(!awake.listened(ttl, at(second)), "{second}");
        }
        assert!(awake.listened(ttl, at(30)));
        assert!(awake.listened(ttl, at(31)));
        // It slept.
        assert!(!awake.listened(ttl, at(60)));
        assert!(!awake.listened(ttl, at(75)));
        assert!(awake.listened(ttl, at(90)));
        // Somebody set the clock back.
        assert!(!awake.listened(ttl, at(80)));
    }
}
