//! One turn of the plan: who overran, who starts, who moves up, who goes between.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::Timestamp;

use super::{Job, JobId, Outcome, Plan, State, Turn};
use crate::{
    cluster::{NodeIx, Place},
    timeline::{Ask, Claim, Window},
};

/// How often reservations move up for each other in one turn.
const ROUNDS: usize = 2;
/// How many reservations are changed so that one who comes before them moves up.
const CHANGED: usize = 8;

impl Plan {
    /// Lets time pass until `now`, and says what follows from that and from what was told
    /// since the last turn. Who starts, runs from then on.
    pub fn turn(&mut self, now: Timestamp) -> Vec<Outcome> {
        self.timeline.pass(now);
        self.overruns();
        self.start_due();
        self.move_up();
        self.start_due();
        self.fill();
        if self.settings.backfill {
            self.backfill();
        }
        self.start_due();
        self.freed.clear();
        std::mem::take(&mut self.outcomes)
    }

    /// Gives every job that should have ended as long again as it is late, so that there are
    /// few corrections however late it becomes.
    fn overruns(&mut self) {
        let now = self.timeline.now();
        for id in self.due() {
            let Some(State::Running { expected, .. }) = self.jobs.get(&id).map(|job| &job.state)
            else {
                continue;
            };
            let until = now.plus(now.since(*expected).max(self.settings.grace));
            self.move_end(id, until);
            self.outcomes.push(Outcome::Overran { job: id, until });
        }
    }

