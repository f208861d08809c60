//! The cell in memory: who runs where and who waits, in step with the core's engine.
//!
//! **Invariants**
//! - What the image takes for free is free in the rows: only its owner grants blocks, and blocks
//!   that somebody gave back are known here later than there, never earlier.
//! - Everything in it can be read from the rows again. Where it and the rows disagree it is
//!   thrown away, not repaired.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use cnlab_model::{
    Blocks, Timestamp,
    id::{GrantId, NodeId, WorkloadId},
};
use scheduler_core::{
    QueueReason, RejectReason,
    cluster::{Cluster, Demand, NodeIx, Place},
    engine::{Effect, Engine, Settings, Work},
    estimate::{self, PastStart, RunLengths},
    fragmentation::{Gradient, Popularity},
    plan::{Admission, Deadline, Job, JobId, Standing as Stand, TeamIx, Unmet},
    preempt::{Environment, WorkKind},
    profile::{self, Profile},
    run,
    runtime_estimate::{self, Basis, ENOUGH, RuntimeEstimator},
    timeline::Ask,
};

use super::{
    Who,
    kinds::Kinds,
    site::{self, Shelf, Site},
};
use crate::{
    app::catalog::Catalogue,
    store::{
        load::Rows,
        record::{Gpu, Grant, Node, Run},
    },
};

/// How long a run is planned for of which nothing is known.
const UNKNOWN: Duration = Duration::from_secs(60 * 60);
/// How many arrivals the popularity of demands is taken from.
const ARRIVALS: usize = 1_000;
/// After how many arrivals it is taken again.
const RELEARN: usize = 200;
const MIB: u64 = 1 << 20;

/// What an arrival may expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in the queue, and may start in the next turn.
    In,
    /// Its deadline cannot be met, so it is not in the queue.
    TooLate {
        begins: Option<Timestamp>,
        ends: Option<Timestamp>,
    },
}

/// A place for somebody, in the words of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) workload: WorkloadId,
    pub(crate) node: NodeId,
    pub(crate) node_name: String,
    pub(crate) gpu_uuid: String,
    pub(crate) gpu_type: String,
    pub(crate) blocks: Blocks,
    pub(crate) vram_bytes: u64,
    /// Until the workload is ready.
    pub(crate) start: Duration,
}

/// What the engine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    Grant(Slot),
    /// It gives way to somebody.
    Evict {
        workload: WorkloadId,
        grant: GrantId,
        node: NodeId,
        newcomer: WorkloadId,
    },
}

/// What an image made of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is taken in.
    Done,
    /// It speaks of something else than what is known: the row has to be looked at.
    Doubtful,
    /// The image is wrong.
    Wrong,
}

#[derive(Debug, Clone)]
enum Standing {
    /// In the engine's queue.
    Waits,
    /// It fits nowhere as things are, and is kept out of the queue until nodes change.
    Parked,
    Holds(Held),
}

#[derive(Debug, Clone)]
struct Held {
    grant: GrantId,
    node: NodeId,
    uuid: String,
    blocks: Blocks,
    since: Timestamp,
}

