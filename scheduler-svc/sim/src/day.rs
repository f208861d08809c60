//! Synthetic days in virtual time: jobs arrive, run and end on a part of the traced cluster,
//! once behind each policy.
//!
//! The demands are those of the trace. What the trace does not tell is invented, from a seed:
//! when jobs arrive (more in the afternoon), for how long they run and are planned, whose they
//! are, how urgent, and by when some must end.

pub mod jobs;
pub mod policy;
pub mod report;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use cnlab_model::Timestamp;
use scheduler_core::cluster::Cluster;
use scheduler_core::plan::{JobId, Priority};

use crate::prng::Prng;
use crate::trace::{Hosts, Pod, TraceError};
use jobs::SynthJob;
use policy::{Policy, Said};

/// Microseconds of a second.
pub(crate) const SECOND: i64 = 1_000_000;
/// How long somebody who gives way takes to save its state and stop.
const LEAVING: i64 = 30 * SECOND;
/// Waits shorter than this do not make a short job look slow: the floor of a slowdown.
const FLOOR: f64 = 600.0;

/// A cell and what arrives in it.
#[derive(Debug, Clone)]
pub struct Day {
    /// Its nodes.
    pub cluster: Cluster,
    /// Its jobs by the time of their arrival.
    pub jobs: Vec<SynthJob>,
    /// How long it lasts.
    pub lasts: Duration,
}

impl Day {
    /// A day of a seed, with so many nodes of the trace and this load, in per cent of the GPU
    /// time that there is.
    ///
    /// # Errors
    /// When a node of the trace cannot be taken.
    pub fn new(
        hosts: &Hosts,
        pods: &[Pod],
        nodes: usize,
        load: u32,
        seed: u64,
    ) -> Result<Self, TraceError> {
        let mut order: Vec<usize> = (0..hosts.hosts.len()).collect();
        Prng::new(seed, "day", "nodes").shuffle(&mut order);
        let mut cluster = Cluster::new();
        for host in order
            .into_iter()
            .filter_map(|at| hosts.hosts.get(at))
            .take(nodes)
        {
            // No cell of the trace comes near the number of indexes.
            let _ = cluster.add(host.node);
        }
        let lasts = Duration::from_secs(24 * 3_600);
        let jobs = jobs::of(&cluster, pods, lasts, load, seed);
        Ok(Self {
            cluster,
            jobs,
            lasts,
        })
    }
}

/// What a day came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Mean share of the GPU blocks in use from hour 2 on, in per cent.
    pub allocation: f64,
    /// Blocks in use in per cent, every ten minutes.
    pub curve: Vec<f64>,
    /// Waits until the first start, in seconds, sorted; a job that never started waited until
    /// the end of the day.
    pub waits: Vec<f64>,
    /// The same of jobs with high or critical priority.
    pub urgent_waits: Vec<f64>,
    /// Mean of (wait + run) over run, with a floor of ten minutes for the run.
    pub slowdown: f64,
    /// Jain's index of the mean slowdowns of the teams: 1 is entirely fair.
    pub fairness: f64,
    /// Jobs with a deadline that was over, of those that had one and were not refused.
    pub missed: (usize, usize),
    /// Jobs refused because their deadline could not be met.
    pub refused: usize,
    /// How often somebody gave way.
    pub gave_way: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End { job: u64, attempt: u32 },
    Left { job: u64, attempt: u32 },
    Arrive(usize),
    Look,
}

#[derive(Debug, Clone, Copy, Default)]
struct Life {
    attempt: u32,
    first_start: Option<i64>,
    since: Option<i64>,
    done: i64,
    ended: Option<i64>,
    refused: bool,
}

