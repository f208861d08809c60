//! What would let a job start sooner.

use std::time::Duration;

use cnlab_model::Timestamp;

use crate::{
    cluster::{Demand, Kind, KindSet, Shape},
    plan::{Forecast, Job, JobId, Plan},
    timeline::{Ask, Window},
};

/// A start that is this much sooner is worth a word.
pub const WORTH: Duration = Duration::from_secs(60);

/// What could be asked for instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// So many blocks of one GPU.
    Blocks(u8),
    /// So many GPUs per node.
    Gpus(u8),
    /// So many tasks.
    Tasks(u16),
    /// This type of GPU.
    Kind(Kind),
    /// At most so long.
    Length(Duration),
    /// On any node, with a copy of the data.
    AnyNode,
}

/// A change and what it would bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sooner {
    /// What would be asked for instead.
    pub change: Change,
    /// When the job would start then, at the latest: behind all that waits now.
    pub start: Timestamp,
}

/// When a job that waits would start, at the latest, if it asked for something else instead:
/// behind all that waits now. An alternative by which it does not start sooner has no start.
/// The forecast must be of this plan, and the start that of the job in it.
#[must_use]
pub fn starts(
    plan: &Plan,
    forecast: &Forecast,
    id: JobId,
    start: Option<Timestamp>,
    alternatives: &[(Ask, Duration)],
) -> Vec<Option<Timestamp>> {
    let future = forecast.without(id);
    let from = Window::from(plan.timeline().now());
    let limit = worth(start);
    alternatives
        .iter()
        .map(|(ask, length)| {
            let slot = future.earliest(ask, *length, from)?;
            (slot.start <= limit).then_some(slot.start)
        })
        .collect()
}

/// Before when a start has to be to be worth a word.
fn worth(start: Option<Timestamp>) -> Timestamp {
    start.map_or(Timestamp(i64::MAX), |start| {
        Timestamp(start.0.saturating_sub(crate::timeline::micros(WORTH)))
    })
}

/// Of each dimension the smallest change that brings the most.
pub(super) fn changes(
    plan: &Plan,
    forecast: &Forecast,
    job: &Job,
    start: Option<Timestamp>,
) -> Vec<Sooner> {
    let now = plan.timeline().now();
    let future = forecast.without(job.id);
    let from = Window::from(now);
    let sooner_than = worth(start);
    let mut found = Vec::new();
    for dimension in [
        smaller(&job.ask),
        fewer_tasks(&job.ask),
        other_kinds(plan, &job.ask),
        shorter(job),
        anywhere(&job.ask),
    ] {
        let mut best: Option<Sooner> = None;
        for (change, ask, length) in dimension {
            let length = length.unwrap_or(job.length);
            let slot = future.earliest(&ask, length, from);
            let Some(start) = slot.map(|slot| slot.start) else {
                continue;
            };
            if start <= sooner_than && best.is_none_or(|best| start < best.start) {
                best = Some(Sooner { change, start });
            }
        }
        found.extend(best);
    }
    found
}

type Variant = (Change, Ask, Option<Duration>);

fn with(ask: &Ask, demand: Result<Demand, impl Sized>) -> Option<Ask> {
    demand.ok().map(|demand| Ask {
        demand: demand.on(ask.demand.kinds()),
        ..*ask
    })
}

/// The smallest change first.
fn smaller(ask: &Ask) -> Vec<Variant> {
    let (cpu, memory) = (ask.demand.cpu_milli(), ask.demand.memory_mib());
    match ask.demand.shape() {
        Shape::CpuOnly => Vec::new(),
        Shape::Whole(1) => shares(ask, 100),
        Shape::Share(blocks) => shares(ask, blocks),
        Shape::Whole(gpus) => (1..gpus)
            .rev()
            .filter_map(|fewer| {
                let ask = with(ask, Demand::whole(cpu, memory, fewer))?;
                Some((Change::Gpus(fewer), ask, None))
            })
            .collect(),
    }
}

fn shares(ask: &Ask, below: u8) -> Vec<Variant> {
    let (cpu, memory) = (ask.demand.cpu_milli(), ask.demand.memory_mib());
    [75, 50, 25, 10, 5, 1]
        .into_iter()
        .filter(|blocks| *blocks < below)
        .filter_map(|blocks| {
            let ask = with(ask, Demand::share(cpu, memory, blocks))?;
            Some((Change::Blocks(blocks), ask, None))
        })
        .collect()
}

fn fewer_tasks(ask: &Ask) -> Vec<Variant> {
    let halves = std::iter::successors(Some(ask.tasks), |tasks| Some(tasks >> 1));
    halves
        .skip(1)
        .take_while(|tasks| *tasks > 0)
        .map(|tasks| (Change::Tasks(tasks), Ask { tasks, ..*ask }, None))
        .collect()
}

fn other_kinds(plan: &Plan, ask: &Ask) -> Vec<Variant> {
    let wanted = ask.demand.kinds();
    if wanted == KindSet::ANY || ask.only.is_some() {
        return Vec::new();
    }
    plan.timeline()
        .kinds()
        .into_iter()
        .filter(|kind| !wanted.admits(*kind))
        .map(|kind| {
            let demand = ask.demand.on(KindSet::ANY.with(kind));
            (Change::Kind(kind), Ask { demand, ..*ask }, None)
        })
        .collect()
}

/// Shorter runs find gaps that longer ones do not.
fn shorter(job: &Job) -> Vec<Variant> {
    [(3, 4), (1, 2), (1, 4), (1, 8)]
        .into_iter()
        .filter_map(|(part, of)| {
            let length = job.length.checked_mul(part)?.checked_div(of)?;
            // Whole minutes: that is how people say it.
            let minutes = length.as_secs().div_euclid(60);
            let length = Duration::from_secs(minutes.saturating_mul(60));
            (minutes > 0).then_some((Change::Length(length), job.ask, Some(length)))
        })
        .collect()
}

fn anywhere(ask: &Ask) -> Vec<Variant> {
    let free = Ask { only: None, ..*ask };
    ask.only
        .map(|_| (Change::AnyNode, free, None))
        .into_iter()
        .collect()
}
