use proptest::prelude::*;

use super::*;
use crate::cluster::{GpuSet, Kind};

fn kind(number: u8) -> Kind {
    Kind::new(number).unwrap()
}

fn cluster(nodes: &[(u8, u32, u8)]) -> Cluster {
    let mut cluster = Cluster::new();
    for (number, cpu, gpus) in nodes {
        let node = Node::new(kind(*number), *cpu, 1000, *gpus).unwrap();
        cluster.add(node).unwrap();
    }
    cluster
}

const fn at(moment: i64) -> Timestamp {
    Timestamp(moment)
}

const fn lasting(length: u64) -> Duration {
    Duration::from_micros(length)
}

fn place(node: u32, gpus: &[usize]) -> Place {
    Place {
        node: NodeIx(node),
        gpus: gpus.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu)),
    }
}

fn claim(demand: Demand, node: u32, gpus: &[usize], from: i64, until: i64) -> Claim {
    Claim {
        demand,
        places: vec![place(node, gpus)],
        from: at(from),
        until: at(until),
    }
}

#[test]
fn a_whole_node_waits_for_the_last_share_of_it() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 2)]), at(0));
    let share = Demand::share(10, 10, 30).unwrap();
    timeline.record(&claim(share, 0, &[1], -5, 40)).unwrap();
    let both = Ask::one(Demand::whole(10, 10, 2).unwrap());
    let single = Ask::one(Demand::whole(10, 10, 1).unwrap());
    let first = |ask: &Ask| {
        timeline
            .earliest(ask, lasting(10), Window::from(at(0)))
            .unwrap()
    };
    assert_eq!(first(&both).start, at(40));
    assert_eq!(first(&single).places, [place(0, &[0])]);
    assert_eq!(first(&single).start, at(0));
    let by = |deadline| {
        let window = Window::before(at(0), at(deadline), lasting(10));
        timeline.earliest(&both, lasting(10), window)
    };
    assert_eq!(by(49), None);
    assert_eq!(by(50).unwrap().start, at(40));
}

#[test]
fn a_gap_must_last_and_be_on_the_same_gpu() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 2)]), at(0));
    let whole = Demand::whole(1, 1, 1).unwrap();
    // GPU 0 is free during 0..10, GPU 1 during 10..20.
    timeline.record(&claim(whole, 0, &[0], 10, 30)).unwrap();
    timeline.record(&claim(whole, 0, &[1], 0, 10)).unwrap();
    timeline.record(&claim(whole, 0, &[1], 20, 40)).unwrap();
    let start = |length| {
        let window = Window::from(at(0));
        let slot = timeline.earliest(&Ask::one(whole), lasting(length), window);
        slot.unwrap().start
    };
    assert_eq!(start(10), at(0));
    // Though one GPU is free at every moment until 20.
    assert_eq!(start(11), at(30));
}

#[test]
fn a_gang_begins_at_one_moment() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 2), (0, 100, 2), (1, 100, 2)]), at(0));
    let whole = Demand::whole(1, 1, 1).unwrap();
    timeline.record(&claim(whole, 0, &[0], 0, 7)).unwrap();
    timeline.record(&claim(whole, 1, &[0], 0, 9)).unwrap();
    timeline.record(&claim(whole, 2, &[0], 0, 20)).unwrap();
    let start = |demand: Demand, tasks| {
        let ask = Ask::gang(demand, tasks);
        let slot = timeline.earliest(&ask, lasting(5), Window::from(at(0)))?;
        assert_eq!(slot.places.len(), usize::from(tasks));
        Some(slot.start)
    };
    assert_eq!(start(whole, 3), Some(at(0)));
    assert_eq!(start(whole, 4), Some(at(7)));
    assert_eq!(start(whole, 6), Some(at(20)));
    assert_eq!(start(whole, 7), None);
    let first_kind = whole.on(KindSet::ANY.with(kind(0)));
    assert_eq!(start(first_kind, 4), Some(at(9)));
    assert_eq!(start(first_kind, 5), None);
    assert_eq!(start(Demand::whole(1, 1, 2).unwrap(), 2), Some(at(9)));
}

