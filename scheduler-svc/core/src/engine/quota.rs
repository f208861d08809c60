//! What a team may hold at once, and who is kept out of the plan for it.
//!
//! A job that would exceed its team's quota beside what the others of its team have is withheld
//! from the plan: nothing is reserved for it, nobody gives way for it, and it keeps its place in
//! the queue. Of those of a team that wait for the same and are planned for the same time, no
//! more are let in than could start together: more would only be sent back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::{Timestamp, id::TeamId};

use super::{Effect, Engine, Work};
use crate::{
    cluster::Kind,
    placement::Rule,
    plan::{Admission, JobId, Outcome, Standing, Turn},
    quota::{Exceeded, Hold, Need, Pool, Quotas},
    timeline::Ask,
};

/// How often, in one turn, starts are sent back and others let in. What is left then is done in
/// the next one.
const ROUNDS: usize = 64;

/// Who stands before the quotas.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate {
    /// The type of GPU that a kind of node counts as.
    pools: BTreeMap<Kind, Pool>,
    /// Work of limited teams that does not run, withheld or not.
    waiting: BTreeMap<TeamId, BTreeSet<JobId>>,
    /// Teams of which something changed since it was last looked who may start.
    stirred: BTreeSet<TeamId>,
    /// Those that will start in this turn or the coming one, and count already, so that not
    /// more of a team is taken in together than may start together.
    starting: BTreeSet<JobId>,
}

impl Gate {
    /// Nodes have changed.
    pub(super) fn stir_all(&mut self) {
        self.stirred.extend(self.waiting.keys());
    }

    fn forget(&mut self, team: TeamId, id: JobId) {
        self.starting.remove(&id);
        if let Some(ids) = self.waiting.get_mut(&team) {
            ids.remove(&id);
            if ids.is_empty() {
                self.waiting.remove(&team);
            }
        }
    }
}

impl<R: Rule> Engine<R> {
    /// Says what teams may hold at once, before anything is taken in.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    /// Says of which type the GPUs of a kind of node are, where teams are limited for that
    /// type, before nodes of that kind join.
    pub fn set_pool(&mut self, kind: Kind, pool: Pool) {
        self.gate.pools.insert(kind, pool);
    }

    /// What teams hold against what they may.
    #[must_use]
    pub const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Counts blocks that a team holds outside of the nodes that are known here, until
    /// [`Self::ended`] is said of the job.
    pub fn count_elsewhere(&mut self, job: JobId, team: TeamId, need: Need) {
        self.quotas.charge(job, team, need, Hold::Held);
        self.gate.stirred.insert(team);
    }

    /// What an ask counts as.
    #[must_use]
    pub fn need(&self, ask: &Ask) -> Need {
        let kinds = ask.demand.kinds();
        let mut pools = self.gate.pools.iter();
        Need {
            blocks: ask.blocks(),
            // All kinds that would do are of one type where they are limited.
            pool: pools
                .find(|(kind, _)| kinds != crate::cluster::KindSet::ANY && kinds.admits(**kind))
                .map(|(_, pool)| *pool),
        }
    }

    /// The limit for which a job that waits may not start now, if there is one.
    #[must_use]
    pub fn over_quota(&self, id: JobId) -> Option<Exceeded> {
        self.exceeds(self.works.get(&id)?)
    }

    pub(super) fn exceeds(&self, work: &Work) -> Option<Exceeded> {
        let need = self.need(&work.job.ask);
        self.quotas.check(work.job.id, work.team, need).err()
    }

    /// Counts a job against the quota of its team.
    pub(super) fn count(&mut self, work: &Work, hold: Hold) {
        let need = self.need(&work.job.ask);
        self.quotas.charge(work.job.id, work.team, need, hold);
        if hold == Hold::Held {
            self.gate.forget(work.team, work.job.id);
        }
        self.gate.stirred.insert(work.team);
    }

    /// A job holds nothing and is promised nothing any more.
    pub(super) fn count_no_more(&mut self, id: JobId) {
        self.gate.stirred.extend(self.quotas.discharge(id));
        if let Some(work) = self.works.get(&id) {
            self.gate.stirred.insert(work.team);
            self.gate.forget(work.team, id);
        }
    }

    /// Puts work into the queue, or before its gate.
    pub(super) fn line_up(&mut self, work: &Work, now: Timestamp) -> Admission {
        let near = self.room_now(&work.job, now);
        if !self.quotas.is_limited(work.team) {
            return self.plan.submit_near(work.job, now, near);
        }
        let admission = if self.exceeds(work).is_some() {
            self.plan.submit_withheld(work.job, now)
        } else {
            self.plan.submit_near(work.job, now, near)
        };
        if self.plan.standing(work.job.id).is_some() {
            let waiting = self.gate.waiting.entry(work.team).or_default();
            waiting.insert(work.job.id);
            self.promise(work);
        }
        admission
    }

