//! What becomes of a job that arrives, and what its arrival moves.

use std::{cmp::Reverse, collections::BTreeSet};

use cnlab_model::Timestamp;

use super::{Entry, Job, JobId, Plan, State, Turn, Unmet};
use crate::{
    cluster::NodeIx,
    timeline::{Claim, Slot, Window},
};

/// What became of a job that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is in the queue.
    Queued {
        /// When it starts at the latest, if nobody arrives who goes before it; `None` where
        /// it has no reservation yet.
        start: Option<Timestamp>,
    },
    /// Its deadline is guaranteed.
    Accepted {
        /// When it starts at the latest.
        start: Timestamp,
    },
    /// Its deadline cannot be met; it is in the queue all the same, as was asked for.
    AcceptedLate {
        /// When it would end, as things stand.
        expected_end: Option<Timestamp>,
    },
    /// Its deadline cannot be met, and it is not in the queue.
    Refused {
        /// When it would end, as things stand.
        expected_end: Option<Timestamp>,
    },
    /// The nodes there are can never run it; it is not in the queue.
    Impossible,
}

impl Plan {
    /// Takes in a job that wants to run, and says what becomes of it. [`Plan::turn`] says
    /// when it starts. A number that is known already is taken for a new job in its place.
    pub fn submit(&mut self, job: Job, now: Timestamp) -> Admission {
        self.submit_near(job, now, None)
    }

    /// The same, where the job probably has room on a node now: if it has, nothing else is
    /// looked at.
    pub fn submit_near(&mut self, job: Job, now: Timestamp, near: Option<NodeIx>) -> Admission {
        self.finish(job.id, now);
        let always = Window::from(self.timeline.now());
        if !self.timeline.could_hold(&job.ask) {
            return Admission::Impossible;
        }
        let turn = Turn::of(&job, self.rank(job.team));
        let entry = Entry {
            job,
            turn,
            guaranteed: false,
            late: false,
            state: State::Waiting,
        };
        self.jobs.insert(job.id, entry);
        let Some(deadline) = job.deadline else {
            return Admission::Queued {
                start: self.enqueue(&job, near),
            };
        };
        if let Some(start) = self.guarantee(&job) {
            return Admission::Accepted { start };
        }
        let expected_end = self
            .timeline
            .earliest(&job.ask, job.length, always)
            .map(|slot| slot.start.plus(job.length));
        match deadline.unmet {
            Unmet::Refuse => {
                self.jobs.remove(&job.id);
                Admission::Refused { expected_end }
            }
            Unmet::AcceptLate => {
                let rank = self.rank(job.team);
                if let Some(entry) = self.jobs.get_mut(&job.id) {
                    entry.late = true;
                    entry.turn = entry.turn(rank);
                }
                let start = self.enqueue(&job, near);
                Admission::AcceptedLate {
                    expected_end: start.map(|start| start.plus(job.length)).or(expected_end),
                }
            }
        }
    }

    /// Puts a job into the queue: it starts now where that moves nobody; it gets a
    /// reservation when its turn is near enough, before those whose turn is later.
    fn enqueue(&mut self, job: &Job, near: Option<NodeIx>) -> Option<Timestamp> {
        let now = self.timeline.now();
        let turn = self.turn_of(job.id)?;
        let first = |turns: &BTreeSet<Turn>| turns.first().is_none_or(|first| *first > turn);
        if (self.settings.backfill || first(&self.waiting) && first(&self.soft))
            && let Some(slot) = self.slot_now(job, near)
        {
            self.reserve(job.id, slot, false);
            return Some(now);
        }
        if self.soft.range(..turn).count() >= self.settings.depth || !first(&self.waiting) {
            self.note_waiting(job.id);
            return None;
        }
        self.place_at_turn(job, turn);
        self.start_of(job.id)
    }

    /// A slot that begins now, on the node that is named if there is one.
    fn slot_now(&self, job: &Job, near: Option<NodeIx>) -> Option<Slot> {
        let window = Window::at(self.timeline.now());
        let among = |nodes: &[NodeIx]| {
            let (ask, length) = (&job.ask, job.length);
            self.timeline
                .earliest_among(ask, length, window, Some(nodes))
        };
        near.filter(|_| job.ask.tasks == 1)
            .and_then(|node| among(&[node]))
            .or_else(|| self.timeline.earliest(&job.ask, job.length, window))
    }

    /// A reservation as early as may be, before those whose turn is later.
    pub(super) fn place_at_turn(&mut self, job: &Job, turn: Turn) {
        let behind = self.withdraw_soft(|other| *other > turn);
        if !self.before_promised(job) && !self.place_earliest(job.id) {
            self.note_waiting(job.id);
        }
        self.place_behind(behind);
    }

    /// Lets a job start before guaranteed ones of a lower priority, where all of them still
    /// end by their deadlines. Changes nothing where that gains nothing.
    fn before_promised(&mut self, job: &Job) -> bool {
        let from = Window::from(self.timeline.now());
        let promised = self.firm.iter().filter_map(|(_, id)| self.job(*id));
        let lower: Vec<Job> = promised
            .filter(|low| low.priority < job.priority)
            .take(self.settings.rearranged)
            .copied()
            .collect();
        let slot = self.timeline.earliest(&job.ask, job.length, from);
        if lower.is_empty() || slot.is_none() {
            return false;
        }
        let old: Vec<(JobId, Claim)> = lower
            .iter()
            .filter_map(|low| Some((low.id, self.withdraw(low.id)?)))
            .collect();
        let sooner = self.timeline.earliest(&job.ask, job.length, from);
        let gains = sooner.as_ref().map(|sooner| sooner.start) < slot.map(|slot| slot.start);
        if let Some(sooner) = sooner
            && gains
            && self.reserve(job.id, sooner, false)
        {
            if self.try_order(&lower).is_none() {
                for (_, claim) in &old {
                    self.free(claim);
                }
                return true;
            }
            self.withdraw(job.id);
        }
        for (id, claim) in old {
            self.put_back(id, claim, true);
        }
        false
    }

