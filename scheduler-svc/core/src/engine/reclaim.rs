//! Who gives way for whom, until it is done.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_model::Timestamp;

use super::{Effect, Engine};
use crate::{
    cluster::Place,
    placement::Rule,
    plan::{JobId, Standing},
    preempt::{Newcomer, Running},
    quota::Hold,
};

/// What is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Reclaims {
    /// For each newcomer, who is still there, and where it starts then.
    waiting: BTreeMap<JobId, (BTreeSet<JobId>, Vec<Place>)>,
}

impl Reclaims {
    fn insert(&mut self, newcomer: JobId, victims: BTreeSet<JobId>, places: Vec<Place>) {
        self.waiting.insert(newcomer, (victims, places));
    }

    fn is_newcomer(&self, id: JobId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// A job is no longer where it was.
    pub(super) fn gone(&mut self, id: JobId) {
        for (victims, _) in self.waiting.values_mut() {
            victims.remove(&id);
        }
    }

    fn is_victim(&self, id: JobId) -> bool {
        self.waiting
            .values()
            .any(|(victims, _)| victims.contains(&id))
    }

    /// A newcomer does not come.
    pub(super) fn forget_newcomer(&mut self, id: JobId) {
        self.waiting.remove(&id);
    }

    /// Those for whom everybody has gone.
    pub(super) fn ready(&self) -> Vec<JobId> {
        let gone =
            |(_, (victims, _)): &(&JobId, &(BTreeSet<JobId>, Vec<Place>))| victims.is_empty();
        self.waiting
            .iter()
            .filter(gone)
            .map(|(id, _)| *id)
            .collect()
    }

    fn victims_of(&self, newcomer: JobId) -> Option<usize> {
        self.waiting
            .get(&newcomer)
            .map(|(victims, _)| victims.len())
    }

    fn take(&mut self, newcomer: JobId) -> Option<Vec<Place>> {
        self.waiting.remove(&newcomer).map(|(_, places)| places)
    }
}

impl<R: Rule> Engine<R> {
    /// Looks for running work that gives way to the first of the queue.
    pub(super) fn look_for_room(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let soon = now.plus(self.settings.patience);
        let mut tried = 0;
        for id in self.plan.queue() {
            if tried >= self.settings.reclaims {
                break;
            }
            let starts_soon = match self.plan.standing(id) {
                Some(Standing::Reserved { start, .. }) => start <= soon,
                Some(Standing::Waiting) => false,
                Some(Standing::Running { .. }) | None => true,
            };
            let Some(work) = self.works.get(&id).copied() else {
                continue;
            };
            // Several of a team may be made room for in one turn.
            if starts_soon || self.plan.is_withheld(id) || self.exceeds(&work).is_some() {
                continue;
            }
            tried = tried.saturating_add(1);
            let newcomer = Newcomer {
                job: work.job,
                kind: work.kind,
                environment: work.environment,
            };
            let Some(reclaim) = self.runs.reclaim(self.index.cluster(), &newcomer, now) else {
                continue;
            };
            // With room already it waits for a reason: the room is reserved for others.
            if reclaim.victims.is_empty() || self.plan.begin(id, reclaim.places.clone()).is_err() {
                continue;
            }
            self.count(&work, Hold::Promised);
            for victim in &reclaim.victims {
                if let Some(running) = self.runs.get(victim.job) {
                    // Nobody gives way twice at once.
                    let leaving = Running {
                        fixed: true,
                        ..running.clone()
                    };
                    self.runs.insert(leaving);
                }
                effects.push(Effect::Stop {
                    victim: *victim,
                    newcomer: id,
                });
            }
            let victims = reclaim.victims.iter().map(|victim| victim.job).collect();
            self.reclaims.insert(id, victims, reclaim.places);
        }
    }

    /// Starts a job for which everybody has gone.
    pub(super) fn start_after_others(&mut self, id: JobId, now: Timestamp) -> Option<Effect> {
        let places = self.reclaims.take(id)?;
        let work = *self.works.get(&id)?;
        if self.take(&places, &work.job.ask.demand).is_err() {
            self.count_no_more(id);
            self.plan.finish(id, now);
            self.line_up(&work, now);
            return None;
        }
        self.note_running(&work, places.clone(), now, now);
        Some(Effect::Start { job: id, places })
    }

    /// Whether this job was told to give way and is still there.
    #[must_use]
    pub fn gives_way(&self, id: JobId) -> bool {
        self.reclaims.is_victim(id)
    }

    /// Whether others are giving way for this job.
    #[must_use]
    pub fn is_expected(&self, id: JobId) -> bool {
        self.reclaims.is_newcomer(id)
    }

    /// How many that give way for this job are still there; `None` where nobody was asked to.
    #[must_use]
    pub fn still_there_for(&self, id: JobId) -> Option<usize> {
        self.reclaims.victims_of(id)
    }
}