#[test]
fn of_equally_early_slots_the_one_that_keeps_rooms_whole_is_taken() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 4), (0, 100, 4)]), at(0));
    let whole = Demand::whole(1, 1, 1).unwrap();
    let long = Demand::share(1, 1, 50).unwrap();
    let node = |timeline: &Timeline, length| {
        let window = Window::from(at(0));
        let slot = timeline.earliest(&Ask::one(whole), lasting(length), window);
        slot.unwrap().places[0].node
    };
    assert_eq!(node(&timeline, 50_000), NodeIx(0));
    // Beside what runs for longer it breaks up no set of four.
    let held = claim(long, 1, &[0], 0, 100_000);
    timeline.record(&held).unwrap();
    assert_eq!(node(&timeline, 50_000), NodeIx(1));
    timeline
        .record(&claim(long, 0, &[0, 1, 2], 0, 100_000))
        .unwrap();
    // Neither has four; the one that fits more tightly is left.
    assert_eq!(node(&timeline, 50_000), NodeIx(0));
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 1), (0, 100, 1)]), at(0));
    let whole = Demand::whole(1, 1, 1).unwrap();
    timeline.record(&claim(whole, 1, &[0], 5, 10)).unwrap();
    let mut both = claim(whole, 0, &[0], 0, 6);
    both.places.push(place(1, &[0]));
    assert_eq!(timeline.reserve(&both), Err(Refused::Blocks));
    assert_eq!(timeline.release(&both), Err(Refused::NotHeld));
    let mut first = claim(whole, 0, &[0], 0, 5);
    timeline.reserve(&first).unwrap();
    timeline.extend(&mut first, at(8)).unwrap();
    timeline.shorten(&mut first, at(3)).unwrap();
    timeline.release(&first).unwrap();
    assert_eq!(
        timeline.release(&claim(whole, 0, &[0], 0, 1)),
        Err(Refused::NotHeld)
    );
    timeline.release(&claim(whole, 1, &[0], 5, 10)).unwrap();
}

#[test]
fn the_past_is_forgotten_and_what_began_in_it_is_still_given_back() {
    let mut timeline = Timeline::new(&cluster(&[(0, 100, 1)]), at(0));
    let whole = Demand::whole(1, 1, 1).unwrap();
    for start in 0..50 {
        timeline.pass(at(start * 10));
        timeline
            .reserve(&claim(whole, 0, &[0], start * 10, start * 10 + 9))
            .unwrap();
    }
    let lane = timeline.lanes[0].as_ref().unwrap();
    assert!(lane.steps().count() <= 3, "{lane:?}");
    let mut last = claim(whole, 0, &[0], 490, 499);
    timeline.pass(at(493));
    timeline.shorten(&mut last, at(493)).unwrap();
    let slot = timeline.earliest(&Ask::one(whole), lasting(100), Window::from(at(0)));
    assert_eq!(slot.unwrap().start, at(493));
}

#[test]
fn closed_and_removed_nodes_get_nothing() {
    let mut nodes = cluster(&[(0, 100, 1), (0, 100, 1)]);
    nodes.set_eligible(NodeIx(0), false).unwrap();
    let mut timeline = Timeline::new(&nodes, at(0));
    let ask = Ask::one(Demand::whole(1, 1, 1).unwrap());
    let first = |timeline: &Timeline| timeline.earliest(&ask, lasting(1), Window::from(at(0)));
    assert_eq!(first(&timeline).unwrap().places[0].node, NodeIx(1));
    timeline.remove_node(NodeIx(1));
    assert_eq!(first(&timeline), None);
}

/// The same asked of a table of every moment. It knows nothing of steps or bounds.
struct Table {
    nodes: Vec<(u8, u32, u8)>,
    claims: Vec<Claim>,
}

const END: i64 = 60;

impl Table {
    /// Free processors and blocks per GPU during all of `start..end`.
    fn left(&self, node: usize, start: i64, end: i64) -> (i64, Vec<i64>) {
        let (_, cpu, gpus) = self.nodes[node];
        let mut least = (i64::from(cpu), vec![100; usize::from(gpus)]);
        for moment in start..end {
            let mut left = (i64::from(cpu), vec![100; usize::from(gpus)]);
            for claim in &self.claims {
                if claim.from.0 <= moment && moment < claim.until.0 {
                    for place in &claim.places {
                        if place.node.get() == node {
                            left.0 -= i64::from(claim.demand.cpu_milli());
                            for gpu in place.gpus.iter() {
                                left.1[gpu] -= i64::from(claim.demand.blocks());
                            }
                        }
                    }
                }
            }
            least.0 = least.0.min(left.0);
            for (least, left) in least.1.iter_mut().zip(left.1) {
                *least = (*least).min(left);
            }
        }
        least
    }

