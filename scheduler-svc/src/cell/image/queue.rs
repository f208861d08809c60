//! Who waits and who holds: in, out, and how the core knows them.

use std::time::Duration;

use cnlab_model::{
    BLOCKS_PER_GPU, Timestamp,
    id::{NodeId, WorkloadId},
};
use scheduler_core::{
    cluster::Demand,
    engine::Work,
    fragmentation::{Gradient, Popularity},
    plan::{Admission, Deadline, Job, JobId, TeamIx, Unmet},
    preempt::{Environment, WorkKind},
    profile::Profile,
    run,
    timeline::Ask,
};

use super::{ARRIVALS, Entry, Held, Image, MIB, RELEARN, Standing, Taken};
use crate::{cell::Who, store::record::Grant};

impl Image {
    /// What somebody asks of the core; `None` where nothing would do.
    pub(super) fn demand(&self, who: &Who, volume_on: Option<NodeId>) -> Option<Demand> {
        let profile = who.profile();
        let kinds = match volume_on {
            Some(_) => self.kinds.of_family(&profile.gpu_type)?,
            None => self
                .kinds
                .for_volume(&profile.gpu_type, who.storage_bytes())?,
        };
        Some(demand_of(profile, who.gpus())?.on(kinds))
    }

    pub(super) fn ask(&self, who: &Who, volume_on: Option<NodeId>) -> Option<Ask> {
        let only = match volume_on {
            Some(node) => {
                let shelves = &self.sites.get(&node)?.shelves;
                let family = &who.profile().gpu_type;
                Some(shelves.iter().find(|shelf| shelf.family == *family)?.ix)
            }
            None => None,
        };
        let demand = self.demand(who, volume_on)?;
        Some(Ask {
            only,
            ..Ask::one(demand)
        })
    }

    /// Takes somebody in who wants a slice.
    pub(crate) fn enter(
        &mut self,
        who: Who,
        volume_on: Option<NodeId>,
        unmet: Unmet,
        now: Timestamp,
    ) -> Taken {
        let id = who.id();
        self.leave(id, now);
        let job = JobId(self.next_job);
        self.next_job = self.next_job.saturating_add(1);
        let work = self.work(job, &who, volume_on, unmet, now);
        let admission = work.map_or(Admission::Impossible, |work| self.engine.submit(work, now));
        let standing = match admission {
            Admission::Queued { .. }
            | Admission::Accepted { .. }
            | Admission::AcceptedLate { .. } => Standing::Waits,
            Admission::Impossible => Standing::Parked,
            Admission::Refused { expected_end } => {
                let length = work.map_or(Duration::ZERO, |work| work.job.length);
                let micros = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
                return Taken::TooLate {
                    begins: expected_end.map(|end| Timestamp(end.0.saturating_sub(micros))),
                    ends: expected_end,
                };
            }
        };
        if matches!(standing, Standing::Parked) {
            self.parked.insert(id);
        }
        self.jobs.insert(job, id);
        self.entries.insert(
            id,
            Entry {
                job,
                who,
                volume_on,
                standing,
                chosen: None,
            },
        );
        Taken::In
    }

    /// Counts an arrival, from which the rule of placement learns.
    pub(crate) fn count_arrival(&mut self, id: WorkloadId) {
        let entry = self.entries.get(&id);
        let demand = entry.and_then(|entry| self.demand(&entry.who, entry.volume_on));
        self.arrivals.extend(demand);
        while self.arrivals.len() > ARRIVALS {
            self.arrivals.pop_front();
        }
        self.news = self.news.saturating_add(1);
        if self.news >= RELEARN {
            self.relearn();
        }
    }

    /// Makes the rule of placement from what arrived lately; until something did, from what
    /// is offered.
    pub(super) fn relearn(&mut self) {
        self.news = 0;
        let offered = self.offered.iter().filter_map(|profile| {
            let kinds = self.kinds.of_family(&profile.gpu_type)?;
            Some(demand_of(profile, 1)?.on(kinds))
        });
        let popularity = Popularity::typical(self.arrivals.iter().copied().chain(offered));
        self.engine.set_rule(Gradient::new(&popularity));
    }

