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
use tokio::time::Instant;

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
    since: Instant,
    looked: Instant,
    /// What the clock showed at the last look.
    showed: Timestamp,
}

/// By how much a clock may seem to run ahead because it and the time that passed cannot be read
/// in one moment.
const READ_APART: Duration = Duration::from_millis(50);

impl Awake {
    const fn from(now: Timestamp, at: Instant) -> Self {
        Self {
            since: at,
            looked: at,
            showed: now,
        }
    }

    /// Whether it has listened for so long without a gap of half that time, until now, by a
    /// clock that nobody has set meanwhile: by one that was set forward, a node was last heard
    /// of longer ago than it was.
    fn listened(&mut self, ttl: Duration, now: Timestamp, at: Instant) -> bool {
        let passed = at.saturating_duration_since(self.looked);
        let ahead = now.since(self.showed).saturating_sub(passed);
        if passed > ttl / 2 || ahead > (ttl / 60).max(READ_APART) || now < self.showed {
            self.since = at;
        }
        self.looked = at;
        self.showed = now;
        at.saturating_duration_since(self.since) >= ttl
    }
}

impl Expiry {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let now = app.runtime.clock.now();
        Self {
            app,
            awake: Mutex::new(Awake::from(now, Instant::now())),
        }
    }

    /// Looks once.
    pub(crate) async fn tick(&self) -> Next {
        let (now, at) = (self.app.runtime.clock.now(), Instant::now());
        let ttl = self.app.grants.ttl.0;
        let mut awake = *self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.app.cell.leads() {
            // Nodes speak to who leads.
            awake = Awake::from(now, at);
        }
        let listened = awake.listened(ttl, now, at);
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

    const TTL: Duration = Duration::from_secs(30);

    /// A listener, its clock, and the time that really passes.
    struct Listener {
        awake: Awake,
        now: Timestamp,
        at: Instant,
    }

    impl Listener {
        fn new() -> Self {
            let (now, at) = (Timestamp(1_800_000_000_000_000), Instant::now());
            Self {
                awake: Awake::from(now, at),
                now,
                at,
            }
        }

        /// So much passes, by the clock and really.
        fn after(&mut self, clock: Duration, real: Duration) -> bool {
            self.now = self.now.plus(clock);
            self.at += real;
            self.awake.listened(TTL, self.now, self.at)
        }

        fn seconds(&mut self, seconds: u64) -> Vec<bool> {
            let second = Duration::from_secs(1);
            (0..seconds).map(|_| self.after(second, second)).collect()
        }
    }

    #[test]
    fn who_did_not_listen_believes_nothing() {
        let mut listener = Listener::new();
        let heard = listener.seconds(31);
        assert!(heard.iter().take(29).all(|heard| !heard), "{heard:?}");
        assert!(heard.iter().skip(29).all(|heard| *heard), "{heard:?}");
        // It slept, and its machine with it or not.
        let long = TTL / 2 + Duration::from_secs(1);
        assert!(!listener.after(long, long));
        assert_eq!(
            listener.seconds(30).iter().filter(|heard| **heard).count(),
            1
        );
        assert!(!listener.after(long, Duration::from_secs(1)));
        assert_eq!(
            listener.seconds(30).iter().filter(|heard| **heard).count(),
            1
        );
    }

    #[test]
    fn a_clock_that_is_set_ends_nothing_early() {
        // Forward by less than half of a lease, and by hours.
        for step in [1, 14, 3_600 * 5] {
            let mut listener = Listener::new();
            listener.seconds(40);
            assert!(!listener.after(Duration::from_secs(step + 1), Duration::from_secs(1)));
            let after = listener.seconds(30);
            assert_eq!(after.iter().filter(|heard| **heard).count(), 1, "{step}");
        }
        // Back.
        let mut listener = Listener::new();
        listener.seconds(40);
        listener.now = Timestamp(listener.now.0 - 20_000_000);
        assert!(!listener.after(Duration::from_secs(1), Duration::from_secs(1)));
        // One that runs a little fast or slow is no reason to wait.
        let mut listener = Listener::new();
        for _ in 0..40 {
            listener.after(Duration::from_millis(1_001), Duration::from_secs(1));
            listener.after(Duration::from_millis(999), Duration::from_secs(1));
        }
        assert!(listener.after(Duration::from_secs(1), Duration::from_secs(1)));
    }
}
