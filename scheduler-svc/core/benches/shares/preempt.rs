//! Pre-emption: what is lost beside the exact optimum, and the time of a reclaim.

use std::time::Duration;

use cnlab_model::Timestamp;
use scheduler_core::{
    cluster::{Cluster, Demand, GpuSet, Kind, Node, NodeIx, Place},
    plan::{Job, JobId, Priority, TeamIx},
    preempt::{Environment, Newcomer, Running, Runs, WorkKind},
    timeline::Ask,
};

use super::{nanos, process::Dice, quantile, row};

const MINUTE: u64 = 60_000_000;
const NOW: u64 = 600 * MINUTE;

pub(super) fn measure(quick: bool) {
    let cases = if quick { 100 } else { 3_000 };
    quality("with up to 12 candidates", 12, cases, "<= 1.05");
    quality("with up to 20 candidates", 20, cases / 60, "");
    for (nodes, rounds) in [(1_000, 2_000), (10_000, 1_000)] {
        speed(nodes, if quick { 50 } else { rounds });
    }
}

fn at(micros: u64) -> Timestamp {
    Timestamp(i64::try_from(micros).unwrap())
}

fn job(id: u64, demand: Demand, priority: Priority) -> Job {
    Job {
        id: JobId(id),
        team: TeamIx(0),
        ask: Ask::one(demand),
        length: Duration::from_secs(3_600),
        priority,
        deadline: None,
        submitted: at(0),
    }
}

fn running(job: Job, place: Place, dice: &mut Dice) -> Running {
    let since = dice.below(NOW - 20 * MINUTE);
    let saved = dice.below(4) > 0;
    Running {
        job,
        kind: WorkKind::Training,
        environment: Environment::Development,
        places: vec![place],
        since: at(since),
        checkpoint: saved.then(|| at(NOW - dice.below((NOW - since).min(30 * MINUTE)))),
        fixed: false,
    }
}

fn newcomer(demand: Demand, priority: Priority) -> Newcomer {
    Newcomer {
        job: job(u64::MAX, demand, priority),
        kind: WorkKind::Inference,
        environment: Environment::Production,
    }
}

fn small(dice: &mut Dice, most: u64) -> u32 {
    u32::try_from(dice.below(most)).unwrap()
}

fn share(dice: &mut Dice, cpu: u64) -> Demand {
    let blocks = u8::try_from(5 + dice.below(60)).unwrap();
    Demand::share(small(dice, cpu) * 500, small(dice, cpu) * 500, blocks).unwrap()
}

/// Random full nodes; the loss of GPU time beside that of the best of all sets.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn quality(what: &str, most: usize, cases: u64, target: &str) {
    let mut dice = Dice::new(21);
    let (mut got, mut best, mut worst, mut reclaims, mut missed) = (0, 0, 1.0_f64, 0_u32, 0_u32);
    let mut compared = 0;
    while compared < cases {
        let gpus = u8::try_from(1 + dice.below(4)).unwrap();
        let cpu = if dice.below(2) == 0 { 100_000 } else { 16_000 };
        let mut cluster = Cluster::new();
        let node = cluster
            .add(Node::new(Kind::new(0).unwrap(), cpu, cpu, gpus).unwrap())
            .unwrap();
        let mut runs = Runs::new(Duration::from_secs(600));
        let mut there: Vec<Running> = Vec::new();
        for id in 0..200 {
            let demand = share(&mut dice, 8);
            let place = (0..usize::from(gpus))
                .map(|gpu| Place {
                    node,
                    gpus: GpuSet::one(gpu),
                })
                .find(|place| cluster.take(*place, &demand).is_ok());
            if let Some(place) = place
                && there.len() < most
            {
                there.push(running(job(id, demand, Priority::Low), place, &mut dice));
                runs.insert(there.last().unwrap().clone());
            } else if let Some(place) = place {
                cluster.give(place, &demand).unwrap();
            }
        }
        let demand = match dice.below(3) {
            0 => Demand::whole(small(&mut dice, 8) * 500, 500, 1).unwrap(),
            _ => share(&mut dice, 16),
        };
        if there.len() < most / 2 || cluster.node(node).unwrap().fits(&demand) {
            continue;
        }
        compared += 1;
        let ours = runs.reclaim(&cluster, &newcomer(demand, Priority::High), at(NOW));
        let exact = exhaustive(&mut cluster, node, &there, &demand);
        match (ours, exact) {
            (Some(ours), Some(exact)) => {
                reclaims += 1;
                got += ours.loss.gpu;
                best += exact;
                if exact > 0 {
                    worst = worst.max(ours.loss.gpu as f64 / exact as f64);
                }
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => missed += 1,
        }
    }
    row(
        &format!("pre-emption: lost GPU time {what}, of the exact optimum"),
        got as f64 / best as f64,
        "",
        target,
        &format!("{reclaims} reclaims, every set tried"),
    );
    row(
        &format!("pre-emption: the same {what}, worst case"),
        worst,
        "",
        target,
        "",
    );
    row(
        &format!("pre-emption: reclaims missed or made up {what}"),
        missed.into(),
        "",
        "<= 0",
        &format!("{cases} cases"),
    );
}