    fn due(&self) -> Vec<JobId> {
        let now = self.timeline.now();
        let due = self.alarms.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, id)| *id).collect()
    }

    /// Starts every job whose reservation has begun.
    fn start_due(&mut self) {
        let now = self.timeline.now();
        for id in self.due() {
            let Some(State::Reserved { .. }) = self.jobs.get(&id).map(|job| &job.state) else {
                continue;
            };
            let Some(reserved) = self.withdraw(id) else {
                continue;
            };
            // A turn comes a moment late, always. That is no reason to move others: only a
            // long delay lets the job end later than was planned.
            let late = now.since(reserved.from);
            let claim = Claim {
                from: now,
                until: reserved.until.max(Timestamp(now.0.saturating_add(1))),
                ..reserved.clone()
            };
            if !self.run(id, &claim) {
                // Only a turn that comes after the end of the reservation finds it taken.
                self.place_anew(vec![(id, reserved)]);
            } else if late > self.settings.grace {
                self.move_end(id, reserved.until.plus(late));
            }
        }
    }

    fn run(&mut self, id: JobId, claim: &Claim) -> bool {
        if self.timeline.reserve(claim).is_err() {
            return false;
        }
        let Some(entry) = self.jobs.get_mut(&id) else {
            return false;
        };
        entry.state = State::Running {
            claim: claim.clone(),
            expected: claim.until,
        };
        self.alarms.insert((claim.until, id));
        self.outcomes.push(Outcome::Start {
            job: id,
            places: claim.places.clone(),
        });
        true
    }

    /// Finds another slot for a guaranteed job; where there is none, says so and lets it run
    /// as early as may be.
    fn keep_promise(&mut self, id: JobId) {
        let Some(job) = self.job(id).copied() else {
            return;
        };
        if self.guarantee(&job).is_some() {
            return;
        }
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.guaranteed = false;
            let turn = entry.turn;
            self.place_at_turn(&job, turn);
        }
        let expected_end = match self.jobs.get(&id).map(|entry| &entry.state) {
            Some(State::Reserved { claim, .. }) => Some(claim.until),
            Some(State::Waiting | State::Withheld | State::Running { .. }) | None => None,
        };
        self.outcomes.push(Outcome::DeadlineLost {
            job: id,
            expected_end,
        });
    }

    /// Finds slots for jobs whose reservations were taken back because what they rested on is
    /// gone: guaranteed ones first, earliest deadline first, then by turn.
    pub(super) fn place_anew(&mut self, displaced: Vec<(JobId, Claim)>) {
        let mut promised: Vec<(Timestamp, JobId)> = Vec::new();
        let mut others: Vec<(JobId, Claim)> = Vec::new();
        for (id, claim) in displaced {
            let Some(entry) = self.jobs.get(&id) else {
                continue;
            };
            match entry.job.deadline {
                Some(deadline) if entry.guaranteed => {
                    self.free(&claim);
                    promised.push((deadline.at, id));
                }
                Some(_) | None => others.push((id, claim)),
            }
        }
        promised.sort_unstable();
        for (_, id) in promised {
            self.keep_promise(id);
        }
        self.place_behind(others);
    }

    /// Moves the expected end of a running job. Reservations in the way are taken back, the
    /// last of the queue first and guaranteed ones last, and made anew.
    pub(super) fn move_end(&mut self, id: JobId, until: Timestamp) {
        let Some(State::Running { claim, expected }) = self.jobs.get(&id).map(|job| &job.state)
        else {
            return;
        };
        let (mut claim, expected) = (claim.clone(), *expected);
        let before = claim.until;
        let mut displaced = Vec::new();
        if until < before {
            self.free(&claim);
            let _gone = self.timeline.shorten(&mut claim, until);
        } else {
            for other in self.in_the_way(&claim, until) {
                if self.timeline.extend(&mut claim, until).is_ok() {
                    break;
                }
                displaced.extend(self.withdraw(other).map(|claim| (other, claim)));
            }
            if self.timeline.extend(&mut claim, until).is_err() {
                // A fact all the same: the node has less than runs on it.
                let longer = Claim {
                    from: before,
                    until,
                    ..claim.clone()
                };
                let _gone = self.timeline.record(&longer);
            }
        }
        claim.until = until;
        self.alarms.remove(&(before, id));
        self.alarms.insert((until, id));
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.state = State::Running { claim, expected };
            let late = entry
                .job
                .deadline
                .is_some_and(|deadline| until > deadline.at);
            if entry.guaranteed && late {
                entry.guaranteed = false;
                self.outcomes.push(Outcome::DeadlineLost {
                    job: id,
                    expected_end: Some(until),
                });
            }
        }
        self.place_anew(displaced);
    }

    /// Reserved jobs that share a node with a claim and begin before it would end, in the
    /// order in which they give way.
    pub(super) fn in_the_way(&self, claim: &Claim, until: Timestamp) -> Vec<JobId> {
        let mut found: Vec<(bool, Turn)> = Vec::new();
        for place in &claim.places {
            let on_it = (place.node, JobId(0))..=(place.node, JobId(u64::MAX));
            for (_, id) in self.by_node.range(on_it) {
                let Some(entry) = self.jobs.get(id) else {
                    continue;
                };
                if let State::Reserved { claim: other, firm } = &entry.state
                    && other.from < until
                {
                    let touches = |mine: &Place| {
                        mine.node == place.node
                            && (mine.gpus.bits() & place.gpus.bits() != 0
                                || place.gpus.bits() == 0
                                || mine.gpus.bits() == 0)
                    };
                    if other.places.iter().any(touches) {
                        found.push((*firm, entry.turn));
                    }
                }
            }
        }
        // Without a guarantee first, and of those the last of the queue.
        found.sort_by(|(firm, turn), (other_firm, other_turn)| {
            firm.cmp(other_firm).then(other_turn.cmp(turn))
        });
        found.dedup();
        found.into_iter().map(|(_, turn)| turn.id).collect()
    }

    /// Lets reservations begin earlier where something became free, in the order of the
    /// queue. What moves up leaves something free in turn.
    fn move_up(&mut self) {
        for _ in 0..ROUNDS {
            if self.freed.is_empty() {
                return;
            }
            let now = self.timeline.now();
            let firm = self.firm.iter().filter_map(|(_, id)| self.turn_of(*id));
            let mut turns: Vec<Turn> = firm.chain(self.soft.iter().copied()).collect();
            turns.sort_unstable();
            let mut moved = false;
            for turn in turns {
                moved |= self.move_one_up(turn.id, now);
            }
            if !moved {
                return;
            }
        }
    }

    fn move_one_up(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(entry) = self.jobs.get(&id) else {
            return false;
        };
        let State::Reserved { claim, firm } = &entry.state else {
            return false;
        };
        let (job, start, firm, turn) = (entry.job, claim.from, *firm, entry.turn);
        if start <= now {
            return false;
        }
        let behind = self.behind_on_freed(turn);
        let window = Window {
            from: now,
            latest: Timestamp(start.0.saturating_sub(1)),
        };
        let mut freed: Vec<NodeIx> = self.freed.iter().copied().collect();
        let own = claim
            .places
            .iter()
            .any(|place| self.freed.contains(&place.node));
        // Its own reservation is in its way only on its own nodes.
        let one = Ask {
            tasks: 1,
            ..job.ask
        };
        if !own
            && behind.is_empty()
            && self
                .timeline
                .earliest_among(&one, job.length, window, Some(&freed))
                .is_none()
        {
            return false;
        }
        let Some(old) = self.withdraw(id) else {
            return false;
        };
        freed.extend(old.places.iter().map(|place| place.node));
        freed.sort_unstable();
        freed.dedup();
        let slot = self
            .timeline
            .earliest_among(&job.ask, job.length, window, Some(&freed));
        if let Some(slot) = slot
            && self.reserve(id, slot, firm)
        {
            self.free(&old);
            return true;
        }
        if self.change_places(&job, firm, window, &freed, &behind) {
            self.free(&old);
            return true;
        }
        if !self.reserve_claim(id, old, firm) {
            self.note_waiting(id);
        }
        false
    }

    /// Those with a reservation without guarantee on a node where something became free, whose
    /// turn is later, in the order of their turns; none where they are many.
    fn behind_on_freed(&self, turn: Turn) -> Vec<JobId> {
        let mut turns: BTreeSet<Turn> = BTreeSet::new();
        for ix in &self.freed {
            for (other, _) in self.reserved_on(*ix) {
                let later = self.turn_of(other).filter(|other| *other > turn);
                turns.extend(later.filter(|later| self.soft.contains(later)));
            }
        }
        if turns.len() > CHANGED {
            return Vec::new();
        }
        turns.into_iter().map(|turn| turn.id).collect()
    }

    /// Gives a job without a reservation one among these nodes in place of those behind it,
    /// if each of them begins no later than before. Changes nothing otherwise.
    fn change_places(
        &mut self,
        job: &Job,
        firm: bool,
        window: Window,
        freed: &[NodeIx],
        behind: &[JobId],
    ) -> bool {
        if behind.is_empty() {
            return false;
        }
        let old: Vec<(JobId, Claim)> = behind
            .iter()
            .filter_map(|other| Some((*other, self.withdraw(*other)?)))
            .collect();
        let slot = self
            .timeline
            .earliest_among(&job.ask, job.length, window, Some(freed));
        let mut done = slot.is_some_and(|slot| self.reserve(job.id, slot, firm));
        for (other, claim) in &old {
            let no_later = Window {
                from: window.from,
                latest: claim.from,
            };
            let slot = self
                .job(*other)
                .and_then(|other| self.timeline.earliest(&other.ask, other.length, no_later));
            done = done && slot.is_some_and(|slot| self.reserve(*other, slot, false));
        }
        if done {
            for (_, claim) in &old {
                self.free(claim);
            }
            return true;
        }
        self.withdraw(job.id);
        for (other, _) in &old {
            self.withdraw(*other);
        }
        for (other, claim) in old {
            if !self.reserve_claim(other, claim, false) {
                self.note_waiting(other);
            }
        }
        false
    }

    /// Starts waiting jobs, in the order of the queue, where something became free and they
    /// end before whatever is reserved there.
    fn backfill(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        let now = self.timeline.now();
        let freed: Vec<NodeIx> = self.freed.iter().copied().collect();
        // What found no room needs not be tried again for as long or longer.
        let mut vain: BTreeMap<Ask, Duration> = BTreeMap::new();
        let turns: Vec<Turn> = self.waiting.iter().copied().collect();
        for turn in turns {
            let Some(job) = self.job(turn.id).copied() else {
                continue;
            };
            if vain.get(&job.ask).is_some_and(|tried| *tried <= job.length) {
                continue;
            }
            let window = Window::at(now);
            let slot = self
                .timeline
                .earliest_among(&job.ask, job.length, window, Some(&freed));
            match slot {
                Some(slot) => {
                    self.reserve(turn.id, slot, false);
                }
                None => {
                    vain.insert(job.ask, job.length);
                }
            }
        }
    }
}
