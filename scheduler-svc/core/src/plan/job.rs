//! What waits, and who goes first.

use std::{cmp::Reverse, time::Duration};

use cnlab_model::Timestamp;

pub use crate::order::Priority;
use crate::timeline::Ask;

/// A job by its number; who keeps the records decides which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A team by its number; who keeps the records decides which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TeamIx(pub u32);

/// What becomes of a job whose deadline cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unmet {
    /// It is refused.
    Refuse,
    /// It runs all the same, without a guarantee, and who asked is told when it will end.
    AcceptLate,
}

/// When a job is to have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline {
    /// By then.
    pub at: Timestamp,
    /// What to do where that cannot be.
    pub unmet: Unmet,
}

/// What somebody wants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Which.
    pub id: JobId,
    /// Who pays.
    pub team: TeamIx,
    /// What it needs.
    pub ask: Ask,
    /// For how long it is planned. A deadline is guaranteed for as long as it runs no longer.
    pub length: Duration,
    /// Its class.
    pub priority: Priority,
    /// By when it has to end, if it has to.
    pub deadline: Option<Deadline>,
    /// Since when it waits.
    pub submitted: Timestamp,
}

/// A deadline farther away than so many lengths of the job earns no place ahead of others:
/// else everybody would name one. It is guaranteed all the same.
const NEAR: u32 = 4;

/// The order of the queue: priority, near deadlines (earliest first), the fair share of the
/// team (the one that is owed most has the lowest rank), age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    pub(super) priority: Reverse<Priority>,
    deadline: Timestamp,
    rank: u32,
    submitted: Timestamp,
    pub(super) id: JobId,
}

/// What decides between two jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decider {
    /// Their classes.
    Priority,
    /// Their near deadlines.
    Deadline,
    /// The shares of their teams.
    Share,
    /// Who asked first.
    Age,
}

impl Turn {
    /// What puts this job before or behind another.
    #[must_use]
    pub fn decider(&self, other: &Self) -> Decider {
        if self.priority != other.priority {
            Decider::Priority
        } else if self.deadline != other.deadline {
            Decider::Deadline
        } else if self.rank != other.rank {
            Decider::Share
        } else {
            Decider::Age
        }
    }

    /// The turn of a job of a team with this rank.
    #[must_use]
    pub fn of(job: &Job, rank: u32) -> Self {
        let near = job
            .submitted
            .plus(job.length.checked_mul(NEAR).unwrap_or(Duration::MAX));
        Self {
            priority: Reverse(job.priority),
            deadline: job
                .deadline
                .map(|deadline| deadline.at)
                .filter(|at| *at <= near)
                .unwrap_or(Timestamp(i64::MAX)),
            rank,
            submitted: job.submitted,
            id: job.id,
        }
    }
}