    fn start_of(&self, id: JobId) -> Option<Timestamp> {
        match &self.jobs.get(&id)?.state {
            State::Reserved { claim, .. } => Some(claim.from),
            State::Waiting | State::Withheld | State::Running { .. } => None,
        }
    }

    /// Guarantees the deadline of a job that is in no list: at its turn; if that is too late,
    /// before others of its priority and below; if that is too late, by rearranging what is
    /// guaranteed already. Changes nothing where none of it is possible.
    pub(super) fn guarantee(&mut self, job: &Job) -> Option<Timestamp> {
        let now = self.timeline.now();
        let window = self.window(job);
        if window.latest < now {
            return None;
        }
        let turn = self.turn_of(job.id)?;
        let slot = self
            .timeline
            .earliest(&job.ask, job.length, Window::at(now));
        if let Some(slot) = slot {
            return self.promise(job, slot);
        }
        let mut behind = self.withdraw_soft(|other| *other > turn);
        let mut slot = self.timeline.earliest(&job.ask, job.length, window);
        if slot.is_none() {
            let mut more = self.withdraw_soft(|other| other.priority >= turn.priority);
            more.append(&mut behind);
            behind = more;
            slot = self.timeline.earliest(&job.ask, job.length, window);
        }
        let start = match slot {
            Some(slot) => self.promise(job, slot),
            None => self.rearrange(job),
        };
        if start.is_some() {
            self.place_behind(behind);
        } else {
            for (id, claim) in behind {
                self.put_back(id, claim, false);
            }
        }
        start
    }

    fn promise(&mut self, job: &Job, slot: Slot) -> Option<Timestamp> {
        let start = slot.start;
        if !self.reserve(job.id, slot, true) {
            return None;
        }
        if let Some(entry) = self.jobs.get_mut(&job.id) {
            entry.guaranteed = true;
        }
        Some(start)
    }

    /// Places those whose reservations were taken back for somebody who goes before them, in
    /// the order of their turns, as many as have reservations.
    pub(super) fn place_behind(&mut self, mut behind: Vec<(JobId, Claim)>) {
        behind.sort_by_key(|(id, _)| self.turn_of(*id));
        for (id, claim) in behind {
            self.free(&claim);
            if self.soft.len() >= self.settings.depth || !self.place_earliest(id) {
                self.note_waiting(id);
            }
        }
    }

    /// Restores a reservation to where it was.
    fn put_back(&mut self, id: JobId, claim: Claim, firm: bool) {
        if !self.reserve_claim(id, claim, firm) {
            self.note_waiting(id);
        }
    }

    /// Makes room for a job by giving those with a guarantee other slots, each by its
    /// deadline. Orders are tried: by deadline, by latest start, the largest first; after each
    /// the one that found no slot goes to the front, as often as that is something new. All
    /// is as before where no order does.
    fn rearrange(&mut self, job: &Job) -> Option<Timestamp> {
        let deadline = job.deadline?.at;
        let half = self.settings.rearranged.div_euclid(2);
        let pivot = (deadline, job.id);
        let before = self.firm.range(..pivot).rev().take(half);
        let after = self.firm.range(pivot..).take(half);
        let mut by_deadline: Vec<(Timestamp, JobId)> = before.chain(after).copied().collect();
        let old: Vec<(JobId, Claim)> = by_deadline
            .iter()
            .filter_map(|(_, id)| Some((*id, self.withdraw(*id)?)))
            .collect();
        by_deadline.push(pivot);
        by_deadline.sort_unstable();
        let order = by_deadline.iter().filter_map(|(_, id)| self.job(*id));
        let order: Vec<Job> = order.copied().collect();
        if self.try_orders(order) {
            for (_, claim) in &old {
                self.free(claim);
            }
            if let Some(entry) = self.jobs.get_mut(&job.id) {
                entry.guaranteed = true;
            }
            return self.start_of(job.id);
        }
        for (id, claim) in old {
            self.put_back(id, claim, true);
        }
        None
    }

    fn try_orders(&mut self, by_deadline: Vec<Job>) -> bool {
        let mut by_start = by_deadline.clone();
        by_start.sort_by_key(|job| self.window(job).latest);
        let mut by_size = by_deadline.clone();
        by_size.sort_by_key(|job| {
            let size = u128::from(job.ask.blocks()).saturating_mul(job.length.as_micros());
            Reverse(size)
        });
        let starts = [by_deadline, by_start, by_size];
        let each = self.settings.orders.div_ceil(starts.len());
        for mut order in starts {
            for _ in 0..each {
                match self.try_order(&order) {
                    None => return true,
                    Some(0) => break,
                    Some(failed) => {
                        let first = order.remove(failed);
                        order.insert(0, first);
                    }
                }
            }
        }
        false
    }

    /// Places all of them in this order, or none; then, the position of the one that found no
    /// slot.
    fn try_order(&mut self, order: &[Job]) -> Option<usize> {
        for (position, job) in order.iter().enumerate() {
            let slot = self
                .timeline
                .earliest(&job.ask, job.length, self.window(job));
            if !slot.is_some_and(|slot| self.reserve(job.id, slot, true)) {
                for placed in order.iter().take(position) {
                    self.withdraw(placed.id);
                }
                return Some(position);
            }
        }
        None
    }
}
