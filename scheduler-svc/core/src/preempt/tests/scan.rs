//! The search against a look at every node, while work comes, saves and goes.

use super::{
    soak::{Dice, rounds},
    *,
};
use crate::preempt::{room::Room, victims::cheapest};

/// The same question, answered by looking at every node, in the order in which bounds that are
/// computed from all of its work put them.
fn scanned(
    runs: &Runs,
    cluster: &Cluster,
    newcomer: &Newcomer,
    now: Timestamp,
) -> Option<(Loss, NodeIx, Vec<JobId>)> {
    let demand = &newcomer.job.ask.demand;
    let priority = newcomer.job.priority;
    let mut nodes: Vec<(u128, NodeIx)> = Vec::new();
    for (ix, node) in suitable(cluster, newcomer) {
        let room = Room::free(node);
        let bound = runs
            .summary
            .at_least(ix, node, &room, demand, priority, now);
        let floor = runs.summary.floor(ix, &room, demand, priority, now);
        assert_eq!(bound.is_some(), floor.is_some());
        let candidates = runs.candidates(ix, newcomer.class(), now);
        let exact = cheapest(&room, &candidates, demand, 1, None);
        if let Some((loss, _)) = exact.filter(|_| !node.fits(demand)) {
            assert!(bound.unwrap() <= loss.gpu, "{bound:?} {loss:?}");
            assert!(u128::from(floor.unwrap()) <= loss.gpu, "{floor:?} {loss:?}");
        }
        nodes.extend(bound.map(|bound| (bound, ix)));
    }
    nodes.sort_unstable();
    let mut best: Option<(Loss, NodeIx, Vec<JobId>)> = None;
    for (_, ix) in nodes {
        let candidates = runs.candidates(ix, newcomer.class(), now);
        let limit = best.as_ref().map(|(least, other, _)| {
            if ix < *other {
                least.just_above()
            } else {
                *least
            }
        });
        let room = Room::free(cluster.node(ix).unwrap());
        if let Some((loss, victims)) = cheapest(&room, &candidates, demand, 1, limit) {
            best = Some((loss, ix, victims));
        }
    }
    best
}

/// Whether the search has to begin again in that order.
fn depends_on_order(runs: &Runs, cluster: &Cluster, newcomer: &Newcomer, now: Timestamp) -> bool {
    let demand = &newcomer.job.ask.demand;
    let priority = newcomer.job.priority;
    let offers = suitable(cluster, newcomer).filter_map(|(ix, node)| {
        let room = Room::free(node);
        let floor = runs.summary.floor(ix, &room, demand, priority, now)?;
        Some((floor, ix))
    });
    Search::new(runs, cluster, newcomer, now)
        .in_any_order(offers.collect(), |_| Some(0))
        .is_err()
}

/// What a task asks for; in a crowd it is mostly a few blocks and half a processor.
fn demand(dice: &mut Dice, crowd: bool) -> Demand {
    if crowd && dice.below(10) > 0 {
        let blocks = u8::try_from(2 + dice.below(8)).unwrap();
        return Demand::share(500, 0, blocks).unwrap();
    }
    let small = |dice: &mut Dice| u32::try_from(dice.below(4)).unwrap() * 500;
    let (cpu, memory) = (small(dice), small(dice));
    let demand = match dice.below(12) {
        0 => Demand::cpu_only(cpu + 500, memory),
        1..4 => Demand::whole(cpu, memory, u8::try_from(1 + dice.below(3)).unwrap()).unwrap(),
        4..7 => Demand::share(cpu, memory, u8::try_from(1 + dice.below(99)).unwrap()).unwrap(),
        _ => Demand::share(cpu, memory, u8::try_from(5 + dice.below(40)).unwrap()).unwrap(),
    };
    if dice.below(8) == 0 {
        demand.on(KindSet::ANY.with(kind(1)))
    } else {
        demand
    }
}

