//! Why a job stands where it stands: the six terms, what blocks it, and what would help.
//!
//! Made on demand from the plan and a forecast; nothing of it is kept while planning.

use std::{collections::BTreeSet, time::Duration};

use cnlab_model::Timestamp;

use super::sooner::{self, Sooner};
use crate::{
    cluster::{Demand, KindSet, NodeIx, Shape},
    plan::{Decider, Forecast, JobId, Plan, Priority, Standing},
    timeline::{Ask, Timeline},
};

/// How many jobs that could use the same GPUs go before one, by what puts them there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ahead {
    /// A higher class.
    pub priority: usize,
    /// A nearer deadline.
    pub deadline: usize,
    /// A team that is owed more.
    pub share: usize,
    /// They asked before.
    pub age: usize,
}

impl Ahead {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.priority
            .saturating_add(self.deadline)
            .saturating_add(self.share)
            .saturating_add(self.age)
    }
}

/// How the deadline stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineTerm {
    /// There is none.
    None,
    /// It will be met.
    Guaranteed {
        /// When it is.
        by: Timestamp,
        /// When the job ends at the latest, as planned.
        end: Timestamp,
    },
    /// Nobody promised to meet it, or the promise was lost.
    NotGuaranteed {
        /// When it is.
        by: Timestamp,
        /// When the job is expected to end.
        end: Option<Timestamp>,
    },
}

/// How the team stands among those with jobs in the queue that could use the same GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareTerm {
    /// Its place, from 1; the first is owed most.
    pub place: usize,
    /// How many teams there are.
    pub teams: usize,
}

/// How the wanted types of GPU stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuTypeTerm {
    /// The wanted ones.
    pub kinds: KindSet,
    /// GPUs of these types.
    pub gpus: usize,
    /// How many of them are entirely free now.
    pub free: usize,
    /// The most blocks that are free on one of them.
    pub widest: u8,
}

/// Whether data ties the job to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalityTerm {
    /// It may run anywhere.
    Anywhere,
    /// Its data lies on this node.
    On(NodeIx),
}

/// Why a job does not start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// There is room now, but somebody else has it reserved before the job would end.
    Reserved {
        /// From when.
        from: Timestamp,
        /// By whom.
        by: JobId,
    },
    /// GPUs are free, but too few of them on one node, or too few blocks on one GPU.
    Scattered {
        /// Blocks that are free on all nodes that would do.
        free: u64,
        /// The most that one task could have: blocks on one GPU, or entire GPUs on one node.
        most: u8,
    },
    /// GPUs are free where processors or memory are not.
    Processors,
    /// Too little is free on all nodes that would do together.
    Busy {
        /// Blocks that are free there.
        free: u64,
    },
    /// No node that would do may get new work.
    NoNode,
    /// The nodes that would do are too small for it even when they are empty.
    TooLarge,
}

/// Why a job stands where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which job.
    pub job: JobId,
    /// What it needs.
    pub ask: Ask,
    /// Where it stands.
    pub standing: Standing,
    /// When it is expected to start, or did; `None` where it never will.
    pub start: Option<Timestamp>,
    /// Its class.
    pub priority: Priority,
    /// Its deadline.
    pub deadline: DeadlineTerm,
    /// The share of its team.
    pub share: ShareTerm,
    /// The GPUs.
    pub gpu_type: GpuTypeTerm,
    /// Its data.
    pub locality: LocalityTerm,
    /// How many jobs in the queue could use the same GPUs, this one included.
    pub queued: usize,
    /// Those that go before it.
    pub ahead: Ahead,
    /// Why it does not start now; nothing for one that runs.
    pub blocked: Option<Blocker>,
    /// What would let it start sooner.
    pub sooner: Vec<Sooner>,
}

/// Explains where a job of the plan stands; `None` for one that the plan does not know. The
/// forecast must be of this plan.
#[must_use]
pub fn explain(plan: &Plan, forecast: &Forecast, id: JobId) -> Option<Report> {
    let mut report = report(plan, forecast, id)?;
    if !matches!(report.standing, Standing::Running { .. }) {
        report.sooner = sooner::changes(plan, forecast, plan.job(id)?, report.start);
    }
    Some(report)
}

