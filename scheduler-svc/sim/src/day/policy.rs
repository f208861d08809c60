//! Who decides on a synthetic day: the scheduler's engine, or a queue with one rule.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_model::Timestamp;
use scheduler_core::cluster::{Demand, Place};
use scheduler_core::engine::{Effect, Engine, Work};
use scheduler_core::index::Index;
use scheduler_core::placement::Rule;
use scheduler_core::plan::{Admission, JobId};

/// What a policy wants to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// This job starts.
    Start(JobId),
    /// This job gives way.
    Stop(JobId),
}

/// A policy.
pub trait Policy {
    /// A job arrives; true when it is refused.
    fn arrive(&mut self, work: Work, now: Timestamp) -> bool;
    /// A job has ended.
    fn ended(&mut self, id: JobId, now: Timestamp);
    /// A job that was told to has saved its state and stopped.
    fn gave_way(&mut self, id: JobId, now: Timestamp);
    /// What happens now.
    fn turn(&mut self, now: Timestamp) -> Vec<Said>;
    /// When it wants to be asked again without any event.
    fn wake_at(&self) -> Option<Timestamp>;
}

impl<R: Rule> Policy for Engine<R> {
    fn arrive(&mut self, work: Work, now: Timestamp) -> bool {
        matches!(
            self.submit(work, now),
            Admission::Refused { .. } | Admission::Impossible
        )
    }

    fn ended(&mut self, id: JobId, now: Timestamp) {
        Engine::ended(self, id, now);
    }

    fn gave_way(&mut self, id: JobId, now: Timestamp) {
        self.saved(id, now);
        Engine::gave_way(self, id, now);
    }

    fn turn(&mut self, now: Timestamp) -> Vec<Said> {
        let effects = Engine::turn(self, now);
        let said = effects.into_iter().filter_map(|effect| match effect {
            Effect::Start { job, .. } => Some(Said::Start(job)),
            Effect::Stop { victim, .. } => Some(Said::Stop(victim.job)),
            Effect::Overran { .. } | Effect::DeadlineLost { .. } => None,
        });
        said.collect()
    }

    fn wake_at(&self) -> Option<Timestamp> {
        Engine::wake_at(self)
    }
}

/// A queue by age.
#[derive(Debug)]
pub struct Queue<R> {
    index: Index<R>,
    /// Whether whoever fits goes ahead; else nobody overtakes.
    overtake: bool,
    waiting: BTreeMap<(Timestamp, JobId), Demand>,
    running: BTreeMap<JobId, (Place, Demand)>,
    changed: bool,
}

impl<R: Rule> Queue<R> {
    /// An empty one in front of these nodes.
    #[must_use]
    pub fn new(index: Index<R>, overtake: bool) -> Self {
        Self {
            index,
            overtake,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            changed: false,
        }
    }
}

impl<R: Rule> Policy for Queue<R> {
    fn arrive(&mut self, work: Work, _: Timestamp) -> bool {
        let job = work.job;
        self.waiting.insert((job.submitted, job.id), job.ask.demand);
        self.changed = true;
        false
    }

    fn ended(&mut self, id: JobId, _: Timestamp) {
        if let Some((place, demand)) = self.running.remove(&id) {
            // It was taken there.
            let _ = self.index.give(place, &demand);
            self.changed = true;
        }
    }

    fn gave_way(&mut self, _: JobId, _: Timestamp) {}

    fn turn(&mut self, _: Timestamp) -> Vec<Said> {
        if !std::mem::take(&mut self.changed) {
            return Vec::new();
        }
        let mut said = Vec::new();
        let mut vain: BTreeSet<Demand> = BTreeSet::new();
        let mut started = Vec::new();
        for (key, demand) in &self.waiting {
            if vain.contains(demand) {
                continue;
            }
            let place = self.index.place(demand).map(|choice| choice.place);
            let taken = place.filter(|place| self.index.take(*place, demand).is_ok());
            match taken {
                Some(place) => {
                    self.running.insert(key.1, (place, *demand));
                    started.push(*key);
                    said.push(Said::Start(key.1));
                }
                None if self.overtake => {
                    vain.insert(*demand);
                }
                None => break,
            }
        }
        for key in started {
            self.waiting.remove(&key);
        }
        said
    }

    fn wake_at(&self) -> Option<Timestamp> {
        None
    }
}
