//! Who runs when: the queue, what is reserved ahead of time, and what may go between.
//!
//! A job *waits*, has a *reservation* on the [`Timeline`], or *runs*. A reservation is *firm*
//! when it guarantees a deadline; the first jobs of the queue have one, too, which only the
//! arrival of somebody who goes before them can move. Every other job may start wherever it
//! ends before a reservation begins.
//!
//! **Invariants**: a firm reservation ends by its deadline; when an overrun or a lost node
//! makes that impossible, it is said ([`Outcome::DeadlineLost`]), never silently missed.
//! Filling gaps never delays a reservation, since gaps are what reservations left free. Every
//! claim of the timeline belongs to exactly one job.
//!
//! ```text
//! submit ──▶ Admission          waiting ──▶ reserved ──▶ running ──▶ (finish)
//! turn(now) ──▶ [Outcome]       who starts now, who overran, whose deadline is lost
//! wake_at ──▶ the next turn that is due without any event
//! ```

mod admission;
mod begin;
mod forecast;
mod job;
mod pass;
mod reservations;
mod withhold;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, Node, NodeIx, Place, Refused},
    timeline::{Claim, Timeline, Window},
};

pub use admission::Admission;
pub use forecast::{Availability, Forecast, minutes};
pub use job::{Deadline, Decider, Job, JobId, Priority, TeamIx, Turn, Unmet};

/// How a plan is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many jobs without a guarantee have a reservation, those whose turn is next.
    pub depth: usize,
    /// Whether others may start before them where that delays none.
    pub backfill: bool,
    /// How many orders of the guaranteed jobs are tried before a deadline is given up.
    pub orders: usize,
    /// How many guaranteed jobs may be rearranged for a new one.
    pub rearranged: usize,
    /// By how much the expected end of a job that overruns is moved at least.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            depth: 32,
            backfill: true,
            orders: 12,
            rearranged: 1024,
            grace: Duration::from_secs(30),
        }
    }
}

/// What came out of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This job starts now.
    Start {
        /// Which.
        job: JobId,
        /// A place per task.
        places: Vec<Place>,
    },
    /// This job runs longer than was expected.
    Overran {
        /// Which.
        job: JobId,
        /// When it is expected to end now.
        until: Timestamp,
    },
    /// This job will not meet the deadline that it was promised.
    DeadlineLost {
        /// Which.
        job: JobId,
        /// When it will end, where that can be told.
        expected_end: Option<Timestamp>,
    },
}

#[derive(Debug, Clone)]
enum State {
    Waiting,
    /// It waits for something else than room, and is in none of the lists.
    Withheld,
    Reserved {
        claim: Claim,
        firm: bool,
    },
    Running {
        claim: Claim,
        /// When it was to end before it overran.
        expected: Timestamp,
    },
}

#[derive(Debug, Clone)]
struct Entry {
    job: Job,
    turn: Turn,
    /// Whether the deadline is guaranteed; no longer once it is lost.
    guaranteed: bool,
    /// Whether it was accepted though its deadline cannot be met.
    late: bool,
    state: State,
}

impl Entry {
    /// A deadline that cannot be met earns no place before others.
    fn turn(&self, rank: u32) -> Turn {
        let deadline = self.job.deadline.filter(|_| !self.late);
        let job = Job {
            deadline,
            ..self.job
        };
        Turn::of(&job, rank)
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It waits, without a reservation.
    Waiting,
    /// It starts then, or earlier.
    Reserved {
        /// When.
        start: Timestamp,
        /// Whether that guarantees a deadline.
        firm: bool,
    },
    /// It runs.
    Running {
        /// Until when it is expected to.
        until: Timestamp,
    },
}

/// The plan of a cell.
#[derive(Debug, Clone)]
pub struct Plan {
    settings: Settings,
    timeline: Timeline,
    jobs: BTreeMap<JobId, Entry>,
    ranks: BTreeMap<TeamIx, u32>,
    /// Those without a reservation.
    waiting: BTreeSet<Turn>,
    /// Those with a reservation that guarantees nothing.
    soft: BTreeSet<Turn>,
    /// Those with a guarantee, by deadline.
    firm: BTreeSet<(Timestamp, JobId)>,
    /// Those that may not start.
    withheld: BTreeSet<JobId>,
    /// Reserved jobs by node.
    by_node: BTreeSet<(NodeIx, JobId)>,
    /// Starts of reservations and expected ends of runs.
    alarms: BTreeSet<(Timestamp, JobId)>,
    /// Nodes on which something became free since the last turn.
    freed: BTreeSet<NodeIx>,
    outcomes: Vec<Outcome>,
}

impl Plan {
    /// A plan for the nodes of a cluster, on which nothing runs until it is adopted.
    #[must_use]
    pub fn new(cluster: &Cluster, settings: Settings, now: Timestamp) -> Self {
        Self {
            settings,
            timeline: Timeline::new(cluster, now),
            jobs: BTreeMap::new(),
            ranks: BTreeMap::new(),
            waiting: BTreeSet::new(),
            soft: BTreeSet::new(),
            firm: BTreeSet::new(),
            withheld: BTreeSet::new(),
            by_node: BTreeSet::new(),
            alarms: BTreeSet::new(),
            freed: BTreeSet::new(),
            outcomes: Vec::new(),
        }
    }