/// The least loss of GPU time of all sets, in the order of a Gray code, so that each step
/// changes one member.
fn exhaustive(
    cluster: &mut Cluster,
    node: NodeIx,
    there: &[Running],
    demand: &Demand,
) -> Option<u128> {
    let losses: Vec<u128> = there
        .iter()
        .map(|running| {
            running.unsaved(at(NOW)).as_micros() * u128::from(running.job.ask.demand.total_blocks())
        })
        .collect();
    let mut gone = vec![false; there.len()];
    let mut lost = 0;
    let mut best = None;
    for step in 1_u64..1 << there.len() {
        let index = step.trailing_zeros() as usize;
        let (place, held) = (there[index].places[0], there[index].job.ask.demand);
        if gone[index] {
            cluster.take(place, &held).unwrap();
            lost -= losses[index];
        } else {
            cluster.give(place, &held).unwrap();
            lost += losses[index];
        }
        gone[index] = !gone[index];
        if best.is_none_or(|best| lost < best) && cluster.node(node).unwrap().fits(demand) {
            best = Some(lost);
        }
    }
    best
}

/// A full cell of nodes with eight GPUs; every reclaim is carried out.
fn speed(nodes: u32, rounds: u64) {
    let mut dice = Dice::new(31);
    let mut cluster = Cluster::new();
    let mut runs = Runs::new(Duration::from_secs(600));
    let mut id = 0;
    for _ in 0..nodes {
        let node = cluster
            .add(Node::new(Kind::new(0).unwrap(), 128_000, 1_000_000, 8).unwrap())
            .unwrap();
        for gpu in 0..8 {
            let place = Place {
                node,
                gpus: GpuSet::one(gpu),
            };
            for _ in 0..4 {
                let demand = share(&mut dice, 8);
                if cluster.take(place, &demand).is_ok() {
                    let class = [Priority::Low, Priority::Normal, Priority::High];
                    let priority = class[usize::try_from(dice.below(3)).unwrap()];
                    runs.insert(running(job(id, demand, priority), place, &mut dice));
                    id += 1;
                }
            }
        }
    }
    let mut now = NOW;
    let (mut times, mut refusals) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        now += 1_000;
        let demand = match dice.below(4) {
            0 => Demand::whole(8_000, 8_000, u8::try_from(1 + dice.below(4)).unwrap()).unwrap(),
            _ => {
                let blocks = u8::try_from(60 + dice.below(39)).unwrap();
                Demand::share(2_000, 2_000, blocks).unwrap()
            }
        };
        let newcomer = newcomer(demand, Priority::High);
        let (reclaim, time) = nanos(|| runs.reclaim(&cluster, &newcomer, at(now)));
        if let Some(reclaim) = reclaim {
            times.push(time / 1e3);
            for victim in &reclaim.victims {
                let gone = runs.remove(victim.job).unwrap();
                cluster.give(gone.places[0], &gone.job.ask.demand).unwrap();
            }
            cluster.take(reclaim.places[0], &demand).unwrap();
            let mut started = running(newcomer.job, reclaim.places[0], &mut dice);
            started.job.id = JobId(id);
            started.since = at(now);
            started.checkpoint = None;
            runs.insert(started);
            id += 1;
        }
        // Nothing of the class low gives way to itself: a refusal looks at every node.
        let nobody = Newcomer {
            environment: Environment::Development,
            ..self::newcomer(Demand::whole(8_000, 8_000, 8).unwrap(), Priority::Normal)
        };
        let (none, time) = nanos(|| runs.reclaim(&cluster, &nobody, at(now)));
        if none.is_none() {
            refusals.push(time / 1e3);
        }
    }
    let anchor = format!("{} reclaims on {} jobs", times.len(), runs.len());
    for (part, name) in [(0.5, "median"), (0.99, "p99")] {
        row(
            &format!("pre-emption: one reclaim, {nodes} nodes x 8 GPUs, {name}"),
            quantile(&mut times, part),
            "us",
            "",
            &anchor,
        );
    }
    row(
        &format!("pre-emption: one refusal, {nodes} nodes x 8 GPUs, median"),
        quantile(&mut refusals, 0.5),
        "us",
        "",
        &format!("{} refusals", refusals.len()),
    );
}
