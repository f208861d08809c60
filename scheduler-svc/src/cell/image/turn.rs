//! Decisions of the engine in the words of the rows, and what became of them.

use std::time::Duration;

use cnlab_model::Timestamp;
use scheduler_core::{
    cluster::Place,
    engine::Effect,
    plan::{JobId, Unmet},
};

use super::{Act, Chosen, Held, Image, Seen, Slot, Standing};
use crate::{
    cell::{Who, site},
    store::record::Grant,
};

impl Image {
    /// When something is to be done although nothing happens.
    pub(crate) fn wake_at(&self) -> Option<Timestamp> {
        let silence = self.silence_at();
        [self.engine.wake_at(), silence].into_iter().flatten().min()
    }

    /// Lets the engine decide, and puts its decisions into the words of the rows. What is
    /// granted counts as taken from here on.
    pub(crate) fn turn(&mut self, now: Timestamp) -> Vec<Act> {
        let mut acts = Vec::new();
        for effect in self.engine.turn(now) {
            match effect {
                Effect::Start { job, places } => match self.slot(job, &places) {
                    Some(slot) => acts.push(Act::Grant(slot)),
                    None => {
                        tracing::error!(?job, ?places, "a place that the plan gave is not there");
                        let id = self.workload(job);
                        let entry = id.and_then(|id| self.entries.get(&id));
                        if let Some(entry) = entry {
                            let (who, volume_on) = (entry.who.clone(), entry.volume_on);
                            self.enter(who, volume_on, Unmet::AcceptLate, now);
                        }
                    }
                },
                Effect::Stop { victim, newcomer } => {
                    let evicted = self.workload(victim.job);
                    let newcomer = self.workload(newcomer);
                    if let (Some(workload), Some(newcomer)) = (evicted, newcomer)
                        && let Some(Standing::Holds(held)) =
                            self.entries.get(&workload).map(|entry| &entry.standing)
                    {
                        acts.push(Act::Evict {
                            workload,
                            grant: held.grant,
                            node: held.node,
                            newcomer,
                        });
                    }
                }
                Effect::Overran { .. } => {}
                Effect::DeadlineLost { job, expected_end } => {
                    tracing::warn!(workload = ?self.workload(job), ?expected_end, "a deadline that was promised cannot be kept");
                }
            }
        }
        acts
    }

    pub(super) fn slot(&mut self, job: JobId, places: &[Place]) -> Option<Slot> {
        let workload = self.workload(job)?;
        let place = *places.first()?;
        let entry = self.entries.get(&workload)?;
        let percent = entry.who.profile().percent;
        let (who, tied) = (entry.who.clone(), entry.volume_on.is_some());
        let owner = *self.owners.get(&place.node)?;
        let site = self.sites.get_mut(&owner)?;
        let mut slot = Slot {
            workload,
            node: owner,
            node_name: site.node.name.clone(),
            gpu_type: who.profile().gpu_type.clone(),
            slices: site.take(place, percent)?,
            start: Duration::ZERO,
        };
        let mut ready = site.node.ready_images.iter();
        let first = slot.slices.first();
        let gpu = first.and_then(|first| site.gpus.iter().find(|gpu| gpu.uuid == first.gpu_uuid));
        let left = gpu.map_or(0, |gpu| site::free(gpu).count());
        let chosen = Chosen {
            left,
            image_ready: ready.any(|ready| ready == who.image()),
            tied,
        };
        slot.start = self.start_time(&who, Some(&slot));
        if let Some(entry) = self.entries.get_mut(&workload) {
            entry.chosen = Some(chosen);
        }
        Some(slot)
    }

    /// A grant is written down; `who` is as it was written with it.
    pub(crate) fn granted(&mut self, who: Who, grant: &Grant) {
        if let Some(entry) = self.entries.get_mut(&who.id()) {
            entry.who = who;
            entry.volume_on = Some(grant.node);
            entry.standing = Standing::Holds(Held {
                grant: grant.id,
                node: grant.node,
                slices: grant.slices.clone(),
                since: grant.granted_at,
            });
        }
    }

    /// A grant could not be written down: somebody changed the row. Who it was for is taken
    /// out, and comes back by its row.
    pub(crate) fn not_granted(&mut self, slot: &Slot, now: Timestamp) {
        if let Some(site) = self.sites.get_mut(&slot.node) {
            site.give_back(&slot.slices);
        }
        self.leave(slot.workload, now);
    }

    /// Somebody who waits was written down as it is now.
    pub(crate) fn noted(&mut self, who: Who) {
        if let Some(entry) = self.entries.get_mut(&who.id()) {
            entry.who = who;
        }
    }

    /// A row has changed.
    pub(crate) fn changed(&mut self, who: Who, now: Timestamp) -> Seen {
        let id = who.id();
        if let Who::Run(run) = &who {
            self.learn(run);
        }
        let Some(entry) = self.entries.get(&id) else {
            return match (who.waits(), who.grant()) {
                (false, None) => Seen::Done,
                (true, _) | (false, Some(_)) => Seen::Doubtful,
            };
        };
        if who.version() <= entry.who.version() {
            return Seen::Done;
        }
        match &entry.standing {
            Standing::Waits | Standing::Parked => match (who.waits(), who.grant()) {
                (true, None) => self.noted(who),
                (false, None) => self.leave(id, now),
                // Only its owner grants.
                (_, Some(_)) => return Seen::Wrong,
            },
            Standing::Holds(held) if who.grant() == Some(held.grant) => self.noted(who),
            Standing::Holds(held) => {
                if who.grant().is_some() {
                    return Seen::Wrong;
                }
                let held = held.clone();
                if !who.waits() {
                    self.leave(id, now);
                    return Seen::Done;
                }
                self.back_in_queue(who, &held, now);
            }
        }
        Seen::Done
    }

    /// Somebody lost its slice or gave way, and waits again in its old place.
    pub(super) fn back_in_queue(&mut self, who: Who, held: &Held, now: Timestamp) {
        let id = who.id();
        // A run begins anew with an empty volume; a server's stays where it is.
        let volume_on = match &who {
            Who::Server(_) => Some(held.node),
            Who::Run(_) => None,
        };
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let job = entry.job;
        let evicted = self.engine.gives_way(job);
        if evicted && volume_on.is_none() {
            self.give_back(held, now);
            self.engine.gave_way(job, now);
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.who = who;
                entry.volume_on = None;
                entry.standing = Standing::Waits;
                entry.chosen = None;
            }
        } else {
            self.enter(who, volume_on, Unmet::AcceptLate, now);
        }
    }
}
