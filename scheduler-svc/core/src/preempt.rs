//! Pre-emption: which running work gives way to work that may not wait.
//!
//! **Invariants**: only work that the newcomer goes before gives way, and never within its
//! minimum run time; nothing gives way unless the newcomer then starts; if letting all such
//! work go would let it start, a way is found; nobody gives way for nothing. Since "goes
//! before" is a strict order, two jobs never pre-empt each other in turn.
//!
//! ```text
//! Runs      who runs where, since when, saved when
//! newcomer ─▶ Runs::reclaim ─▶ Reclaim { victims, places, loss }
//!               for each victim: checkpoint, stop, submit again with its old `submitted`
//! ```
//!
//! The victims are those that together lose the least GPU time since their last checkpoint
//! ([`Loss`]). That is exact for one task where processors and memory are not short, whatever
//! the number of candidates, and for up to [`EXACT`] candidates on a node in any case. Beyond
//! that, and for gangs of which the candidates span nodes, it is the best that a bounded
//! search finds.
//!
//! A job that gave way keeps its place in the queue because the queue goes by
//! [`Job::submitted`], which does not change.

mod class;
mod gang;
mod room;
mod summary;
mod victims;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, Node, NodeIx, Place},
    plan::{Job, JobId},
};

pub use class::{Class, Environment, Ground, WorkKind};
use room::Room;
use summary::Summary;
pub use victims::EXACT;
use victims::{Candidate, cheapest};

/// A job that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// What was submitted.
    pub job: Job,
    /// What kind of work it is.
    pub kind: WorkKind,
    /// For whom it works.
    pub environment: Environment,
    /// A place per task.
    pub places: Vec<Place>,
    /// Since when it runs without interruption.
    pub since: Timestamp,
    /// When its state was last saved, if it was since it began.
    pub checkpoint: Option<Timestamp>,
    /// Whether it must not be stopped, whoever comes.
    pub fixed: bool,
}

impl Running {
    /// Its class.
    #[must_use]
    pub const fn class(&self) -> Class {
        Class {
            priority: self.job.priority,
            kind: self.kind,
            environment: self.environment,
        }
    }

    /// How long it has worked since its state was last saved.
    #[must_use]
    pub fn unsaved(&self, now: Timestamp) -> Duration {
        now.since(self.saved())
    }

    /// When its state was last saved, or when it began if it was not since.
    fn saved(&self) -> Timestamp {
        self.checkpoint
            .map_or(self.since, |checkpoint| checkpoint.max(self.since))
    }
}

/// What is lost when work gives way. Compared in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Loss {
    /// Unsaved work in blocks times microseconds.
    pub gpu: u128,
    /// How many jobs give way.
    pub victims: u32,
    /// Their priorities, one for each class above none, so that lower ones go first.
    pub priorities: u32,
    /// Unsaved work in thousandths of a processor times microseconds.
    pub cpu: u128,
}

impl Loss {
    fn of(running: &Running, now: Timestamp) -> Self {
        let time = running.unsaved(now).as_micros();
        let tasks = u128::try_from(running.places.len()).unwrap_or(u128::MAX);
        let each = |amount: u32| time.saturating_mul(amount.into()).saturating_mul(tasks);
        Self {
            gpu: each(running.job.ask.demand.total_blocks()),
            victims: 1,
            priorities: class::level(running.job.priority),
            cpu: each(running.job.ask.demand.cpu_milli()),
        }
    }

    /// The next larger loss.
    const fn just_above(self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(1),
            ..self
        }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            gpu: self.gpu.saturating_add(other.gpu),
            victims: self.victims.saturating_add(other.victims),
            priorities: self.priorities.saturating_add(other.priorities),
            cpu: self.cpu.saturating_add(other.cpu),
        }
    }
}

/// One job that gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Which.
    pub job: JobId,
    /// Why it has to.
    pub ground: Ground,
    /// What it worked since its state was last saved.
    pub unsaved: Duration,
}

/// How a newcomer gets room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// Who gives way, by rising number; empty where there is room already.
    pub victims: Vec<Victim>,
    /// Where the newcomer starts, a place per task.
    pub places: Vec<Place>,
    /// What is lost.
    pub loss: Loss,
}

