//! What arrives on a synthetic day.

use std::time::Duration;

use cnlab_model::Timestamp;
use cnlab_model::id::{TeamId, Ulid};
use scheduler_core::cluster::Cluster;
use scheduler_core::engine::Work;
use scheduler_core::plan::{Deadline, Job, JobId, Priority, TeamIx, Unmet};
use scheduler_core::preempt::{Environment, WorkKind};
use scheduler_core::timeline::Ask;

use super::SECOND;
use crate::prng::Prng;
use crate::trace::Pod;

/// Shares of arrivals by team, in per cent: a few teams ask for much.
const TEAMS: [usize; 8] = [34, 20, 14, 10, 8, 6, 5, 3];
/// Lengths are spread evenly over this many doublings from the shortest on.
const SHORTEST: i64 = 120 * SECOND;
const DOUBLINGS: usize = 8;
/// Arrivals by the hour of the day, as a share of the busiest hour, in per cent.
const HOURS: [usize; 24] = [
    30, 25, 20, 20, 20, 25, 30, 45, 65, 85, 95, 100, 90, 95, 100, 100, 95, 85, 70, 60, 55, 50, 45,
    35,
];

/// A job, and what nobody knows beforehand.
#[derive(Debug, Clone, Copy)]
pub struct SynthJob {
    /// What the scheduler is told.
    pub work: Work,
    /// For how long it really runs, in microseconds.
    pub lasts: i64,
}

/// Jobs until their GPU time is this share of what the cluster has, in per cent.
pub(super) fn of(
    cluster: &Cluster,
    pods: &[Pod],
    lasts: Duration,
    load: u32,
    seed: u64,
) -> Vec<SynthJob> {
    let mut prng = Prng::new(seed, "day", "jobs");
    let day = i64::try_from(lasts.as_micros()).unwrap_or(i64::MAX);
    let capacity = i128::from(cluster.total().blocks) * i128::from(day) * i128::from(load) / 100;
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(|pod| cluster.nodes().any(|(_, node)| node.fits(&pod.demand)))
        .collect();
    let mut asked = 0_i128;
    let mut jobs = Vec::new();
    while asked < capacity {
        let Some(pod) = pods.get(prng.below(pods.len())) else {
            break;
        };
        let job = job(&mut prng, pod, day);
        asked += i128::from(pod.demand.total_blocks()) * i128::from(job.lasts);
        jobs.push(job);
    }
    jobs.sort_by_key(|job| job.work.job.submitted);
    for (number, job) in (1..).zip(&mut jobs) {
        job.work.job.id = JobId(number);
    }
    jobs
}

fn job(prng: &mut Prng, pod: &Pod, day: i64) -> SynthJob {
    let submitted = loop {
        let at = pick(prng, day);
        let hour = usize::try_from(at / (3_600 * SECOND)).unwrap_or(0);
        if prng.below(100) < HOURS.get(hour).copied().unwrap_or(0) {
            break at;
        }
    };
    let shortest = SHORTEST << prng.below(DOUBLINGS);
    let lasts = shortest + pick(prng, shortest);
    // People plan for up to twice as long as it takes.
    let planned = lasts + pick(prng, lasts);
    let mut left = prng.below(100);
    let team = TEAMS
        .iter()
        .position(|share| {
            let here = left < *share;
            left = left.saturating_sub(*share);
            here
        })
        .unwrap_or(0);
    let priority = match prng.below(100) {
        0..5 => Priority::Critical,
        5..15 => Priority::High,
        15..30 => Priority::Low,
        _ => Priority::Normal,
    };
    let (kind, environment) = match prng.below(100) {
        0..10 => (WorkKind::Inference, Environment::Production),
        10..30 => (WorkKind::Interactive, Environment::Development),
        _ => (WorkKind::Training, Environment::Development),
    };
    // One in ten must end by 1.5 to 4 times what it is planned for.
    let deadline = (prng.below(10) == 0).then(|| Deadline {
        at: Timestamp(submitted + planned + planned / 2 + pick(prng, planned * 5 / 2)),
        unmet: Unmet::AcceptLate,
    });
    SynthJob {
        work: Work {
            job: Job {
                id: JobId(0),
                team: TeamIx(0),
                ask: Ask::one(pod.demand),
                length: Duration::from_micros(u64::try_from(planned).unwrap_or(0)),
                priority,
                deadline,
                submitted: Timestamp(submitted),
            },
            team: TeamId::from_ulid(Ulid(team as u128 + 1)),
            kind,
            environment,
            fixed: false,
        },
        lasts,
    }
}

/// A number from zero on, below a bound.
fn pick(prng: &mut Prng, bound: i64) -> i64 {
    let bound = usize::try_from(bound).unwrap_or(0);
    i64::try_from(prng.below(bound)).unwrap_or(0)
}
