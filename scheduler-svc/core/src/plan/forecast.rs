//! When everything that waits would start, and what somebody who asks now may expect.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use cnlab_model::Timestamp;

use super::{Job, JobId, Plan, State, Turn};
use crate::timeline::{Ask, Claim, Timeline, Window};

/// Whether something would start at once (P-02, P-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// At once.
    Now,
    /// After this time, if everybody before runs as long as expected.
    Wait(Duration),
    /// Never, on the nodes there are.
    Never,
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("✓ now"),
            Self::Wait(wait) => write!(f, "queue: {} min", minutes(*wait)),
            Self::Never => f.write_str("never"),
        }
    }
}

/// Whole minutes, rounded up: a wait is not over before.
#[must_use]
pub fn minutes(wait: Duration) -> u64 {
    let seconds = wait
        .as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0));
    seconds.div_ceil(60)
}

/// A plan for everything that waits, as if nobody arrived any more and every job ran as long
/// as expected. It is made on demand, and costs as much as the queue is long.
#[derive(Debug, Clone)]
pub struct Forecast {
    timeline: Timeline,
    claims: BTreeMap<JobId, Claim>,
}

impl Plan {
    /// When everything that waits would start, in the order of the queue around what is
    /// reserved.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        let mut forecast = Forecast {
            timeline: self.timeline.clone(),
            claims: BTreeMap::new(),
        };
        for (id, entry) in &self.jobs {
            if let State::Reserved { claim, .. } = &entry.state {
                forecast.claims.insert(*id, claim.clone());
            }
        }
        for turn in &self.waiting {
            if let Some(job) = self.job(turn.id) {
                forecast.place(job, job.length);
            }
        }
        forecast
    }

    /// When everything that waits would start if runs last as long as is *likely*, which is
    /// shorter than what they are planned for where that is a bound. `likely` tells how long
    /// a job runs, or goes on when it has run for a time, as
    /// [`RuntimeEstimator`](crate::runtime_estimate::RuntimeEstimator) does.
    #[must_use]
    pub fn expect(&self, likely: impl Fn(&Job, Option<Duration>) -> Duration) -> Forecast {
        let mut timeline = self.timeline.clone();
        let now = timeline.now();
        let mut queue: BTreeSet<Turn> = self.waiting.clone();
        for entry in self.jobs.values() {
            if let State::Reserved { claim, .. } = &entry.state {
                let _free = timeline.release(claim);
                queue.insert(entry.turn);
            }
        }
        for entry in self.jobs.values() {
            if let State::Running { claim, .. } = &entry.state {
                let rest = likely(&entry.job, Some(now.since(claim.from)));
                let (mut claim, end) = (claim.clone(), now.plus(rest));
                // What runs can neither end in the past nor be in the way of what runs.
                let _moved = if end < claim.until {
                    timeline.shorten(&mut claim, end)
                } else {
                    timeline.extend(&mut claim, end)
                };
            }
        }
        let mut forecast = Forecast {
            timeline,
            claims: BTreeMap::new(),
        };
        for turn in queue {
            if let Some(job) = self.job(turn.id) {
                forecast.place(job, likely(job, None));
            }
        }
        forecast
    }

    /// Whether a job that asks for this would start at once, without moving anybody.
    #[must_use]
    pub fn starts_now(&self, ask: &Ask, length: Duration) -> bool {
        let at = Window::at(self.timeline.now());
        self.timeline.earliest(ask, length, at).is_some()
    }

    /// What somebody who asks now may expect, behind everything that waits.
    #[must_use]
    pub fn available(&self, forecast: &Forecast, ask: &Ask, length: Duration) -> Availability {
        if self.starts_now(ask, length) {
            return Availability::Now;
        }
        let now = self.timeline.now();
        match forecast.timeline.earliest(ask, length, Window::from(now)) {
            Some(slot) => Availability::Wait(slot.start.since(now)),
            None => Availability::Never,
        }
    }
}

impl Forecast {
    fn place(&mut self, job: &Job, length: Duration) {
        let from = Window::from(self.timeline.now());
        if let Some(slot) = self.timeline.earliest(&job.ask, length, from) {
            let claim = Claim::of(&job.ask, slot, length);
            // The slot is free, so that this cannot be refused.
            let _held = self.timeline.reserve(&claim);
            self.claims.insert(job.id, claim);
        }
    }

    /// When a job that does not run yet would start.
    #[must_use]
    pub fn start(&self, id: JobId) -> Option<Timestamp> {
        self.claims.get(&id).map(|claim| claim.from)
    }

    /// The future as if one of those that wait did not.
    pub(crate) fn without(&self, id: JobId) -> Timeline {
        let mut timeline = self.timeline.clone();
        if let Some(claim) = self.claims.get(&id) {
            let _held = timeline.release(claim);
        }
        timeline
    }

    /// The future, with everything that waits in it.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }
}