#[derive(Debug, Clone)]
struct Entry {
    job: JobId,
    who: Who,
    /// Where its volume lies, if it was ever used.
    volume_on: Option<NodeId>,
    standing: Standing,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Image {
    catalogue: Arc<Catalogue>,
    ttl: Duration,
    engine: Engine<Gradient>,
    kinds: Kinds,
    sites: BTreeMap<NodeId, Site>,
    /// Whose shelf an index of the engine is.
    owners: BTreeMap<NodeIx, NodeId>,
    entries: BTreeMap<WorkloadId, Entry>,
    jobs: BTreeMap<JobId, WorkloadId>,
    next_job: u64,
    parked: BTreeSet<WorkloadId>,
    /// Nodes that answer, the one that was heard of least lately first.
    heard: BTreeSet<(Timestamp, NodeId)>,
    offered: Vec<Profile>,
    held_for: RunLengths,
    typical: Duration,
    lengths: RuntimeEstimator,
    pub(super) starts: BTreeMap<String, Vec<PastStart>>,
    arrivals: VecDeque<Demand>,
    /// Arrivals since the rule was made.
    news: usize,
}

fn kind_of(run: &Run) -> runtime_estimate::Kind {
    runtime_estimate::Kind {
        team: run.team,
        image: run.image.clone(),
        profile: run.profile.name.clone(),
        max_runtime: run.max_runtime,
    }
}

impl Image {
    /// The image of these rows. Whose blocks lie on a GPU that is not there any more keeps
    /// them, outside of the engine.
    pub(crate) fn of(rows: Rows, catalogue: Arc<Catalogue>, ttl: Duration, now: Timestamp) -> Self {
        let offered = {
            let families = rows.gpus.iter().filter(|gpu| gpu.present);
            let families = families.map(|gpu| gpu.family.as_str());
            profile::offered(&catalogue.profiles, &catalogue.templates, families)
        };
        let rule = Gradient::new(&Popularity::default());
        let engine = Engine::new(
            Cluster::new(),
            rule,
            BTreeMap::new(),
            Settings::default(),
            now,
        );
        let mut image = Self {
            catalogue,
            ttl,
            engine,
            kinds: Kinds::default(),
            sites: BTreeMap::new(),
            owners: BTreeMap::new(),
            entries: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_job: 0,
            parked: BTreeSet::new(),
            heard: BTreeSet::new(),
            offered,
            held_for: RunLengths {
                past: rows.lengths,
                ..RunLengths::default()
            },
            typical: UNKNOWN,
            lengths: RuntimeEstimator::default(),
            starts: rows.starts,
            arrivals: VecDeque::new(),
            news: 0,
        };
        image.typical = image.held_for.typical();
        for run in &rows.ended {
            image.learn(run);
        }
        for used in rows.used {
            // The past of a team, which is exact from the next change on.
            let shares = image.engine.shares_mut();
            let amount = used.amount;
            let _counted = shares
                .hold(used.team, amount, used.from)
                .and_then(|()| shares.release(used.team, amount, used.until));
        }
        let mut gpus: BTreeMap<NodeId, Vec<Gpu>> = BTreeMap::new();
        for gpu in rows.gpus {
            gpus.entry(gpu.node).or_default().push(gpu);
        }
        for node in rows.nodes {
            let gpus = gpus.remove(&node.id).unwrap_or_default();
            image.put(node, gpus, now);
        }
        let grants: BTreeMap<GrantId, Grant> = rows
            .grants
            .into_iter()
            .map(|grant| (grant.id, grant))
            .collect();
        for who in rows.holding {
            if let Some(grant) = who.grant().and_then(|id| grants.get(&id)) {
                image.adopt(who, grant, now);
            }
        }
        let mut waiting = rows.waiting;
        waiting.sort_by_key(|(who, _)| (who.since(), who.id()));
        for (who, volume_on) in waiting {
            let demand = image.demand(&who, volume_on);
            image.arrivals.extend(demand);
            image.enter(who, volume_on, Unmet::AcceptLate, now);
        }
        image.relearn();
        // Silent nodes were open until everything that runs on them was in its place.
        image.pass(now);
        image
    }

    /// The profiles that can be asked for here.
    pub(crate) fn offered(&self) -> &[Profile] {
        &self.offered
    }

    pub(crate) fn engine(&self) -> &Engine<Gradient> {
        &self.engine
    }

    /// The servers and runs that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Who> {
        let waits = |entry: &&Entry| !matches!(entry.standing, Standing::Holds(_));
        self.entries.values().filter(waits).map(|entry| &entry.who)
    }

