//! The cell in memory: who runs where and who waits, in step with the core's engine.
//!
//! **Invariants**
//! - What the image takes for free is free in the rows: only its owner grants blocks, and blocks
//!   that somebody gave back are known here later than there, never earlier.
//! - Everything in it can be read from the rows again. Where it and the rows disagree it is
//!   thrown away, not repaired.

mod expect;
mod explain;
mod nodes;
mod queue;
mod quota;
mod turn;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use cnlab_model::{
    Timestamp,
    id::{GrantId, NodeId, WorkloadId},
};
use scheduler_core::{
    cluster::{Cluster, Demand, NodeIx},
    engine::{Engine, Settings},
    estimate::{PastStart, RunLengths},
    fragmentation::{Gradient, Popularity},
    plan::{JobId, Unmet},
    profile::{self, Profile},
    runtime_estimate::{self, RuntimeEstimator},
};

use super::{Teams, Who, kinds::Kinds, site::Site};
use crate::{
    app::catalog::Catalogue,
    store::{
        load::Rows,
        record::{Gpu, Grant, Run, Slice},
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
    pub(crate) gpu_type: String,
    pub(crate) slices: Vec<Slice>,
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
    slices: Vec<Slice>,
    since: Timestamp,
}

#[derive(Debug, Clone)]
struct Entry {
    job: JobId,
    who: Who,
    /// Where its volume lies, if it was ever used.
    volume_on: Option<NodeId>,
    standing: Standing,
    /// Why its place was chosen, as far as this image chose it.
    chosen: Option<Chosen>,
}

/// How it stood at a place when it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chosen {
    /// Blocks of the GPU that stayed free.
    left: u8,
    /// Whether the environment was built there already.
    image_ready: bool,
    /// Whether the volume left no choice.
    tied: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Image {
    catalogue: Arc<Catalogue>,
    teams: Arc<Teams>,
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
    pub(crate) fn of(
        rows: Rows,
        catalogue: Arc<Catalogue>,
        teams: Arc<Teams>,
        ttl: Duration,
        now: Timestamp,
    ) -> Self {
        let offered = {
            let families = rows.gpus.iter().filter(|gpu| gpu.present);
            let families = families.map(|gpu| gpu.family.as_str());
            profile::offered(&catalogue.profiles, &catalogue.templates, families)
        };
        let rule = Gradient::new(&Popularity::default());
        let mut engine = Engine::new(
            Cluster::new(),
            rule,
            BTreeMap::new(),
            Settings::default(),
            now,
        );
        engine.set_quotas(teams.quotas());
        for (team, weight) in teams.weights() {
            engine.shares_mut().set_weight(team, weight);
        }
        let mut image = Self {
            catalogue,
            teams,
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
        // Silent and cordoned nodes were open until everything that runs on them was in its
        // place.
        image.pass(now);
        let cordoned: Vec<NodeId> = image
            .sites
            .values()
            .filter(|site| site.node.cordon.is_some())
            .map(Site::id)
            .collect();
        for id in cordoned {
            image.reopen(id, now);
        }
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
}

/// The time before which a node that is silent was last heard of.
pub(crate) fn silent_before(now: Timestamp, ttl: Duration) -> Timestamp {
    let micros = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(micros))
}
