//! Long random lives of a small cell: who comes, ends, saves, gives way and comes again.

use std::collections::BTreeMap;

use super::*;
use crate::{
    placement::{BestFit, scan},
    plan::Turn,
};

/// A small generator; the seed is printed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a soak lasts is its caller's choice"
)]
pub(super) fn rounds() -> u32 {
    std::env::var("CNLAB_SOAK_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(1)
}

#[derive(Default)]
struct Tally {
    started: u64,
    evicted: u64,
    refused: u64,
}

fn draw(dice: &mut Dice, id: u64, now: i64) -> Newcomer {
    let demand = match dice.below(4) {
        0 => Demand::whole(2_000, 2_000, u8::try_from(1 + dice.below(2)).unwrap()),
        _ => Demand::share(
            500 * u32::try_from(dice.below(6)).unwrap(),
            1_000,
            u8::try_from(1 + dice.below(99)).unwrap(),
        ),
    };
    let class = [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Critical,
    ];
    let mut job = job(id, demand.unwrap(), dice.pick(&class));
    job.submitted = at(now);
    Newcomer {
        job,
        kind: dice.pick(&[
            WorkKind::Training,
            WorkKind::Inference,
            WorkKind::Interactive,
        ]),
        environment: dice.pick(&[Environment::Development, Environment::Production]),
    }
}

/// Starts whoever can, in the order of the queue, by making others give way if need be.
fn serve(
    cluster: &mut Cluster,
    runs: &mut Runs,
    queue: &mut BTreeMap<Turn, Newcomer>,
    now: i64,
    tally: &mut Tally,
) {
    let mut left: BTreeMap<Turn, Newcomer> = BTreeMap::new();
    while let Some((turn, newcomer)) = queue.pop_first() {
        let demand = newcomer.job.ask.demand;
        let places = match scan(&BestFit, cluster, &demand) {
            Some(choice) => vec![choice.place],
            None => match runs.reclaim(cluster, &newcomer, at(now)) {
                Some(reclaim) => {
                    assert!(!reclaim.victims.is_empty());
                    for victim in &reclaim.victims {
                        let running = runs.remove(victim.job).unwrap();
                        let ran = at(now).since(running.since);
                        assert!(ran >= MIN_RUN, "evicted within its minimum run time");
                        for place in &running.places {
                            cluster.give(*place, &running.job.ask.demand).unwrap();
                        }
                        // Its turn is the one that it had; it is behind the newcomer unless
                        // it is of the same priority and older.
                        let again = Turn::of(&running.job, 0);
                        let back = Newcomer {
                            job: running.job,
                            kind: running.kind,
                            environment: running.environment,
                        };
                        assert_eq!(running.job.submitted, back.job.submitted);
                        assert!(left.insert(again, back).is_none());
                        tally.evicted += 1;
                    }
                    reclaim.places
                }
                None => {
                    assert_nothing_missed(cluster, runs, &newcomer, now);
                    tally.refused += 1;
                    left.insert(turn, newcomer);
                    continue;
                }
            },
        };
        for place in &places {
            assert!(cluster.node(place.node).unwrap().fits(&demand));
            cluster.take(*place, &demand).unwrap();
        }
        let mut running = training(newcomer.job, places, at(now));
        running.kind = newcomer.kind;
        running.environment = newcomer.environment;
        runs.insert(running);
        tally.started += 1;
    }
    *queue = left;
}

/// No reclaim means: even with everybody gone who may be made to go, there is no room.
fn assert_nothing_missed(cluster: &Cluster, runs: &Runs, newcomer: &Newcomer, now: i64) {
    let mut emptied = cluster.clone();
    for running in runs.runs.values() {
        let goes = newcomer.class().goes_before(running.class()).is_some()
            && at(now).since(running.since) >= MIN_RUN;
        if goes {
            for place in &running.places {
                emptied.give(*place, &running.job.ask.demand).unwrap();
            }
        }
    }
    let demand = newcomer.job.ask.demand;
    assert!(
        emptied.nodes().all(|(_, node)| !node.fits(&demand)),
        "a reclaim was missed for {newcomer:?}"
    );
}

#[test]
fn nobody_is_evicted_too_early_or_for_nothing_and_no_reclaim_is_missed() {
    for seed in 1..=u64::from(rounds()) {
        println!("seed {seed}");
        let mut dice = Dice::new(seed);
        let mut cluster = Cluster::new();
        for _ in 0..4 {
            cluster
                .add(Node::new(kind(0), 16_000, 64_000, 4).unwrap())
                .unwrap();
        }
        let mut runs = Runs::new(MIN_RUN);
        let mut queue: BTreeMap<Turn, Newcomer> = BTreeMap::new();
        let mut tally = Tally::default();
        let mut now = 0;
        for id in 0..1_500 {
            now += i64::try_from(dice.below(4)).unwrap();
            if queue.len() < 20 {
                let newcomer = draw(&mut dice, id, now);
                queue.insert(Turn::of(&newcomer.job, 0), newcomer);
            }
            let ids: Vec<JobId> = runs.runs.keys().copied().collect();
            for id in ids {
                match dice.below(60) {
                    0 => {
                        let running = runs.remove(id).unwrap();
                        for place in &running.places {
                            cluster.give(*place, &running.job.ask.demand).unwrap();
                        }
                    }
                    1..5 => runs.saved(id, at(now)),
                    _ => {}
                }
            }
            serve(&mut cluster, &mut runs, &mut queue, now, &mut tally);
        }
        println!(
            "started {}, evicted {}, refused {}",
            tally.started, tally.evicted, tally.refused
        );
        assert!(tally.started > 500 && tally.evicted > 50 && tally.refused > 50);
    }
}
