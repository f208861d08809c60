//! What can be said to whoever waits: why, how long, and what never.

use std::time::Duration;

use cnlab_model::{
    BLOCKS_PER_GPU, Timestamp,
    id::{NodeId, WorkloadId},
};
use scheduler_core::{
    QueueReason, RejectReason, estimate,
    plan::{Job, Standing as Stand},
    profile::Profile,
    run,
    runtime_estimate::{Basis, ENOUGH, Estimate},
    timeline::Ask,
};

use super::{Image, Slot, UNKNOWN, kind_of, queue::demand_of};
use crate::{
    app::node::cordon,
    cell::{
        Who,
        site::{self, Site},
    },
    store::record::{Gpu, Node, Run, Slice},
};

impl Image {
    /// Why somebody can never start on the nodes of this cell, whatever happens to them.
    pub(crate) fn refusal(&self, who: &Who, volume_on: Option<NodeId>) -> Option<RejectReason> {
        let (wanted, profile) = (who.storage_bytes(), who.profile());
        self.refused(profile, wanted, volume_on)
            .or_else(|| self.too_many_gpus(who, volume_on))
    }

    /// Why no node can ever give so many GPUs together.
    fn too_many_gpus(&self, who: &Who, volume_on: Option<NodeId>) -> Option<RejectReason> {
        let (profile, wanted) = (who.profile(), who.gpus());
        if wanted == 1 {
            return None;
        }
        if profile.percent != BLOCKS_PER_GPU {
            let percent = profile.percent;
            return Some(RejectReason::NotEntire { percent });
        }
        let suits = |site: &&Site| match volume_on {
            Some(node) => site.id() == node,
            None => site.node.disk_bytes >= who.storage_bytes(),
        };
        let family = &profile.gpu_type;
        let most_of = |site: &Site| site.together(family, |_| true);
        let mut suitable = self.sites.values().filter(suits).map(most_of);
        let mut most = 0;
        // The first that is large enough ends the search.
        suitable
            .all(|there| {
                most = there.max(most);
                there < wanted
            })
            .then(|| RejectReason::TooManyGpus {
                family: family.clone(),
                wanted,
                most,
            })
    }

    /// The same for a profile with a volume of so many bytes.
    pub(crate) fn refused(
        &self,
        profile: &Profile,
        wanted: u64,
        volume_on: Option<NodeId>,
    ) -> Option<RejectReason> {
        let family = profile.gpu_type.clone();
        if !(1..=BLOCKS_PER_GPU).contains(&profile.percent) {
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
        if let Some(reason) = self.kept_out(who) {
            return reason;
        }
        let profile = who.profile();
        let family = profile.gpu_type.clone();
        // The nodes on which it could run, were they open and empty.
        let would_do = |site: &&Site| {
            site.together(&family, |_| true) >= who.gpus()
                && match volume_on {
                    Some(node) => site.id() == node,
                    None => site.node.disk_bytes >= who.storage_bytes(),
                }
        };
        let would_do: Vec<&Site> = self.sites.values().filter(would_do).collect();
        let open: Vec<&Site> = would_do
            .iter()
            .copied()
            .filter(|site| site.is_open())
            .collect();
        let entirely_free = |gpu: &Gpu| gpu.taken.is_empty();
        let reason = match (open.is_empty(), who.gpus()) {
            (true, _) => QueueReason::NodesSilent { family },
            (false, 1) => QueueReason::Busy {
                wanted: profile.percent,
                most_free: open
                    .iter()
                    .map(|site| most_free(site, &family))
                    .max()
                    .unwrap_or(0),
                family,
            },
            (false, wanted) => QueueReason::BusyGpus {
                wanted,
                most_free: open
                    .iter()
                    .map(|site| site.together(&family, entirely_free))
                    .max()
                    .unwrap_or(0),
                family,
            },
        };
        let would_do: Vec<&Node> = would_do.iter().map(|site| &site.node).collect();
        cordon::words(volume_on, &reason, &would_do)
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
            let first = slot.slices.first();
            let gpu = |slice: &Slice| site.gpus.iter().find(|gpu| gpu.uuid == slice.gpu_uuid);
            first.and_then(gpu).is_some_and(|gpu| gpu.simulated)
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
        Some(Ask::one(demand_of(profile, 1)?.on(kinds)))
    }

    /// How long a slice is typically held.
    pub(crate) fn typical(&self) -> Duration {
        self.typical
    }

    /// How long a run will go on that has run for a time.
    pub(super) fn rest(
        &self,
        run: &Run,
        age: Duration,
        of: impl Fn(&Estimate) -> Duration,
    ) -> Duration {
        let kind = kind_of(run);
        let unknown = UNKNOWN.saturating_sub(age);
        match self.lengths.remaining(&kind, age) {
            None => unknown,
            // Where nothing was known of it, its age says nothing before the guess is over.
            Some(left) if left.basis == Basis::Outlived && self.lengths.length(&kind).is_none() => {
                of(&left).max(unknown)
            }
            Some(left) => of(&left),
        }
    }

    /// How long somebody will run, or go on, as likely longer as shorter.
    pub(crate) fn likely(&self, job: &Job, age: Option<Duration>) -> Duration {
        let who = self.workload(job.id).and_then(|id| self.who(id));
        match who {
            Some(Who::Run(run)) => {
                let age = age.unwrap_or(Duration::ZERO);
                self.rest(run, age, |left| left.likely)
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