fn cell_of(dice: &mut Dice, nodes: u64, crowd: bool) -> Cluster {
    let mut cluster = Cluster::new();
    for _ in 0..nodes {
        // Enough processors for whatever the GPUs hold, or just not.
        let cpu = if crowd || dice.below(4) == 0 {
            12_000
        } else {
            80_000
        };
        let gpus = u8::try_from(1 + dice.below(4)).unwrap();
        let number = u8::from(dice.below(3) == 0);
        let node = Node::new(kind(number), cpu, 200_000, gpus).unwrap();
        let ix = cluster.add(node).unwrap();
        cluster.set_eligible(ix, dice.below(10) > 0).unwrap();
    }
    cluster
}

/// A job of one or two tasks, if it finds room.
fn started(
    dice: &mut Dice,
    cluster: &mut Cluster,
    crowd: bool,
    id: u64,
    now: i64,
) -> Option<Running> {
    let demand = demand(dice, crowd);
    let mut places = Vec::new();
    for _ in 0..1 + dice.below(8) / 7 {
        let from = dice.below(cluster.bound() as u64);
        let mut nodes = (from..)
            .take(cluster.bound())
            .map(|at| NodeIx(u32::try_from(at % cluster.bound() as u64).unwrap()));
        let found = nodes.find_map(|node| {
            let mut room = Room::free(cluster.node(node).unwrap());
            let gpus = room.take(&demand)?;
            Some(Place { node, gpus })
        });
        places.extend(found);
        if let Some(place) = found {
            cluster.take(place, &demand).unwrap();
        }
    }
    let priorities = [
        Priority::Low,
        Priority::Low,
        Priority::Normal,
        Priority::High,
    ];
    let mut job = job(id, demand, dice.pick(&priorities));
    job.ask.tasks = u16::try_from(places.len()).unwrap();
    let mut running = training(
        job,
        places,
        at(now - i64::try_from(dice.below(60)).unwrap()),
    );
    running.kind = dice.pick(&[WorkKind::Training, WorkKind::Evaluation]);
    running.fixed = dice.below(20) == 0;
    (!running.places.is_empty()).then_some(running)
}

#[test]
fn the_search_answers_as_a_look_at_every_node() {
    let (mut found, mut none, mut cut_off) = (0, 0, 0);
    for seed in 1..=4 * u64::from(rounds()) {
        println!("seed {seed}");
        let mut dice = Dice::new(seed);
        let crowd = seed % 2 == 0;
        let mut cluster = cell_of(&mut dice, if crowd { 5 } else { 12 }, crowd);
        let mut runs = Runs::new(MIN_RUN);
        let mut now = 0;
        for id in 0..600 {
            // The clock is set back now and then.
            now += i64::try_from(dice.below(3)).unwrap() - i64::from(dice.below(40) == 0);
            if let Some(running) = started(&mut dice, &mut cluster, crowd, id, now) {
                runs.insert(running);
            }
            let ids: Vec<JobId> = runs.runs.keys().copied().collect();
            for id in ids {
                match dice.below(150) {
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
            if id < 150 {
                continue;
            }
            let wanted = demand(&mut dice, false);
            let priorities = [Priority::Normal, Priority::High, Priority::Critical];
            let mut newcomer = newcomer(job(u64::MAX, wanted, dice.pick(&priorities)));
            if dice.below(2) == 0 {
                newcomer.kind = WorkKind::Inference;
                newcomer.environment = Environment::Production;
            }
            let got = runs.reclaim(&cluster, &newcomer, at(now));
            if got.as_ref().is_some_and(|got| got.victims.is_empty()) {
                continue;
            }
            let expected = scanned(&runs, &cluster, &newcomer, at(now));
            let expected = expected.map(|(loss, ix, mut victims)| {
                victims.sort_unstable();
                (loss, ix, victims)
            });
            cut_off += u32::from(depends_on_order(&runs, &cluster, &newcomer, at(now)));
            let got = got.map(|got| {
                let victims: Vec<JobId> = got.victims.iter().map(|victim| victim.job).collect();
                (got.loss, got.places[0].node, victims)
            });
            found += u32::from(got.is_some());
            none += u32::from(got.is_none());
            assert_eq!(got, expected, "{newcomer:?}");
        }
    }
    println!("{found} found, {none} not, {cut_off} might depend on the order");
    assert!(found > 200 && none > 20 && cut_off > 5);
}
