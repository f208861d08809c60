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
//!
//! insert, remove, saved ─▶ Summary ─▶ Floors       a bound of the loss per node, kept
//!                                       └─▶ Search ─▶ cheapest   nodes by rising bound
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
mod floors;
mod gang;
mod resident;
mod room;
mod search;
mod summary;
mod victims;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, Node, NodeIx, Place},
    plan::{Job, JobId},
};

pub use class::{Class, Environment, Ground, WorkKind};
use resident::{Price, Resident};
use room::Room;
use search::Search;
use summary::Summary;
use victims::Candidate;
pub use victims::EXACT;

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
        Price::of(running).loss(now)
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
        let from = running.since.plus(self.min_run);
        for ix in nodes_of(&running) {
            self.due.insert((from, ix));
            self.summary.insert(ix, Resident::of(&running, ix));
            self.recount(ix);
        }
        self.runs.insert(id, running);
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
                self.summary.saved(ix, id, running.saved());
                self.summary.recount(ix, self.min_run, self.as_of);
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
        self.summary.recount(ix, self.min_run, self.as_of);
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

    /// From when on a job that runs may be made to give way to work of a class; `None` where
    /// it never is.
    #[must_use]
    pub fn yields_from(&self, id: JobId, to: Class) -> Option<Timestamp> {
        let running = self.runs.get(&id)?;
        to.goes_before(running.class())?;
        (!running.fixed).then(|| running.since.plus(self.min_run))
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

    /// What may give way on a node.
    fn candidates(&self, ix: NodeIx, class: Class, now: Timestamp) -> Vec<Candidate> {
        let may = |there: &&Resident| {
            !there.fixed
                && now >= there.since.plus(self.min_run)
                && class.goes_before(there.class).is_some()
        };
        let may_go = self.summary.there(ix).iter().filter(may);
        may_go
            .map(|there| Candidate {
                id: there.id,
                loss: there.price.loss(now),
                part: there.part,
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
        let priority = newcomer.job.priority;
        let mut offers: Vec<(u64, NodeIx)> = Vec::with_capacity(cluster.bound());
        for (ix, node) in suitable(cluster, newcomer) {
            let mut room = Room::free(node);
            if room.hosts(demand, 1) {
                let gpus = room.take(demand)?;
                return Some((BTreeSet::new(), vec![Place { node: ix, gpus }]));
            }
            let floor = self.summary.floor(ix, &room, demand, priority, now);
            offers.extend(floor.map(|floor| (floor, ix)));
        }
        let bound = |ix: NodeIx| {
            let node = cluster.node(ix)?;
            let room = Room::free(node);
            self.summary
                .at_least(ix, node, &room, demand, priority, now)
        };
        let mut search = Search::new(self, cluster, newcomer, now);
        if search.in_any_order(offers, bound).is_err() {
            // What a search of limited length finds depends on what is known before.
            let offers = suitable(cluster, newcomer).filter_map(|(ix, _)| Some((bound(ix)?, ix)));
            search = Search::new(self, cluster, newcomer, now);
            search.in_order(offers.collect());
        }
        let (_, ix, victims) = search.best?;
        let victims: BTreeSet<JobId> = victims.into_iter().collect();
        let gpus = self.room(cluster, ix, &victims)?.take(demand)?;
        Some((victims, vec![Place { node: ix, gpus }]))
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
