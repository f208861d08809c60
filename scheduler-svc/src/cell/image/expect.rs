//! What can be said to whoever waits: why, how long, and what never.

use std::time::Duration;

use cnlab_model::{
    Timestamp,
    id::{NodeId, WorkloadId},
};
use scheduler_core::{
    QueueReason, RejectReason,
    cluster::Demand,
    estimate,
    plan::{Job, Standing as Stand},
    profile::Profile,
    run,
    runtime_estimate::{Basis, ENOUGH},
    timeline::Ask,
};

use super::{Image, MIB, Slot, UNKNOWN, kind_of};
use crate::{
    cell::{
        Who,
        site::{self, Site},
    },
    store::record::Run,
};

impl Image {
    /// Why somebody can never start on the nodes of this cell, whatever happens to them.
    pub(crate) fn refusal(&self, who: &Who, volume_on: Option<NodeId>) -> Option<RejectReason> {
        let (wanted, profile) = (who.storage_bytes(), who.profile());
        self.refused(profile, wanted, volume_on)
    }

    /// The same for a profile with a volume of so many bytes.
    pub(crate) fn refused(
        &self,
        profile: &Profile,
        wanted: u64,
        volume_on: Option<NodeId>,
    ) -> Option<RejectReason> {
        let family = profile.gpu_type.clone();
        if !(1..=cnlab_model::BLOCKS_PER_GPU).contains(&profile.percent) {
            let blocks = profile.percent;
            return Some(RejectReason::BadSlice { blocks });
        }
        if self.sites.is_empty() {
            return Some(RejectReason::NoNodes);
        }
        let has_family = |site: &&Site| site.shelves.iter().any(|shelf| shelf.family == family);
        if let Some(node) = volume_on {
            let there = self.sites.get(&node);
            return there
                .filter(has_family)
                .is_none()
                .then_some(RejectReason::VolumeElsewhere { node, family });
        }
        if self.kinds.for_volume(&family, wanted).is_some() {
            return None;
        }
        // The slow way only for what is refused.
        let disks = self.sites.values().filter(has_family);
        match disks.map(|site| site.node.disk_bytes).max() {
            None => Some(RejectReason::NoSuchGpu { family }),
            Some(largest) if wanted > largest => {
                Some(RejectReason::StorageTooLarge { wanted, largest })
            }
            // Disks are told apart only roughly in a cell with so many different ones.
            Some(_) => None,
        }
    }

    /// What somebody who waits waits for.
    pub(crate) fn reason(&self, who: &Who) -> String {
        let volume_on = self
            .entries
            .get(&who.id())
            .and_then(|entry| entry.volume_on);
        if let Some(reason) = self.refusal(who, volume_on) {
            return reason.to_string();
        }
        let profile = who.profile();
        let family = profile.gpu_type.clone();
        let mut open = self.sites.values().filter(|site| site.is_open());
        let most_free = match volume_on {
            Some(node) => self
                .sites
                .get(&node)
                .filter(|site| site.is_open())
                .map(|site| most_free(site, &family)),
            None => open
                .by_ref()
                .filter(|site| site.node.disk_bytes >= who.storage_bytes())
                .filter(|site| site.shelves.iter().any(|shelf| shelf.family == family))
                .map(|site| most_free(site, &family))
                .max(),
        };
        match most_free {
            None => QueueReason::NodesSilent { family }.to_string(),
            Some(most_free) => QueueReason::Busy {
                family,
                wanted: profile.percent,
                most_free,
            }
            .to_string(),
        }
    }

    /// How long somebody is planned to hold a slice, its start included.
    pub(super) fn length(&self, who: &Who, now: Timestamp) -> Duration {
        let run = match who {
            // From the grant on, as such lengths are learned.
            Who::Server(_) => return self.typical,
            Who::Run(run) => run,
        };
        let length = match self.lengths.length(&kind_of(run)) {
            Some(known) if is_known(known.basis) => known.bound,
            estimate => {
                let guess = estimate.map_or(UNKNOWN, |estimate| estimate.bound);
                // Nothing is known that speaks against a deadline; half of what is left is a
                // guess that leaves room for a wait.
                match run.deadline {
                    Some(deadline) => guess.min(deadline.since(now) / 2),
                    None => guess,
                }
            }
        };
        length.saturating_add(self.start_time(who, None))
    }