/// Who asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    /// What it needs. Its priority counts.
    pub job: Job,
    /// What kind of work it is.
    pub kind: WorkKind,
    /// For whom it works.
    pub environment: Environment,
}

impl Newcomer {
    const fn class(&self) -> Class {
        Class {
            priority: self.job.priority,
            kind: self.kind,
            environment: self.environment,
        }
    }
}

/// Everything that runs in a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    min_run: Duration,
    runs: BTreeMap<JobId, Running>,
    /// Of those who may give way at `as_of`.
    summary: Summary,
    as_of: Timestamp,
    /// When another may on a node.
    due: BTreeSet<(Timestamp, NodeIx)>,
}

impl Runs {
    /// Nothing runs yet. Work that began less than `min_run` ago does not give way.
    #[must_use]
    pub fn new(min_run: Duration) -> Self {
        Self {
            min_run,
            runs: BTreeMap::new(),
            summary: Summary::default(),
            as_of: Timestamp(i64::MIN),
            due: BTreeSet::new(),
        }
    }

    /// Notes that a job runs. One with the same number is replaced.
    pub fn insert(&mut self, running: Running) {
        let id = running.job.id;
        self.remove(id);
        let nodes = nodes_of(&running);
        let from = running.since.plus(self.min_run);
        self.runs.insert(id, running);
        for ix in nodes {
            self.due.insert((from, ix));
            self.summary.insert(ix, id);
            self.recount(ix);
        }
    }

    /// Notes that a job no longer runs.
    pub fn remove(&mut self, id: JobId) -> Option<Running> {
        let running = self.runs.remove(&id)?;
        for ix in nodes_of(&running) {
            self.summary.remove(ix, id);
            self.recount(ix);
        }
        Some(running)
    }

    /// Notes that the state of a job was saved.
    pub fn saved(&mut self, id: JobId, at: Timestamp) {
        if let Some(running) = self.runs.get_mut(&id) {
            running.checkpoint = running.checkpoint.max(Some(at));
            for ix in nodes_of(running) {
                self.recount(ix);
            }
        }
    }

    /// Counts those in whose minimum run time has passed. Where the clock was set back too many
    /// are counted, which only makes bounds wider.
    fn pass(&mut self, now: Timestamp) {
        self.as_of = self.as_of.max(now);
        let mut nodes = BTreeSet::new();
        while let Some((from, ix)) = self.due.pop_first() {
            if from > self.as_of {
                self.due.insert((from, ix));
                break;
            }
            nodes.insert(ix);
        }
        for ix in nodes {
            self.recount(ix);
        }
    }

    fn recount(&mut self, ix: NodeIx) {
        let may =
            |running: &&Running| !running.fixed && running.since.plus(self.min_run) <= self.as_of;
        self.summary
            .recount(ix, |id| self.runs.get(&id).filter(may));
    }

    /// How many jobs run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// A job that runs.
    #[must_use]
    pub fn get(&self, id: JobId) -> Option<&Running> {
        self.runs.get(&id)
    }

    /// How the newcomer can start now, with the least loss; of equal ones the lowest node.
    ///
    /// `None` where it cannot, even if everything gives way that may be made to. `cluster` is
    /// the book in which what runs is held.
    #[must_use]
    pub fn reclaim(
        &mut self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        now: Timestamp,
    ) -> Option<Reclaim> {
        self.pass(now);
        let (victims, places) = match newcomer.job.ask.tasks {
            0 => return None,
            1 => self.one(cluster, newcomer, now)?,
            tasks => self.gang(cluster, newcomer, tasks, now)?,
        };
        let mut loss = Loss::default();
        let victims = victims
            .into_iter()
            .filter_map(|id| {
                let running = self.runs.get(&id)?;
                loss = loss.plus(Loss::of(running, now));
                Some(Victim {
                    job: id,
                    ground: newcomer.class().goes_before(running.class())?,
                    unsaved: running.unsaved(now),
                })
            })
            .collect();
        Some(Reclaim {
            victims,
            places,
            loss,
        })
    }

    /// Whether a job may be made to give way, and what that would lose.
    fn candidate(&self, id: JobId, class: Class, now: Timestamp) -> Option<(&Running, Loss)> {
        let running = self.runs.get(&id)?;
        class.goes_before(running.class())?;
        let ran_enough = now >= running.since.plus(self.min_run);
        (ran_enough && !running.fixed).then(|| (running, Loss::of(running, now)))
    }