/// Lets a day pass behind a policy.
pub fn run(day: &Day, policy: &mut impl Policy) -> Outcome {
    let mut events: BinaryHeap<Reverse<(i64, Event)>> = BinaryHeap::new();
    for (at, job) in day.jobs.iter().enumerate() {
        events.push(Reverse((job.work.job.submitted.0, Event::Arrive(at))));
    }
    let end = i64::try_from(day.lasts.as_micros()).unwrap_or(i64::MAX);
    let total: u64 = day.cluster.total().blocks;
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    let by_id: BTreeMap<u64, &SynthJob> = day
        .jobs
        .iter()
        .map(|job| (job.work.job.id.0, job))
        .collect();
    let mut outcome = Outcome::default();
    let (mut held, mut area, mut from, mut tick) = (0_u64, 0.0, 2 * 3_600 * SECOND, 0_i64);
    while let Some(Reverse((now, event))) = events.pop() {
        // The curve, and the area below it.
        while tick <= now.min(end) {
            outcome.curve.push(share(held, total));
            tick += 600 * SECOND;
        }
        if now > from {
            let until = now.min(end);
            if until > from {
                area += share(held, total) * seconds(until - from);
                from = until;
            }
        }
        if now > end {
            break;
        }
        let moment = Timestamp(now);
        match event {
            Event::Arrive(at) => {
                let Some(job) = day.jobs.get(at) else {
                    continue;
                };
                let refused = policy.arrive(job.work, moment);
                lives.entry(job.work.job.id.0).or_default().refused = refused;
                outcome.refused += usize::from(refused);
            }
            Event::End { job, attempt } => {
                let Some(life) = lives.get_mut(&job).filter(|life| life.attempt == attempt) else {
                    continue;
                };
                if life.since.take().is_none() {
                    continue;
                }
                life.ended = Some(now);
                held -= blocks(by_id.get(&job));
                policy.ended(JobId(job), moment);
            }
            Event::Left { job, attempt } => {
                let Some(life) = lives.get_mut(&job).filter(|life| life.attempt == attempt) else {
                    continue;
                };
                let Some(since) = life.since.take() else {
                    continue;
                };
                life.done += now - since;
                life.attempt += 1;
                held -= blocks(by_id.get(&job));
                outcome.gave_way += 1;
                policy.gave_way(JobId(job), moment);
            }
            Event::Look => {}
        }
        for said in policy.turn(moment) {
            match said {
                Said::Start(JobId(id)) => {
                    let Some(job) = by_id.get(&id) else { continue };
                    let life = lives.entry(id).or_default();
                    life.first_start.get_or_insert(now);
                    life.since = Some(now);
                    held += blocks(Some(job));
                    let left = (job.lasts - life.done).max(SECOND);
                    let attempt = life.attempt;
                    events.push(Reverse((now + left, Event::End { job: id, attempt })));
                }
                Said::Stop(JobId(id)) => {
                    let attempt = lives.get(&id).map_or(0, |life| life.attempt);
                    events.push(Reverse((now + LEAVING, Event::Left { job: id, attempt })));
                }
            }
        }
        if let Some(at) = policy.wake_at().filter(|at| at.0 > now) {
            events.push(Reverse((at.0, Event::Look)));
        }
    }
    outcome.allocation = area / seconds(end - 2 * 3_600 * SECOND);
    judge(day, &lives, end, &mut outcome);
    outcome
}

fn judge(day: &Day, lives: &BTreeMap<u64, Life>, end: i64, outcome: &mut Outcome) {
    let mut of_teams: BTreeMap<_, (f64, f64)> = BTreeMap::new();
    let (mut slowdowns, mut count) = (0.0, 0.0);
    for job in &day.jobs {
        let work = &job.work;
        let life = lives.get(&work.job.id.0).copied().unwrap_or_default();
        if life.refused {
            continue;
        }
        let wait = seconds(life.first_start.unwrap_or(end) - work.job.submitted.0);
        outcome.waits.push(wait);
        if work.job.priority >= Priority::High {
            outcome.urgent_waits.push(wait);
        }
        let over = life
            .ended
            .unwrap_or(end.max(work.job.submitted.0 + job.lasts));
        let run = seconds(job.lasts).max(FLOOR);
        let slowdown = (seconds(over - work.job.submitted.0) / run).max(1.0);
        slowdowns += slowdown;
        count += 1.0;
        let (sum, jobs) = of_teams.entry(work.team).or_default();
        *sum += slowdown;
        *jobs += 1.0;
        if let Some(deadline) = work.job.deadline.filter(|deadline| deadline.at.0 <= end) {
            outcome.missed.1 += 1;
            outcome.missed.0 += usize::from(life.ended.is_none_or(|ended| ended > deadline.at.0));
        }
    }
    outcome.waits.sort_by(f64::total_cmp);
    outcome.urgent_waits.sort_by(f64::total_cmp);
    outcome.slowdown = slowdowns / f64::max(count, 1.0);
    let means: Vec<f64> = of_teams.values().map(|(sum, jobs)| sum / jobs).collect();
    let sum: f64 = means.iter().sum();
    let squares: f64 = means.iter().map(|mean| mean * mean).sum();
    let teams: f64 = means.iter().map(|_| 1.0).sum();
    outcome.fairness = if squares > 0.0 {
        sum * sum / (teams * squares)
    } else {
        1.0
    };
}

fn blocks(job: Option<&&SynthJob>) -> u64 {
    job.map_or(0, |job| u64::from(job.work.job.ask.demand.total_blocks()))
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a few days")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "blocks of a cell")]
fn share(held: u64, total: u64) -> f64 {
    held as f64 * 100.0 / (total.max(1)) as f64
}

#[cfg(test)]
mod tests;
