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
mod room;
mod victims;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, Demand, Fit, Node, NodeIx, Place},
    plan::{Job, JobId},
};

pub use class::{Class, Environment, Ground, WorkKind};
use room::Room;
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
        let saved = self
            .checkpoint
            .map_or(self.since, |checkpoint| checkpoint.max(self.since));
        now.since(saved)
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
    by_node: BTreeMap<NodeIx, BTreeSet<JobId>>,
}

impl Runs {
    /// Nothing runs yet. Work that began less than `min_run` ago does not give way.
    #[must_use]
    pub const fn new(min_run: Duration) -> Self {
        Self {
            min_run,
            runs: BTreeMap::new(),
            by_node: BTreeMap::new(),
        }
    }

    /// Notes that a job runs. One with the same number is replaced.
    pub fn insert(&mut self, running: Running) {
        let id = running.job.id;
        self.remove(id);
        for place in &running.places {
            self.by_node.entry(place.node).or_default().insert(id);
        }
        self.runs.insert(id, running);
    }

    /// Notes that a job no longer runs.
    pub fn remove(&mut self, id: JobId) -> Option<Running> {
        let running = self.runs.remove(&id)?;
        for place in &running.places {
            if let Some(jobs) = self.by_node.get_mut(&place.node) {
                jobs.remove(&id);
                if jobs.is_empty() {
                    self.by_node.remove(&place.node);
                }
            }
        }
        Some(running)
    }