    /// What may give way on a node.
    fn candidates(&self, ix: NodeIx, class: Class, now: Timestamp) -> Vec<Candidate> {
        self.summary
            .jobs(ix)
            .filter_map(|id| {
                let (running, loss) = self.candidate(id, class, now)?;
                Some(Candidate {
                    id,
                    loss,
                    part: Room::held(running, ix),
                })
            })
            .collect()
    }

    fn one(
        &self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        now: Timestamp,
    ) -> Option<(BTreeSet<JobId>, Vec<Place>)> {
        let demand = &newcomer.job.ask.demand;
        let mut offers: Vec<(u128, NodeIx)> = Vec::new();
        for (ix, node) in suitable(cluster, newcomer) {
            let mut room = Room::free(node);
            if let Some(gpus) = room.take(demand) {
                return Some((BTreeSet::new(), vec![Place { node: ix, gpus }]));
            }
            let priority = newcomer.job.priority;
            let bound = self
                .summary
                .at_least(ix, node, &room, demand, priority, now);
            offers.extend(bound.map(|bound| (bound, ix)));
        }
        let mut best: Option<(Loss, NodeIx, Vec<JobId>)> = None;
        // The most promising first, then the others that may lose less, in turn.
        let first = offers.iter().min().copied();
        self.improve(cluster, newcomer, now, first?.1, &mut best);
        if let Some((least, ..)) = &best {
            offers.retain(|(bound, _)| *bound <= least.gpu);
        }
        let rest = offers.into_iter().filter(|offer| Some(*offer) != first);
        let mut rest: BinaryHeap<Reverse<(u128, NodeIx)>> = rest.map(Reverse).collect();
        while let Some(Reverse((bound, ix))) = rest.pop() {
            if best.as_ref().is_some_and(|(least, ..)| bound > least.gpu) {
                break;
            }
            self.improve(cluster, newcomer, now, ix, &mut best);
        }
        let (_, ix, victims) = best?;
        let victims: BTreeSet<JobId> = victims.into_iter().collect();
        let gpus = self.room(cluster, ix, &victims)?.take(demand)?;
        Some((victims, vec![Place { node: ix, gpus }]))
    }

    /// Takes the cheapest victims of a node where they lose less than the best so far.
    fn improve(
        &self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        now: Timestamp,
        ix: NodeIx,
        best: &mut Option<(Loss, NodeIx, Vec<JobId>)>,
    ) {
        let Some(node) = cluster.node(ix) else {
            return;
        };
        let candidates = self.candidates(ix, newcomer.class(), now);
        // Of equal losses the lower node wins, so there an equal one will do.
        let limit = best.as_ref().map(|(least, other, _)| {
            if ix < *other {
                least.just_above()
            } else {
                *least
            }
        });
        let demand = &newcomer.job.ask.demand;
        if let Some((loss, victims)) = cheapest(&Room::free(node), &candidates, demand, 1, limit) {
            *best = Some((loss, ix, victims));
        }
    }

    /// What is free on a node once these have given way.
    fn room(&self, cluster: &Cluster, ix: NodeIx, victims: &BTreeSet<JobId>) -> Option<Room> {
        let room = Room::free(cluster.node(ix)?);
        let parts = victims
            .iter()
            .filter_map(|id| self.runs.get(id))
            .map(|running| Room::held(running, ix));
        Some(parts.fold(room, |room, part| room.plus(&part)))
    }
}

/// The nodes on which a job runs.
fn nodes_of(running: &Running) -> BTreeSet<NodeIx> {
    running.places.iter().map(|place| place.node).collect()
}

/// The nodes that could host a task of the newcomer if they had room.
fn suitable<'a>(
    cluster: &'a Cluster,
    newcomer: &Newcomer,
) -> impl Iterator<Item = (NodeIx, &'a Node)> {
    let ask = newcomer.job.ask;
    cluster
        .nodes()
        .filter(move |(ix, _)| ask.only.is_none_or(|only| only == *ix))
        .filter(move |(_, node)| node.is_eligible() && ask.demand.kinds().admits(node.kind()))
}

#[cfg(test)]
mod tests;