    pub(super) fn work(
        &self,
        job: JobId,
        who: &Who,
        volume_on: Option<NodeId>,
        unmet: Unmet,
        now: Timestamp,
    ) -> Option<Work> {
        let ask = self.ask(who, volume_on)?;
        let (priority, deadline, kind, fixed) = match who {
            // Somebody sits in front of it.
            Who::Server(_) => (Default::default(), None, WorkKind::Interactive, true),
            Who::Run(run) => (
                run.priority,
                run.deadline,
                match run.kind {
                    run::Kind::Training => WorkKind::Training,
                    run::Kind::Inference => WorkKind::Inference,
                    run::Kind::Evaluation => WorkKind::Evaluation,
                },
                false,
            ),
        };
        Some(Work {
            job: Job {
                id: job,
                team: TeamIx(0),
                ask,
                length: self.length(who, now),
                priority,
                deadline: deadline.map(|at| Deadline { at, unmet }),
                submitted: who.since(),
            },
            team: who.team(),
            kind,
            environment: Environment::Development,
            fixed,
        })
    }

    /// Takes in what holds a slice according to the rows.
    pub(super) fn adopt(&mut self, who: Who, grant: &Grant, now: Timestamp) {
        let id = who.id();
        let job = JobId(self.next_job);
        self.next_job = self.next_job.saturating_add(1);
        let place = self
            .sites
            .get(&grant.node)
            .and_then(|site| site.place_of_all(&grant.slices));
        let age = now.since(grant.granted_at);
        let rest = match &who {
            Who::Server(_) => self.held_for.rest(age),
            Who::Run(run) => self.rest(run, age, |left| left.bound),
        };
        // Where it lies is known: no other node would do.
        let work = self.work(job, &who, Some(grant.node), Unmet::AcceptLate, now);
        // What lies on a GPU that is not there any more is none of the engine's business.
        if let (Some(place), Some(mut work)) = (place, work) {
            work.job.length = age.saturating_add(rest);
            let until = now.plus(rest);
            let adopted = self
                .engine
                .adopt(work, vec![place], grant.granted_at, until, now);
            if let Err(error) = adopted {
                tracing::error!(workload = %id, %error, "what runs does not fit into its node");
            }
        }
        if self.engine.runs().get(job).is_none() {
            self.count_elsewhere(job, grant);
        }
        self.jobs.insert(job, id);
        self.entries.insert(
            id,
            Entry {
                job,
                who,
                volume_on: Some(grant.node),
                standing: Standing::Holds(Held {
                    grant: grant.id,
                    node: grant.node,
                    slices: grant.slices.clone(),
                    since: grant.granted_at,
                }),
                chosen: None,
            },
        );
    }

    /// Takes somebody out, who does not want a slice any more and has none. Does nothing for
    /// somebody who is not known.
    pub(crate) fn leave(&mut self, id: WorkloadId, now: Timestamp) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        self.jobs.remove(&entry.job);
        self.parked.remove(&id);
        self.engine.ended(entry.job, now);
        if let Standing::Holds(held) = entry.standing {
            self.give_back(&held, now);
        }
    }

    pub(super) fn give_back(&mut self, held: &Held, now: Timestamp) {
        self.learn_hold(now.since(held.since));
        if let Some(site) = self.sites.get_mut(&held.node) {
            site.give_back(&held.slices);
        }
    }

    /// Those that fit nowhere any more leave the queue until something changes.
    pub(super) fn park_hopeless(&mut self, now: Timestamp) {
        let hopeless: Vec<WorkloadId> = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.standing, Standing::Waits))
            .filter(|(_, entry)| {
                let timeline = self.engine.plan().timeline();
                let job = self.engine.plan().job(entry.job);
                job.is_none_or(|job| !timeline.could_hold(&job.ask))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in hopeless {
            if let Some(entry) = self.entries.get_mut(&id) {
                self.engine.ended(entry.job, now);
                entry.standing = Standing::Parked;
                self.parked.insert(id);
            }
        }
    }

    pub(super) fn retry_parked(&mut self, now: Timestamp) {
        for id in std::mem::take(&mut self.parked) {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            let (who, volume_on) = (entry.who.clone(), entry.volume_on);
            self.enter(who, volume_on, Unmet::AcceptLate, now);
        }
    }
}

/// So many slices of a profile, on any node.
pub(super) fn demand_of(profile: &Profile, gpus: u8) -> Option<Demand> {
    let count = u64::from(gpus);
    let memory = profile.memory_bytes.div_ceil(MIB).saturating_mul(count);
    let memory = u32::try_from(memory).unwrap_or(u32::MAX);
    let cpu = profile.cpu_milli.saturating_mul(gpus.into());
    match gpus {
        1 => Demand::share(cpu, memory, profile.percent).ok(),
        _ if profile.percent == BLOCKS_PER_GPU => Demand::whole(cpu, memory, gpus).ok(),
        _ => None,
    }
}