    /// Every GPU that is there.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        let all = self.sites.values().flat_map(|site| &site.gpus);
        all.filter(|gpu| gpu.present)
    }

    pub(crate) fn who(&self, id: WorkloadId) -> Option<&Who> {
        self.entries.get(&id).map(|entry| &entry.who)
    }

    pub(crate) fn job(&self, id: WorkloadId) -> Option<JobId> {
        self.entries.get(&id).map(|entry| entry.job)
    }

    pub(crate) fn workload(&self, job: JobId) -> Option<WorkloadId> {
        self.jobs.get(&job).copied()
    }

    /// Whether somebody holds this grant here.
    pub(crate) fn holds(&self, id: WorkloadId, grant: Option<GrantId>) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| match &entry.standing {
            Standing::Holds(held) => Some(held.grant) == grant,
            Standing::Waits | Standing::Parked => false,
        })
    }

    // --- nodes

    /// A node has registered. Answers `false` when the image has to be read anew: its GPUs are
    /// not those that it had.
    pub(crate) fn registered(&mut self, node: Node, gpus: &[Gpu], now: Timestamp) -> bool {
        let Some(site) = self.sites.get_mut(&node.id) else {
            let first_of_family = gpus.iter().any(|gpu| {
                self.offered
                    .iter()
                    .all(|offered| offered.gpu_type != gpu.family)
            });
            let moved = gpus.iter().any(|gpu| {
                !gpu.simulated
                    && self
                        .sites
                        .values()
                        .any(|site| site.place_of(&gpu.uuid).is_some())
            });
            if first_of_family || moved {
                return false;
            }
            self.put(node, gpus.to_vec(), now);
            self.retry_parked(now);
            return true;
        };
        let same_machine = site.node.disk_bytes == node.disk_bytes
            && site.node.cpu_milli == node.cpu_milli
            && site.node.memory_bytes == node.memory_bytes;
        if !same_machine || !site.has_same_gpus(gpus) {
            return false;
        }
        let (id, at, disk_free) = (node.id, node.last_seen_at, node.disk_free_bytes);
        site.node = Node {
            last_seen_at: site.node.last_seen_at,
            ..node
        };
        self.heard_of(id, disk_free, at, now)
    }

    /// A node was heard of. Answers `false` for one that is not known.
    pub(crate) fn heard_of(
        &mut self,
        id: NodeId,
        disk_free: u64,
        at: Timestamp,
        now: Timestamp,
    ) -> bool {
        let Some(site) = self.sites.get_mut(&id) else {
            return false;
        };
        self.heard.remove(&(site.node.last_seen_at, id));
        site.node.last_seen_at = at.max(site.node.last_seen_at);
        site.node.disk_free_bytes = disk_free;
        self.heard.insert((site.node.last_seen_at, id));
        if !site.answers {
            site.answers = true;
            self.reopen(id, now);
        }
        true
    }

    /// An image's environment is built on a node.
    pub(crate) fn image_ready(&mut self, id: NodeId, image: &str) {
        if let Some(site) = self.sites.get_mut(&id)
            && site.node.ready_images.iter().all(|ready| ready != image)
        {
            site.node.ready_images.push(image.to_owned());
        }
    }

    /// Lets time pass: nodes fall silent. Answers whether any did.
    pub(crate) fn pass(&mut self, now: Timestamp) -> bool {
        let mut fell = false;
        let before = silent_before(now, self.ttl);
        while let Some((at, id)) = self.heard.first().copied()
            && at < before
        {
            self.heard.pop_first();
            fell = true;
            if let Some(site) = self.sites.get_mut(&id) {
                site.answers = false;
            }
            self.reopen(id, now);
        }
        fell
    }

    /// When the next node falls silent if it is not heard of.
    pub(crate) fn silence_at(&self) -> Option<Timestamp> {
        self.heard.first().map(|(at, _)| at.plus(self.ttl))
    }

    /// Tells the engine whether a node can get new work.
    fn reopen(&mut self, id: NodeId, now: Timestamp) {
        let Some(site) = self.sites.get(&id) else {
            return;
        };
        let open = site.is_open();
        let shelves: Vec<NodeIx> = site.shelves.iter().map(|shelf| shelf.ix).collect();
        for ix in shelves {
            // It was given by the engine.
            let _known = self.engine.set_eligible(ix, open, now);
        }
        if open {
            self.retry_parked(now);
        } else {
            self.park_hopeless(now);
        }
    }

    fn put(&mut self, node: Node, gpus: Vec<Gpu>, now: Timestamp) {
        let id = node.id;
        let mut site = Site {
            node,
            shelves: Vec::new(),
            answers: true,
            gpus,
        };
        for (family, on_it) in site::shelves(&site.gpus) {
            let Some(kind) = self.kinds.of(&family, site.node.disk_bytes) else {
                tracing::error!(cnlab.node_id = %id, family, "too many kinds of GPUs: these are not used");
                continue;
            };
            let gpus: Vec<&Gpu> = on_it.iter().filter_map(|at| site.gpus.get(*at)).collect();
            let smallest = gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
            let Some(core) = site::core_node(kind, &site.node, &gpus, &self.offered) else {
                continue;
            };
            self.engine.set_vram(kind, smallest / MIB);
            match self.engine.add_node(core, now) {
                Ok(ix) => {
                    self.owners.insert(ix, id);
                    site.shelves.push(Shelf {
                        ix,
                        family,
                        gpus: on_it,
                    });
                }
                Err(error) => tracing::error!(cnlab.node_id = %id, %error, "a node is not used"),
            }
        }
        self.heard.insert((site.node.last_seen_at, id));
        self.sites.insert(id, site);
    }

    // --- servers and runs

    /// What somebody asks of the core; `None` where nothing would do.
    fn demand(&self, who: &Who, volume_on: Option<NodeId>) -> Option<Demand> {
        let profile = who.profile();
        let kinds = match volume_on {
            Some(_) => self.kinds.of_family(&profile.gpu_type)?,
            None => self
                .kinds
                .for_volume(&profile.gpu_type, who.storage_bytes())?,
        };
        let memory = u32::try_from(profile.memory_bytes.div_ceil(MIB)).unwrap_or(u32::MAX);
        let share = Demand::share(profile.cpu_milli, memory, profile.percent).ok()?;
        Some(share.on(kinds))
    }

    fn ask(&self, who: &Who, volume_on: Option<NodeId>) -> Option<Ask> {
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
    fn length(&self, who: &Who, now: Timestamp) -> Duration {
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
    fn relearn(&mut self) {
        self.news = 0;
        let offered = self.offered.iter().filter_map(|profile| {
            let kinds = self.kinds.of_family(&profile.gpu_type)?;
            let memory = u32::try_from(profile.memory_bytes.div_ceil(MIB)).ok()?;
            let share = Demand::share(profile.cpu_milli, memory, profile.percent).ok()?;
            Some(share.on(kinds))
        });
        let popularity = Popularity::typical(self.arrivals.iter().copied().chain(offered));
        self.engine.set_rule(Gradient::new(&popularity));
    }

    fn work(
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
    fn adopt(&mut self, who: Who, grant: &Grant, now: Timestamp) {
        let id = who.id();
        let job = JobId(self.next_job);
        self.next_job = self.next_job.saturating_add(1);
        let place = self
            .sites
            .get(&grant.node)
            .and_then(|site| site.place_of(&grant.gpu_uuid));
        let age = now.since(grant.granted_at);
        let rest = match &who {
            Who::Server(_) => self.held_for.rest(age),
            Who::Run(run) => self
                .lengths
                .remaining(&kind_of(run), age)
                .map_or(UNKNOWN, |left| left.bound),
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
                    uuid: grant.gpu_uuid.clone(),
                    blocks: grant.blocks,
                    since: grant.granted_at,
                }),
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

    fn give_back(&mut self, held: &Held, now: Timestamp) {
        self.learn_hold(now.since(held.since));
        let site = self.sites.get_mut(&held.node);
        if let Some(gpu) = site.and_then(|site| site.gpu_mut(&held.uuid)) {
            gpu.taken = gpu.taken.minus(held.blocks);
        }
    }

    /// Those that fit nowhere any more leave the queue until something changes.
    fn park_hopeless(&mut self, now: Timestamp) {
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

    fn retry_parked(&mut self, now: Timestamp) {
        for id in std::mem::take(&mut self.parked) {
            let Some(entry) = self.entries.get(&id) else {
                continue;
            };
            let (who, volume_on) = (entry.who.clone(), entry.volume_on);
            self.enter(who, volume_on, Unmet::AcceptLate, now);
        }
    }

    // --- what the engine decides

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

    fn slot(&mut self, job: JobId, places: &[Place]) -> Option<Slot> {
        let workload = self.workload(job)?;
        let place = *places.first()?;
        let entry = self.entries.get(&workload)?;
        let percent = entry.who.profile().percent;
        let who = entry.who.clone();
        let owner = *self.owners.get(&place.node)?;
        let site = self.sites.get_mut(&owner)?;
        let at = site.gpu_at(place)?;
        let gpu = site.gpus.get_mut(at)?;
        let blocks = site::free(gpu).lowest(percent)?;
        gpu.taken = gpu.taken.union(blocks);
        let mut slot = Slot {
            workload,
            node: owner,
            node_name: site.node.name.clone(),
            gpu_uuid: gpu.uuid.clone(),
            gpu_type: gpu.family.clone(),
            blocks,
            vram_bytes: scheduler_core::vram_bytes(gpu.memory_bytes, percent),
            start: Duration::ZERO,
        };
        slot.start = self.start_time(&who, Some(&slot));
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
                uuid: grant.gpu_uuid.clone(),
                blocks: grant.blocks,
                since: grant.granted_at,
            });
        }
    }

    /// A grant could not be written down: somebody changed the row. Who it was for is taken
    /// out, and comes back by its row.
    pub(crate) fn not_granted(&mut self, slot: &Slot, now: Timestamp) {
        let site = self.sites.get_mut(&slot.node);
        if let Some(gpu) = site.and_then(|site| site.gpu_mut(&slot.gpu_uuid)) {
            gpu.taken = gpu.taken.minus(slot.blocks);
        }
        self.leave(slot.workload, now);
    }

    /// Somebody who waits was written down as it is now.
    pub(crate) fn noted(&mut self, who: Who) {
        if let Some(entry) = self.entries.get_mut(&who.id()) {
            entry.who = who;
        }
    }

    // --- what others did

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
    fn back_in_queue(&mut self, who: Who, held: &Held, now: Timestamp) {
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
            }
        } else {
            self.enter(who, volume_on, Unmet::AcceptLate, now);
        }
    }

    /// Takes a run's end in, from which lengths are learned.
    fn learn(&mut self, run: &Run) {
        let by_itself = matches!(
            run.state,
            run::State::Succeeded | run::State::Failed | run::State::TimedOut
        );
        if by_itself && let (Some(began), Some(ended)) = (run.started_at, run.ended_at) {
            self.lengths.learn(&kind_of(run), ended.since(began));
        }
    }

    /// A slice was held for so long.
    fn learn_hold(&mut self, length: Duration) {
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

/// The time before which a node that is silent was last heard of.
pub(crate) fn silent_before(now: Timestamp, ttl: Duration) -> Timestamp {
    let micros = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(micros))
}