    /// Counts a job that will start now, or whose deadline is guaranteed.
    fn promise(&mut self, work: &Work) {
        let id = work.job.id;
        let now = self.plan.timeline().now();
        let starts = matches!(self.plan.standing(id), Some(Standing::Reserved { start, .. }) if start <= now);
        if self.plan.is_guaranteed(id) {
            self.count(work, Hold::Promised);
        } else if starts {
            self.count(work, Hold::Promised);
            self.gate.starting.insert(id);
        }
    }

    /// Lets the plan say who starts, as often as somebody is sent back or let in for a quota.
    pub(super) fn carry_out(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.settle(now);
        for _ in 0..ROUNDS {
            let outcomes = self.plan.turn(now);
            let sent_back = self.send_back_those_over(&outcomes, now);
            for outcome in outcomes {
                match outcome {
                    Outcome::Start { job, .. } if sent_back.contains(&job) => {}
                    Outcome::Start { job, places } => {
                        let started = self.start(job, places, now);
                        if started.is_none() {
                            self.gate.stirred.extend(self.quotas.discharge(job));
                        }
                        effects.extend(started);
                    }
                    Outcome::Overran { job, until } => {
                        effects.push(Effect::Overran { job, until });
                    }
                    Outcome::DeadlineLost { job, expected_end } => {
                        if self.quotas.hold(job) == Some(Hold::Promised) && !self.is_expected(job) {
                            self.gate.stirred.extend(self.quotas.discharge(job));
                        }
                        effects.push(Effect::DeadlineLost { job, expected_end });
                    }
                }
            }
            for id in std::mem::take(&mut self.gate.starting) {
                // It does not start after all: somebody goes before it.
                self.gate.stirred.extend(self.quotas.discharge(id));
            }
            if !self.settle(now) && sent_back.is_empty() {
                return;
            }
        }
    }

    /// Of those of a team that the plan starts together, the first of the queue come into its
    /// quota; the others are sent back.
    fn send_back_those_over(&mut self, outcomes: &[Outcome], now: Timestamp) -> BTreeSet<JobId> {
        let starting = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Start { job, .. } => self.works.get(job).copied(),
            Outcome::Overran { .. } | Outcome::DeadlineLost { .. } => None,
        });
        let limited = starting.filter(|work| self.quotas.is_limited(work.team));
        let in_order: BTreeMap<Option<Turn>, Work> = limited
            .map(|work| (self.plan.turn_of(work.job.id), work))
            .collect();
        let mut over = BTreeSet::new();
        for work in in_order.into_values() {
            let id = work.job.id;
            if self.exceeds(&work).is_some() {
                self.send_back(id, now);
                over.insert(id);
            } else {
                self.count(&work, Hold::Promised);
            }
        }
        over
    }

    fn send_back(&mut self, id: JobId, now: Timestamp) {
        self.plan.withhold(id, now);
        self.gate.starting.remove(&id);
        self.gate.stirred.extend(self.quotas.discharge(id));
    }

    /// Sends those back that do not fit into the quotas of their teams any more, and lets those
    /// in that do. Answers whether that changed the plan.
    pub(super) fn settle(&mut self, now: Timestamp) -> bool {
        let mut changed = false;
        for team in std::mem::take(&mut self.gate.stirred) {
            let Some(waiting) = self.gate.waiting.get(&team) else {
                continue;
            };
            let mut back = Vec::new();
            let mut before: BTreeMap<(Ask, Duration), u64> = BTreeMap::new();
            let mut willing: BTreeMap<Turn, Work> = BTreeMap::new();
            for id in waiting {
                let Some(work) = self.works.get(id) else {
                    continue;
                };
                let fits = self.exceeds(work).is_none();
                if self.plan.is_withheld(*id) {
                    let turn = self.plan.turn_of(*id).filter(|_| fits);
                    willing.extend(turn.map(|turn| (turn, *work)));
                } else if let Some(Standing::Running { .. }) = self.plan.standing(*id) {
                    // Others are leaving for it.
                } else if fits {
                    let like = before.entry((work.job.ask, work.job.length)).or_default();
                    // What is promised counts as used already.
                    if self.quotas.hold(*id).is_none() {
                        *like = like.saturating_add(1);
                    }
                } else {
                    back.push(*id);
                }
            }
            for id in back {
                self.send_back(id, now);
                changed = true;
            }
            for work in willing.into_values() {
                let need = self.need(&work.job.ask);
                let like = before.entry((work.job.ask, work.job.length)).or_default();
                let room = self.quotas.room(team, need);
                let enough = room.is_some_and(|room| *like >= room);
                if enough || !self.plan.let_in(work.job.id, now) {
                    continue;
                }
                self.promise(&work);
                if self.quotas.hold(work.job.id).is_none() {
                    *like = like.saturating_add(1);
                }
                changed = true;
            }
        }
        changed
    }
}
