//! What is asked of the future, and what is held of it.

use std::time::Duration;

use cnlab_model::Timestamp;

use crate::cluster::{Demand, NodeIx, Place};

/// What a job asks for: one demand, or several like it that begin at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask {
    /// What each of its tasks needs on one node.
    pub demand: Demand,
    /// How many tasks there are, at least one; several may share a node.
    pub tasks: u16,
    /// The only node possible, where its data lies on one.
    pub only: Option<NodeIx>,
}

impl Ask {
    /// One task, on any node.
    #[must_use]
    pub const fn one(demand: Demand) -> Self {
        Self {
            demand,
            tasks: 1,
            only: None,
        }
    }

    /// So many tasks at one moment.
    #[must_use]
    pub const fn gang(demand: Demand, tasks: u16) -> Self {
        Self {
            demand,
            tasks,
            only: None,
        }
    }

    /// Blocks of all GPUs together.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        u64::from(self.demand.total_blocks()).saturating_mul(self.tasks.into())
    }
}

/// Where and when an ask can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// When.
    pub start: Timestamp,
    /// A place per task.
    pub places: Vec<Place>,
}

/// A slot that is held, from its start until its expected end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What is held at each place.
    pub demand: Demand,
    /// Where.
    pub places: Vec<Place>,
    /// From when.
    pub from: Timestamp,
    /// Until when; the moment itself is free again.
    pub until: Timestamp,
}

impl Claim {
    /// The claim of an ask on a slot.
    #[must_use]
    pub fn of(ask: &Ask, slot: Slot, length: Duration) -> Self {
        Self {
            demand: ask.demand,
            places: slot.places,
            from: slot.start,
            until: slot.start.plus(length),
        }
    }
}

/// When a slot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub latest: Timestamp,
}

impl Window {
    /// From a moment on.
    #[must_use]
    pub const fn from(from: Timestamp) -> Self {
        Self {
            from,
            latest: Timestamp(i64::MAX),
        }
    }

    /// At this moment only.
    #[must_use]
    pub const fn at(at: Timestamp) -> Self {
        Self {
            from: at,
            latest: at,
        }
    }

    /// From a moment on, but so that a run of this length ends by the deadline.
    #[must_use]
    pub fn before(from: Timestamp, deadline: Timestamp, length: Duration) -> Self {
        Self {
            from,
            latest: Timestamp(deadline.0.saturating_sub(micros(length))),
        }
    }
}

/// A length in microseconds; one that is longer than time lasts until its end.
pub(crate) fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