    /// What is free when.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The job of a number, while it waits or runs.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|entry| &entry.job)
    }

    /// Where a job stands.
    #[must_use]
    pub fn standing(&self, id: JobId) -> Option<Standing> {
        Some(match &self.jobs.get(&id)?.state {
            State::Waiting | State::Withheld => Standing::Waiting,
            State::Reserved { claim, firm } => Standing::Reserved {
                start: claim.from,
                firm: *firm,
            },
            State::Running { claim, .. } => Standing::Running { until: claim.until },
        })
    }

    /// Whether the deadline of a job is guaranteed.
    #[must_use]
    pub fn is_guaranteed(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|entry| entry.guaranteed)
    }

    /// Everything that does not run yet, in the order of the queue.
    #[must_use]
    pub fn queue(&self) -> Vec<JobId> {
        let firm = self.firm.iter().filter_map(|(_, id)| self.turn_of(*id));
        let withheld = self.withheld.iter().filter_map(|id| self.turn_of(*id));
        let turns: BTreeSet<Turn> = firm
            .chain(withheld)
            .chain(self.soft.iter().copied())
            .chain(self.waiting.iter().copied())
            .collect();
        turns.into_iter().map(|turn| turn.id).collect()
    }

    /// The claim of a job that is reserved or runs.
    pub(crate) fn claim(&self, id: JobId) -> Option<&Claim> {
        match &self.jobs.get(&id)?.state {
            State::Waiting | State::Withheld => None,
            State::Reserved { claim, .. } | State::Running { claim, .. } => Some(claim),
        }
    }

    /// Reserved jobs on a node.
    pub(crate) fn reserved_on(&self, ix: NodeIx) -> impl Iterator<Item = (JobId, &Claim)> {
        self.by_node
            .range((ix, JobId(0))..=(ix, JobId(u64::MAX)))
            .filter_map(|(_, id)| Some((*id, self.claim(*id)?)))
    }

    /// How many there are that do not run yet.
    #[must_use]
    pub fn queued(&self) -> usize {
        let reserved = self.firm.len().saturating_add(self.soft.len());
        let waiting = self.waiting.len().saturating_add(self.withheld.len());
        waiting.saturating_add(reserved)
    }

    /// The rank of a team; lower goes first, and a team that nobody ranked goes first.
    #[must_use]
    pub fn rank(&self, team: TeamIx) -> u32 {
        self.ranks.get(&team).copied().unwrap_or(0)
    }

    /// When the next turn is due, if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Takes in a job that runs already, as a fact. Whether the node has room for it is not
    /// looked at; reservations that stand in the way of what runs are for the caller to
    /// avoid, by adopting before submitting.
    ///
    /// # Errors
    /// [`Refused::NoNode`] for a node that the plan does not know, [`Refused::Blocks`] where
    /// more runs than can be counted; the job is not taken in then.
    pub fn adopt(
        &mut self,
        job: Job,
        places: Vec<Place>,
        started: Timestamp,
        until: Timestamp,
    ) -> Result<(), Refused> {
        self.finish(job.id, self.timeline.now());
        let claim = Claim {
            demand: job.ask.demand,
            places,
            from: started,
            until,
        };
        self.timeline.record(&claim)?;
        self.alarms.insert((until, job.id));
        let entry = Entry {
            turn: Turn::of(&job, self.rank(job.team)),
            guaranteed: false,
            late: false,
            state: State::Running {
                claim,
                expected: until,
            },
            job,
        };
        self.jobs.insert(job.id, entry);
        Ok(())
    }

    /// A job has ended, was cancelled, or was stopped: what it holds or would have held is
    /// free from now on.
    pub fn finish(&mut self, id: JobId, now: Timestamp) {
        self.timeline.pass(now);
        if let Some(claim) = self.withdraw(id) {
            self.free(&claim);
        }
        let Some(entry) = self.jobs.remove(&id) else {
            return;
        };
        self.waiting.remove(&entry.turn);
        self.withheld.remove(&id);
        if let State::Running { mut claim, .. } = entry.state {
            self.alarms.remove(&(claim.until, id));
            self.free(&claim);
            // A node that left took its claims with it.
            let _gone = self.timeline.shorten(&mut claim, now);
        }
    }

    /// A running job is expected to end at another time than before, for example because
    /// [`RuntimeEstimator`](crate::runtime_estimate::RuntimeEstimator) says so. Reservations
    /// that stand in the way move.
    pub fn expect_end(&mut self, id: JobId, until: Timestamp, now: Timestamp) {
        self.timeline.pass(now);
        let until = until.max(now);
        self.move_end(id, until);
        if let Some(entry) = self.jobs.get_mut(&id)
            && let State::Running { expected, .. } = &mut entry.state
        {
            *expected = until;
        }
    }

    /// The order of the teams, for those whose rank has changed or may have: lower goes first.
    /// Reservations are made anew only where that changes who comes first.
    pub fn set_ranks(&mut self, ranks: impl IntoIterator<Item = (TeamIx, u32)>) {
        let mut changed = BTreeSet::new();
        for (team, rank) in ranks {
            if self.rank(team) != rank {
                self.ranks.insert(team, rank);
                changed.insert(team);
            }
        }
        if changed.is_empty() {
            return;
        }
        let before: Vec<JobId> = self.soft.iter().map(|turn| turn.id).collect();
        for entry in self.jobs.values_mut() {
            let Some(rank) = self.ranks.get(&entry.job.team) else {
                continue;
            };
            if !changed.contains(&entry.job.team) {
                continue;
            }
            let turn = entry.turn(*rank);
            for list in [&mut self.waiting, &mut self.soft] {
                if list.remove(&entry.turn) {
                    list.insert(turn);
                }
            }
            entry.turn = turn;
        }
        let same = before.iter().eq(self.soft.iter().map(|turn| &turn.id));
        let next = self.waiting.first();
        if same && next.is_none_or(|next| Some(next) > self.soft.last()) {
            return;
        }
        for (id, claim) in self.withdraw_soft(|_| true) {
            self.free(&claim);
            self.note_waiting(id);
        }
        self.fill();
    }

    /// A node joined or changed, or left (`None`). Reservations on it are made anew; what
    /// runs on it is not touched, and ends by [`Self::finish`].
    pub fn set_node(&mut self, ix: NodeIx, node: Option<&Node>, now: Timestamp) {
        self.timeline.pass(now);
        let on_it: Vec<JobId> = self
            .by_node
            .range((ix, JobId(0))..=(ix, JobId(u64::MAX)))
            .map(|(_, id)| *id)
            .collect();
        let mut displaced = Vec::new();
        for id in on_it {
            displaced.extend(self.withdraw(id).map(|claim| (id, claim)));
        }
        match node {
            Some(node) => self.timeline.set_node(ix, node),
            None => self.timeline.remove_node(ix),
        }
        self.freed.insert(ix);
        self.place_anew(displaced);
    }

    pub(crate) fn turn_of(&self, id: JobId) -> Option<Turn> {
        self.jobs.get(&id).map(|entry| entry.turn)
    }

    /// When a job may start so that its guarantee, if it has one, holds.
    fn window(&self, job: &Job) -> Window {
        match job.deadline {
            Some(deadline) => Window::before(self.timeline.now(), deadline.at, job.length),
            None => Window::from(self.timeline.now()),
        }
    }
}

#[cfg(test)]
mod tests;