    /// From a grant until the workload is ready, on a node or on one that nobody knows yet.
    pub(crate) fn start_time(&self, who: &Who, on: Option<&Slot>) -> Duration {
        let Ok(image) = self.catalogue.image(who.image()) else {
            return Duration::ZERO;
        };
        let site = on.and_then(|slot| self.sites.get(&slot.node));
        let simulated = on.zip(site).is_some_and(|(slot, site)| {
            let gpu = site.gpus.iter().find(|gpu| gpu.uuid == slot.gpu_uuid);
            gpu.is_some_and(|gpu| gpu.simulated)
        });
        let has_it = |site: &Site| {
            let mut ready = site.node.ready_images.iter();
            ready.any(|ready| ready == who.image())
        };
        let ready = match site {
            Some(site) => has_it(site),
            None => self.sites.values().any(has_it),
        };
        let defaults = image.defaults(who.install_heavy() || !simulated);
        let past = self.starts.get(who.image()).map_or(&[][..], Vec::as_slice);
        let node = site.map(Site::id);
        estimate::provisioning(past, who.image(), node, ready, defaults)
    }

    /// Takes a run's end in, from which lengths are learned.
    pub(super) fn learn(&mut self, run: &Run) {
        let by_itself = matches!(
            run.state,
            run::State::Succeeded | run::State::Failed | run::State::TimedOut
        );
        if by_itself && let (Some(began), Some(ended)) = (run.started_at, run.ended_at) {
            self.lengths.learn(&kind_of(run), ended.since(began));
        }
    }

    /// A slice was held for so long.
    pub(super) fn learn_hold(&mut self, length: Duration) {
        const KEPT: usize = 100;
        self.held_for.past.push(length);
        if self.held_for.past.len() > KEPT {
            self.held_for.past.remove(0);
        }
        self.typical = self.held_for.typical();
    }

    /// When somebody who waits is planned to begin; `None` where nothing is planned yet.
    pub(crate) fn begins_at(&self, id: WorkloadId) -> Option<Timestamp> {
        let entry = self.entries.get(&id)?;
        match self.engine.plan().standing(entry.job)? {
            Stand::Reserved { start, .. } => Some(start),
            Stand::Waiting | Stand::Running { .. } => None,
        }
    }

    /// What a profile asks for, with a volume of no size.
    pub(crate) fn ask_of(&self, profile: &Profile) -> Option<Ask> {
        let kinds = self.kinds.of_family(&profile.gpu_type)?;
        let memory = u32::try_from(profile.memory_bytes.div_ceil(MIB)).ok()?;
        let share = Demand::share(profile.cpu_milli, memory, profile.percent).ok()?;
        Some(Ask::one(share.on(kinds)))
    }

    /// How long a slice is typically held.
    pub(crate) fn typical(&self) -> Duration {
        self.typical
    }

    /// How long somebody will run, or go on, as likely longer as shorter.
    pub(crate) fn likely(&self, job: &Job, age: Option<Duration>) -> Duration {
        let who = self.workload(job.id).and_then(|id| self.who(id));
        match who {
            Some(Who::Run(run)) => {
                let age = age.unwrap_or(Duration::ZERO);
                let left = self.lengths.remaining(&kind_of(run), age);
                left.map_or(UNKNOWN, |left| left.likely)
            }
            Some(Who::Server(_)) | None => age.map_or(self.typical, |age| self.held_for.rest(age)),
        }
    }
}

/// Whether enough ended runs say how long one lasts.
const fn is_known(basis: Basis) -> bool {
    match basis {
        Basis::History { runs, .. } => runs >= ENOUGH,
        Basis::Declared | Basis::Outlived => false,
    }
}

fn most_free(site: &Site, family: &str) -> u8 {
    let of_family = site
        .gpus
        .iter()
        .filter(|gpu| gpu.present && gpu.family == family);
    of_family
        .map(|gpu| site::free(gpu).count())
        .max()
        .unwrap_or(0)
}
