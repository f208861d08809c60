//! The books of a plan: who has which reservation, and in which lists a job is.

use std::ops::Bound;

use super::{JobId, Plan, State, Turn};
use crate::timeline::{Claim, Slot, Window};

impl Plan {
    pub(super) fn free(&mut self, claim: &Claim) {
        self.freed
            .extend(claim.places.iter().map(|place| place.node));
    }

    /// Gives a job that waits a reservation; false where the slot is taken.
    pub(super) fn reserve(&mut self, id: JobId, slot: Slot, firm: bool) -> bool {
        let Some(job) = self.job(id) else {
            return false;
        };
        let claim = Claim::of(&job.ask, slot, job.length);
        self.reserve_claim(id, claim, firm)
    }

    pub(super) fn reserve_claim(&mut self, id: JobId, claim: Claim, firm: bool) -> bool {
        if self.timeline.reserve(&claim).is_err() {
            return false;
        }
        let Some(entry) = self.jobs.get_mut(&id) else {
            return false;
        };
        self.waiting.remove(&entry.turn);
        match entry.job.deadline {
            Some(deadline) if firm => {
                self.firm.insert((deadline.at, id));
            }
            Some(_) | None => {
                self.soft.insert(entry.turn);
            }
        }
        self.by_node
            .extend(claim.places.iter().map(|place| (place.node, id)));
        self.alarms.insert((claim.from, id));
        entry.state = State::Reserved { claim, firm };
        true
    }

    /// Takes a reservation back. The job is in no list then, until it is placed or noted.
    pub(super) fn withdraw(&mut self, id: JobId) -> Option<Claim> {
        let entry = self.jobs.get_mut(&id)?;
        let State::Reserved { claim, .. } = &entry.state else {
            return None;
        };
        let claim = claim.clone();
        entry.state = State::Waiting;
        self.soft.remove(&entry.turn);
        if let Some(deadline) = entry.job.deadline {
            self.firm.remove(&(deadline.at, id));
        }
        for place in &claim.places {
            self.by_node.remove(&(place.node, id));
        }
        self.alarms.remove(&(claim.from, id));
        // A node that left took its claims with it.
        let _gone = self.timeline.release(&claim);
        Some(claim)
    }

    /// Takes back the reservations without guarantee whose turn satisfies a test.
    pub(super) fn withdraw_soft(&mut self, test: impl Fn(&Turn) -> bool) -> Vec<(JobId, Claim)> {
        let turns: Vec<Turn> = self
            .soft
            .iter()
            .filter(|turn| test(turn))
            .copied()
            .collect();
        turns
            .into_iter()
            .filter_map(|turn| Some((turn.id, self.withdraw(turn.id)?)))
            .collect()
    }

    pub(super) fn note_waiting(&mut self, id: JobId) {
        self.waiting.extend(self.turn_of(id));
    }

    /// Reservations for the first of the queue, as many as are kept. Who can never run on the
    /// nodes there are keeps waiting and holds up nobody.
    pub(super) fn fill(&mut self) {
        let mut after = None;
        while self.soft.len() < self.settings.depth {
            let next = match after {
                None => self.waiting.first().copied(),
                Some(turn) => self
                    .waiting
                    .range((Bound::Excluded(turn), Bound::Unbounded))
                    .next()
                    .copied(),
            };
            let Some(turn) = next else { return };
            after = Some(turn);
            self.place_earliest(turn.id);
        }
    }

    /// A reservation without guarantee, as early as may be.
    pub(super) fn place_earliest(&mut self, id: JobId) -> bool {
        let Some(job) = self.job(id).copied() else {
            return false;
        };
        let from = Window::from(self.timeline.now());
        self.timeline
            .earliest(&job.ask, job.length, from)
            .is_some_and(|slot| self.reserve(id, slot, false))
    }
}