    /// Notes that the state of a job was saved.
    pub fn saved(&mut self, id: JobId, at: Timestamp) {
        if let Some(running) = self.runs.get_mut(&id) {
            running.checkpoint = running.checkpoint.max(Some(at));
        }
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
        &self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        now: Timestamp,
    ) -> Option<Reclaim> {
        let ask = &newcomer.job.ask;
        let (victims, places) = match ask.tasks {
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
        self.by_node
            .get(&ix)
            .into_iter()
            .flatten()
            .filter_map(|id| {
                let (running, loss) = self.candidate(*id, class, now)?;
                Some(Candidate {
                    id: *id,
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
        let mut best: Option<(Loss, NodeIx, Vec<JobId>, Room)> = None;
        for (ix, node) in suitable(cluster, newcomer) {
            let room = Room::free(node);
            let candidates = if room.tasks(demand) > 0 {
                Vec::new()
            } else {
                self.candidates(ix, newcomer.class(), now)
            };
            let limit = best.as_ref().map(|(loss, ..)| *loss);
            if let Some((loss, victims)) = cheapest(&room, &candidates, demand, 1, limit) {
                let nothing = loss == Loss::default();
                best = Some((loss, ix, victims, room));
                if nothing {
                    break;
                }
            }
        }
        let (_, ix, victims, mut room) = best?;
        for id in &victims {
            room = room.plus(&Room::held(self.runs.get(id)?, ix));
        }
        let gpus = room.take(demand)?;
        Some((
            victims.into_iter().collect(),
            vec![Place { node: ix, gpus }],
        ))
    }

    /// Room for several tasks: what it costs each node to host one, two, ... of them, then the
    /// cheapest combination, then whoever turns out not to be needed stays.
    fn gang(
        &self,
        cluster: &Cluster,
        newcomer: &Newcomer,
        tasks: u16,
        now: Timestamp,
    ) -> Option<(BTreeSet<JobId>, Vec<Place>)> {
        let demand = &newcomer.job.ask.demand;
        // What each number of tasks costs on the nodes seen so far, and per node how many of
        // them it hosts then.
        let mut least: Vec<Option<Loss>> = vec![None; usize::from(tasks).saturating_add(1)];
        *least.first_mut()? = Some(Loss::default());
        let mut hosted: Vec<(NodeIx, Vec<u16>)> = Vec::new();
        for (ix, node) in suitable(cluster, newcomer) {
            let costs = self.costs(ix, &Room::free(node), newcomer, tasks, now);
            if costs.len() <= 1 {
                continue;
            }
            let mut counts = vec![0; least.len()];
            // From the top, so that the smaller numbers are still those without this node.
            for total in (1..least.len()).rev() {
                let ways = costs.iter().zip(0_u16..).filter_map(|(cost, count)| {
                    let rest = total.checked_sub(count.into())?;
                    let before = least.get(rest).copied().flatten()?;
                    Some((before.plus(*cost), count))
                });
                if let Some((loss, count)) = ways.min()
                    && let (Some(slot), Some(hosts)) = (least.get_mut(total), counts.get_mut(total))
                {
                    *slot = Some(loss);
                    *hosts = count;
                }
            }
            hosted.push((ix, counts));
        }
        least.pop().flatten()?;
        let mut hosts: Vec<(NodeIx, u16)> = Vec::new();
        let mut total = usize::from(tasks);
        for (ix, counts) in hosted.iter().rev() {
            let count = counts.get(total).copied()?;
            total = total.checked_sub(count.into())?;
            if count > 0 {
                hosts.push((*ix, count));
            }
        }
        hosts.reverse();
        let mut victims = BTreeSet::new();
        for (ix, count) in &hosts {
            let room = Room::free(cluster.node(*ix)?);
            let candidates = self.candidates(*ix, newcomer.class(), now);
            let (_, ids) = cheapest(&room, &candidates, demand, (*count).into(), None)?;
            victims.extend(ids);
        }
        self.spare(cluster, &mut victims, &hosts, demand, now);
        let mut places = Vec::with_capacity(tasks.into());
        for (ix, count) in hosts {
            let mut room = self.room(cluster, ix, &victims)?;
            for _ in 0..count {
                let gpus = room.take(demand)?;
                places.push(Place { node: ix, gpus });
            }
        }
        Some((victims, places))
    }

    /// What it costs a node to host no task, one task and so on, as many as it can.
    fn costs(
        &self,
        ix: NodeIx,
        room: &Room,
        newcomer: &Newcomer,
        tasks: u16,
        now: Timestamp,
    ) -> Vec<Loss> {
        let demand = &newcomer.job.ask.demand;
        let candidates = self.candidates(ix, newcomer.class(), now);
        (0..=u32::from(tasks))
            .map_while(|count| cheapest(room, &candidates, demand, count, None))
            .map(|(loss, _)| loss)
            .collect()
    }

    /// Lets those stay, dearest first, without whom every host still has room.
    fn spare(
        &self,
        cluster: &Cluster,
        victims: &mut BTreeSet<JobId>,
        hosts: &[(NodeIx, u16)],
        demand: &Demand,
        now: Timestamp,
    ) {
        let mut order: Vec<(Loss, JobId)> = victims
            .iter()
            .filter_map(|id| Some((Loss::of(self.runs.get(id)?, now), *id)))
            .collect();
        order.sort_unstable();
        for (_, id) in order.into_iter().rev() {
            victims.remove(&id);
            let enough = hosts.iter().all(|(ix, count)| {
                self.room(cluster, *ix, victims)
                    .is_some_and(|room| room.tasks(demand) >= u32::from(*count))
            });
            if !enough {
                victims.insert(id);
            }
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

/// The nodes that could host a task of the newcomer if they had room.
fn suitable<'a>(
    cluster: &'a Cluster,
    newcomer: &Newcomer,
) -> impl Iterator<Item = (NodeIx, &'a Node)> {
    let ask = newcomer.job.ask;
    cluster
        .nodes()
        .filter(move |(ix, _)| ask.only.is_none_or(|only| only == *ix))
        .filter(move |(_, node)| match node.fit(&ask.demand) {
            Fit::NotEligible | Fit::Kind => false,
            Fit::Fits | Fit::Cpu | Fit::Memory | Fit::Gpus => true,
        })
}

#[cfg(test)]
mod tests;