/// The same without what would let the job start sooner, for a caller that knows better what
/// could be asked for: see [`starts`](super::starts).
#[must_use]
pub fn report(plan: &Plan, forecast: &Forecast, id: JobId) -> Option<Report> {
    let job = *plan.job(id)?;
    let standing = plan.standing(id)?;
    let turn = plan.turn_of(id)?;
    let running = matches!(standing, Standing::Running { .. });
    let start = match plan.claim(id) {
        Some(claim) => Some(claim.from),
        None => forecast.start(id),
    };
    let mut ahead = Ahead::default();
    let mut queued = 0_usize;
    let mut ranks = BTreeSet::from([(plan.rank(job.team), job.team)]);
    for other in plan.queue() {
        let (Some(theirs), Some(other)) = (plan.turn_of(other), plan.job(other)) else {
            continue;
        };
        // Who waits for other GPUs is in nobody's way.
        if !job.ask.demand.kinds().meets(other.ask.demand.kinds()) {
            continue;
        }
        queued = queued.saturating_add(1);
        ranks.insert((plan.rank(other.team), other.team));
        if theirs < turn && !running {
            let count = match turn.decider(&theirs) {
                Decider::Priority => &mut ahead.priority,
                Decider::Deadline => &mut ahead.deadline,
                Decider::Share => &mut ahead.share,
                Decider::Age => &mut ahead.age,
            };
            *count = count.saturating_add(1);
        }
    }
    let end = plan
        .claim(id)
        .map(|claim| claim.until)
        .or_else(|| start.map(|start| start.plus(job.length)));
    let deadline = match (job.deadline, end) {
        (None, _) => DeadlineTerm::None,
        (Some(deadline), Some(end)) if plan.is_guaranteed(id) => DeadlineTerm::Guaranteed {
            by: deadline.at,
            end,
        },
        (Some(deadline), end) => DeadlineTerm::NotGuaranteed {
            by: deadline.at,
            end,
        },
    };
    let before = ranks.iter().take_while(|(_, team)| *team != job.team);
    Some(Report {
        job: id,
        ask: job.ask,
        standing,
        start,
        priority: job.priority,
        deadline,
        share: ShareTerm {
            place: before.count().saturating_add(1),
            teams: ranks.len(),
        },
        gpu_type: gpu_type(plan.timeline(), &job.ask),
        locality: job
            .ask
            .only
            .map_or(LocalityTerm::Anywhere, LocalityTerm::On),
        queued,
        ahead,
        blocked: (!running).then(|| blocker(plan, id)).flatten(),
        sooner: Vec::new(),
    })
}

fn gpu_type(timeline: &Timeline, ask: &Ask) -> GpuTypeTerm {
    let anywhere = Ask { only: None, ..*ask };
    let mut term = GpuTypeTerm {
        kinds: ask.demand.kinds(),
        gpus: timeline.gpus(ask),
        free: 0,
        widest: 0,
    };
    for (_, left, _) in timeline.room(&anywhere, Duration::ZERO) {
        term.free = term.free.saturating_add(left.idle().into());
        term.widest = term.widest.max(left.widest());
    }
    term
}

/// Why a job does not start now; `None` where nothing keeps it.
fn blocker(plan: &Plan, id: JobId) -> Option<Blocker> {
    let job = plan.job(id)?;
    // Its own reservation does not keep it.
    let mut timeline = plan.timeline().clone();
    if let Some(claim) = plan.claim(id) {
        let _held = timeline.release(claim);
    }
    let (ask, demand) = (&job.ask, &job.ask.demand);
    let wanted = u32::from(ask.tasks);
    let without_gpus = Demand::cpu_only(demand.cpu_milli(), demand.memory_mib());
    let (mut nodes, mut now, mut long, mut beside) = (0_usize, 0_u32, 0_u32, 0_u32);
    let (mut free, mut most) = (0_u64, 0_u8);
    let mut taken: Option<(Timestamp, JobId)> = None;
    for (ix, left, during) in timeline.room(ask, job.length) {
        nodes = nodes.saturating_add(1);
        let copies = left.copies(demand, wanted);
        now = now.saturating_add(copies);
        long = long.saturating_add(during.copies(demand, wanted));
        let cpu = left.copies(&without_gpus, wanted);
        beside = beside.saturating_add(left.gpu_copies(demand, wanted));
        free = free.saturating_add(left.all_blocks().into());
        if cpu > 0 {
            most = most.max(match demand.shape() {
                Shape::Whole(_) => left.idle(),
                Shape::Share(_) | Shape::CpuOnly => left.widest(),
            });
        }
        if copies > 0 {
            // Of the nodes with room now, the one that keeps it longest.
            let until = plan
                .reserved_on(ix)
                .filter(|(other, claim)| *other != id && claim.from > timeline.now())
                .map(|(other, claim)| (claim.from, other))
                .min();
            taken = taken.max(until);
        }
    }
    if long >= wanted {
        return None;
    }
    if nodes == 0 {
        return Some(Blocker::NoNode);
    }
    if !timeline.could_hold(ask) {
        return Some(Blocker::TooLarge);
    }
    Some(match taken {
        Some((from, by)) if now >= wanted => Blocker::Reserved { from, by },
        _ if beside >= wanted && now < wanted => Blocker::Processors,
        _ if free >= ask.blocks() && ask.blocks() > 0 => Blocker::Scattered { free, most },
        _ if ask.blocks() == 0 => Blocker::Processors,
        _ => Blocker::Busy { free },
    })
}

#[cfg(test)]
mod tests;