    fn tasks(&self, ask: &Ask, start: i64, end: i64) -> i64 {
        let mut tasks = 0;
        for (index, (number, ..)) in self.nodes.iter().enumerate() {
            let other = ask.only.is_some_and(|only| only.get() != index);
            if other || !ask.demand.kinds().admits(kind(*number)) {
                continue;
            }
            let (mut cpu, mut gpus) = self.left(index, start, end);
            'task: loop {
                cpu -= i64::from(ask.demand.cpu_milli());
                if cpu < 0 {
                    break;
                }
                for _ in 0..ask.demand.gpus() {
                    let blocks = i64::from(ask.demand.blocks());
                    let Some(free) = gpus.iter_mut().find(|free| **free >= blocks) else {
                        break 'task;
                    };
                    *free -= blocks;
                }
                tasks += 1;
            }
        }
        tasks
    }

    fn earliest(&self, ask: &Ask, length: i64, window: Window) -> Option<i64> {
        (window.from.0..=window.latest.0.min(END))
            .find(|start| self.tasks(ask, *start, start + length) >= i64::from(ask.tasks))
    }
}

fn demands() -> impl Strategy<Value = Demand> {
    let shape = prop_oneof![
        1 => Just((0_u8, 0_u8)),
        3 => (1_u8..=100).prop_map(|blocks| (1, blocks)),
        3 => (1_u8..=3).prop_map(|gpus| (gpus, 100)),
    ];
    (1_u32..60, shape, 0_u8..4).prop_map(|(cpu, (gpus, blocks), kinds)| {
        let demand = match (gpus, blocks) {
            (0, _) => Demand::cpu_only(cpu, 1),
            (_, 100) => Demand::whole(cpu, 1, gpus).unwrap(),
            _ => Demand::share(cpu, 1, blocks).unwrap(),
        };
        let kinds: KindSet = (0..2)
            .filter(|bit| kinds >> bit & 1 == 1)
            .filter_map(Kind::new)
            .collect();
        demand.on(kinds)
    })
}

fn asks() -> impl Strategy<Value = Ask> {
    let only = proptest::option::weighted(0.2, 0_u32..3);
    (
        demands(),
        prop_oneof![3 => Just(1_u16), 2 => 2_u16..5],
        only,
    )
        .prop_map(|(demand, tasks, only)| Ask {
            demand,
            tasks,
            only: only.map(NodeIx),
        })
}

proptest! {

    /// Every answer is the earliest that a table of all moments has, fits, and can be undone.
    #[test]
    fn answers_agree_with_a_table_of_every_moment(
        nodes in proptest::collection::vec((0_u8..2, 40_u32..120, 0_u8..4), 1..4),
        asked in proptest::collection::vec(
            (asks(), 1_u64..12, 0_i64..20, proptest::option::of(0_i64..30), 0_u8..4),
            1..14,
        ),
    ) {
        let mut timeline = Timeline::new(&cluster(&nodes), at(0));
        let mut table = Table { nodes, claims: Vec::new() };
        for (ask, length, from, latest, then) in asked {
            let window = Window {
                from: at(from),
                latest: latest.map_or(at(i64::MAX), |span| at(from + span)),
            };
            let length_micros = i64::try_from(length).unwrap();
            let slot = timeline.earliest(&ask, lasting(length), window);
            prop_assert_eq!(
                slot.as_ref().map(|slot| slot.start.0),
                table.earliest(&ask, length_micros, window),
                "{:?} for {} in {:?}", ask, length, window
            );
            let Some(slot) = slot else { continue };
            let claim = Claim::of(&ask, slot, lasting(length));
            timeline.reserve(&claim).unwrap();
            table.claims.push(claim);
            // What is held never exceeds what there is.
            for node in 0..table.nodes.len() {
                for moment in 0..END {
                    let (cpu, gpus) = table.left(node, moment, moment + 1);
                    prop_assert!(cpu >= 0 && gpus.iter().all(|left| *left >= 0));
                }
            }
            if then == 0 {
                let claim = table.claims.remove(0);
                timeline.release(&claim).unwrap();
            } else if then == 1 {
                let middle = at(i64::midpoint(table.claims[0].from.0, table.claims[0].until.0));
                timeline.shorten(&mut table.claims[0], middle).unwrap();
            }
        }
        while let Some(claim) = table.claims.pop() {
            timeline.release(&claim).unwrap();
        }
        for lane in timeline.lanes.iter().flatten() {
            prop_assert_eq!(lane.steps().count(), 1);
        }
    }
}
