//! Each part against an exhaustive reference, and the whole against the laws of a placement.

use std::collections::BTreeMap;

use super::board::{Board, Score};
use super::cutting::{self, Cut};
use super::fgd::{self, Fgd, Popular};
use super::moves::{self, Held};
use super::plan::{Expected, Planner, Settings};
use super::policy::Policy;
use super::popularity::Popularity;
use super::{Class, Free, WHOLE};
use crate::cluster::{Cluster, Demand, GpuSet, Kind, KindSet, Node, Place};
use crate::fragmentation::Popularity as Typical;

/// A linear congruential generator: enough to vary inputs, and the same for ever.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(bound)).unwrap()
    }
}

fn nodes(rng: &mut Lcg, count: u32) -> Vec<Free> {
    (0..count)
        .map(|_| {
            let kind = Kind::new(u8::try_from(rng.below(2)).unwrap()).unwrap();
            let gpus = u8::try_from(1 + rng.below(4)).unwrap();
            let cpu = 8_000 + 8_000 * rng.below(8);
            Free::of(&Node::new(kind, cpu, 4 * cpu, gpus).unwrap())
        })
        .collect()
}

fn demand(rng: &mut Lcg) -> Demand {
    let cpu = 1_000 * (1 + rng.below(12));
    let memory = 1_024 * (1 + rng.below(16));
    let demand = match rng.below(10) {
        0 => Demand::cpu_only(cpu, memory),
        1..=4 => {
            let sizes = [81, 47, 47, 65, 32, 23, 16, 5];
            Demand::share(cpu, memory, sizes[rng.below(8) as usize]).unwrap()
        }
        5..=8 => Demand::whole(cpu, memory, 1).unwrap(),
        _ => Demand::whole(cpu, memory, 2).unwrap(),
    };
    if rng.below(5) == 0 {
        demand.on(KindSet::ANY.with(Kind::new(0).unwrap()))
    } else {
        demand
    }
}

fn expected(rng: &mut Lcg) -> Vec<Expected> {
    let mut classes: BTreeMap<Class, (u32, u32)> = BTreeMap::new();
    for _ in 0..300 {
        let demand = demand(rng);
        let entry = classes.entry(Class::of(&demand)).or_default();
        *entry = (entry.0 + 1, demand.memory_mib());
    }
    classes
        .into_iter()
        .map(|(class, (count, memory))| Expected {
            class,
            memory,
            count,
        })
        .collect()
}

/// The fewest GPUs for so many shares of each size, by trying everything.
fn fewest(sizes: &[u8], counts: &[u32], known: &mut BTreeMap<Vec<u32>, u32>) -> u32 {
    if counts.iter().all(|&n| n == 0) {
        return 0;
    }
    if let Some(&gpus) = known.get(counts) {
        return gpus;
    }
    let mut best = u32::MAX;
    let mut chosen = vec![0; sizes.len()];
    loop {
        // The next combination, as a number with one digit per size.
        let mut place = 0;
        while place < sizes.len() {
            chosen[place] += 1;
            let room: u32 = (0..sizes.len())
                .map(|i| chosen[i] * u32::from(sizes[i]))
                .sum();
            if chosen[place] <= counts[place] && room <= u32::from(WHOLE) {
                break;
            }
            chosen[place] = 0;
            place += 1;
        }
        if place == sizes.len() {
            break;
        }
        let left: Vec<u32> = (0..sizes.len()).map(|i| counts[i] - chosen[i]).collect();
        best = best.min(1 + fewest(sizes, &left, known));
    }
    known.insert(counts.to_vec(), best);
    best
}

fn idle_gpus(cuts: &[Cut]) -> u32 {
    let idle = cuts.iter().filter(|cut| cut.room == WHOLE);
    idle.map(|cut| cut.times).sum()
}

#[test]
fn cuts_open_as_few_gpus_as_an_exhaustive_search() {
    let mut rng = Lcg(1);
    for round in 0..60 {
        let mut sizes: Vec<u8> = (0..3)
            .map(|_| u8::try_from(20 + rng.below(60)).unwrap())
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let counts: Vec<u32> = sizes.iter().map(|_| 1 + rng.below(9)).collect();
        let demand: Vec<(u8, u32)> = sizes.iter().copied().zip(counts.iter().copied()).collect();
        let cuts = cutting::cut(&demand, &[]);
        let opened = idle_gpus(&cuts);
        let best = fewest(&sizes, &counts, &mut BTreeMap::new());
        // Each pattern's count is rounded down, and there is at most one pattern per size.
        let rounded = u32::try_from(sizes.len()).unwrap();
        assert!(opened <= best, "round {round}: {demand:?} {cuts:?} {best}");
        assert!(
            opened + rounded + 1 >= best,
            "round {round}: {demand:?} {cuts:?} {best}"
        );
    }
}

/// The shares of the openb trace between 20 and 80 blocks, and how many there are.
#[rustfmt::skip]
const OPENB: [(u8, u32); 15] = [
    (22, 62), (23, 140), (27, 4), (29, 1), (32, 328), (33, 7), (35, 6), (37, 47), (44, 2), (46, 128),
    (47, 750), (48, 19), (55, 72), (59, 75), (65, 253),
];

#[test]
fn cuts_are_those_of_another_solver() {
    // Optima of the linear programme over all patterns, from HiGHS, in tenths of a GPU.
    for (rooms, optimum) in [
        (&[][..], 8_866),
        (&[(53, 60), (45, 20), (35, 100), (30, 7)], 8_205),
    ] {
        let cuts = cutting::cut(&OPENB, rooms);
        for cut in &cuts {
            assert!(cut.sizes.iter().map(|&s| u32::from(s)).sum::<u32>() <= u32::from(cut.room));
        }
        for &(room, count) in rooms {
            let used = cuts.iter().filter(|cut| cut.room == room);
            assert!(used.map(|cut| cut.times).sum::<u32>() <= count);
        }
        // What rounding down leaves is a GPU or two.
        let opened = idle_gpus(&cuts) * 10;
        assert!(
            opened <= optimum && opened + 50 >= optimum,
            "{opened} {optimum}"
        );
        let mut left: BTreeMap<u8, u32> = OPENB.into_iter().collect();
        for cut in &cuts {
            for size in &cut.sizes {
                let left = left.get_mut(size).unwrap();
                *left = left.saturating_sub(cut.times);
            }
        }
        let blocks: u32 = left.iter().map(|(&size, &n)| u32::from(size) * n).sum();
        assert!(blocks <= 500, "{left:?}");
    }
}

#[test]
fn a_board_decides_as_a_scan_does() {
    let mut rng = Lcg(2);
    let expected = expected(&mut rng);
    let popular: Vec<Popular> = expected
        .iter()
        .map(|e| Popular {
            class: e.class,
            count: e.count,
        })
        .collect();
    let fgd = Fgd::new(&popular);
    let mut board = Board::new(nodes(&mut rng, 40), fgd.clone());
    let mut decided = 0;
    for _ in 0..1_500 {
        let id = rng.below(u32::try_from(expected.len()).unwrap()) as usize;
        let (class, memory) = (expected[id].class, expected[id].memory);
        let mut scan: Option<(i16, usize)> = None;
        for (index, node) in board.nodes().iter().enumerate() {
            if let Some(score) = fgd.score(index, node, &class)
                && node.memory >= memory
                && scan.is_none_or(|(top, _)| score > top)
            {
                scan = Some((score, index));
            }
        }
        let best = board.best(id, &class, memory);
        assert_eq!(best, scan.map(|(_, index)| index));
        if let Some(index) = best {
            decided += 1;
            let node = board.nodes()[index];
            let (_, set) = fgd.rate(&node, &class).unwrap();
            board.set(index, node.take(&class, memory, set).unwrap());
        } else {
            // Somebody leaves everything.
            let index = rng.below(40) as usize;
            board.set(index, nodes(&mut rng, 1)[0]);
        }
    }
    assert!(decided > 300, "{decided}");
}

#[test]
fn fragmentation_is_that_of_the_definition() {
    let mut rng = Lcg(9);
    let expected = expected(&mut rng);
    let popular: Vec<Popular> = expected
        .iter()
        .map(|e| Popular {
            class: e.class,
            count: e.count,
        })
        .collect();
    let fgd = Fgd::new(&popular);
    let types = fgd::typical(&popular).into_iter().map(|popular| {
        let class = popular.class;
        let demand = match class.gpus {
            0 => Demand::cpu_only(class.cpu, 0),
            1 => Demand::share(class.cpu, 0, class.blocks).unwrap(),
            gpus => Demand::whole(class.cpu, 0, gpus).unwrap(),
        };
        (demand.on(class.kinds), u64::from(popular.count))
    });
    let definition = Typical::weighted(types);
    assert_eq!(i64::from(definition.total()), fgd.weight());
    for _ in 0..500 {
        let kind = Kind::new(u8::try_from(rng.below(2)).unwrap()).unwrap();
        let mut cluster = Cluster::new();
        let node = cluster
            .add(Node::new(kind, 32_000, 131_072, 4).unwrap())
            .unwrap();
        for _ in 0..rng.below(6) {
            let demand = demand(&mut rng);
            let free = Free::of(cluster.node(node).unwrap());
            if let Some(gpus) = free.tightest(&Class::of(&demand)) {
                let _ = cluster.take(Place { node, gpus }, &demand);
            }
        }
        let node = cluster.node(node).unwrap();
        let amount = i64::try_from(definition.amount(node)).unwrap();
        assert_eq!(fgd.fragmentation(&Free::of(node)), amount);
    }
}

#[test]
fn slots_and_spare_are_what_is_free() {
    let mut rng = Lcg(3);
    for moves in [0, 50] {
        let settings = Settings {
            moves,
            ..Settings::DEFAULT
        };
        let expected = expected(&mut rng);
        let planner = Planner::new(settings, expected.clone());
        let mut free = nodes(&mut rng, 60);
        for node in free.iter_mut().take(30) {
            node.gpus[0] = u8::try_from(rng.below(101)).unwrap();
        }
        let total = free.iter().map(|node| u64::from(node.total())).sum();
        let plan = planner.plan(&free, planner.arrivals(total), u64::from(moves));
        let mut planned = 0;
        for (slots, expected) in plan.slots.iter().zip(&expected) {
            for slot in slots {
                assert!(expected.class.kinds.admits(free[slot.node].kind));
                free[slot.node] = free[slot.node]
                    .take(&expected.class, expected.memory, slot.gpus)
                    .expect("a slot has room");
                planned += u64::from(expected.class.total());
            }
        }
        assert!(planned * 10 > total * 8, "{planned} of {total}");
        for (left, spare) in free.iter().zip(&plan.spare) {
            assert_eq!(left.gpus, spare.gpus);
            assert_eq!(left.memory, spare.memory);
            // Some processor time is kept for tasks that will move.
            assert!(if moves == 0 {
                left.cpu == spare.cpu
            } else {
                left.cpu >= spare.cpu
            });
        }
    }
}

/// Whatever happens, what fits is placed, where it fits; twice the same gives the same.
#[test]
fn a_task_that_fits_is_placed() {
    for (seed, moves, learns) in [(4, 0, false), (5, 0, true), (6, 50, false), (7, 50, true)] {
        let settings = Settings {
            moves,
            every: 60,
            ..Settings::DEFAULT
        };
        let run = || {
            let mut rng = Lcg(seed);
            let popularity = if learns {
                Popularity::learned()
            } else {
                Popularity::known(expected(&mut rng))
            };
            let mut free = nodes(&mut rng, 50);
            let mut policy = Policy::new(free.clone(), popularity, settings);
            let mut held: BTreeMap<usize, (usize, GpuSet, Demand)> = BTreeMap::new();
            let (mut moved, mut none) = (0, 0);
            let mut answers = Vec::new();
            for task in 0..600 {
                let demand = demand(&mut rng);
                let class = Class::of(&demand);
                let fits = |node: &Free| node.memory >= demand.memory_mib() && node.fits(&class);
                let somewhere = free.iter().any(fits);
                let answer = policy.place(task, &demand);
                answers.push(answer);
                let Some(answer) = answer else {
                    assert!(!somewhere, "{demand} fits");
                    none += 1;
                    // The longest running one ends now and then.
                    if none % 2 == 0
                        && let Some((first, (node, gpus, ended))) = held.pop_first()
                    {
                        free[node] = free[node].give(&Class::of(&ended), ended.memory_mib(), gpus);
                        policy.ended(first, node, free[node]);
                    }
                    continue;
                };
                if let Some(relocation) = answer.relocation {
                    assert!(!somewhere);
                    moved += 1;
                    let (node, gpus, other) = held[&relocation.task];
                    assert_eq!(node, relocation.from);
                    let (class, memory) = (Class::of(&other), other.memory_mib());
                    free[node] = free[node].give(&class, memory, gpus);
                    let to = relocation.to;
                    assert!(class.kinds.admits(free[to.node].kind));
                    free[to.node] = free[to.node].take(&class, memory, to.gpus).unwrap();
                    held.insert(relocation.task, (to.node, to.gpus, other));
                }
                let slot = answer.slot;
                assert!(class.kinds.admits(free[slot.node].kind));
                free[slot.node] = free[slot.node]
                    .take(&class, demand.memory_mib(), slot.gpus)
                    .expect("it fits there");
                held.insert(task, (slot.node, slot.gpus, demand));
                assert_eq!(policy.nodes()[slot.node], free[slot.node]);
            }
            assert!(none > 20, "{none}");
            assert!(moved * 1000 <= moves * 600);
            assert_eq!(moves > 0, moved > 0);
            answers
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn a_move_is_found_whenever_there_is_one() {
    let mut rng = Lcg(8);
    let (mut found, mut absent) = (0, 0);
    for _ in 0..300 {
        let mut free = nodes(&mut rng, 4);
        let mut held: Vec<Vec<Held>> = vec![Vec::new(); 4];
        for task in 0..30 {
            let demand = demand(&mut rng);
            let class = Class::of(&demand);
            for (node, list) in free.iter_mut().zip(&mut held) {
                let set = node.tightest(&class).filter(|_| node.fits(&class));
                if let Some(gpus) = set
                    && let Some(left) = node.take(&class, demand.memory_mib(), gpus)
                {
                    *node = left;
                    list.push(Held {
                        task,
                        class,
                        memory: demand.memory_mib(),
                        gpus,
                    });
                    break;
                }
            }
        }
        let wanted = Demand::whole(2_000, 2_048, 1).unwrap();
        let class = Class::of(&wanted);
        if free
            .iter()
            .any(|node| node.memory >= 2_048 && node.fits(&class))
        {
            continue;
        }
        let mut exists = false;
        for (from, list) in held.iter().enumerate() {
            for victim in list.iter().filter(|v| v.class.total() < u32::from(WHOLE)) {
                let freed = free[from].give(&victim.class, victim.memory, victim.gpus);
                let makes_room = freed.memory >= 2_048 && freed.fits(&class);
                exists |= makes_room
                    && free.iter().enumerate().any(|(to, node)| {
                        let used = node
                            .gpus()
                            .iter()
                            .any(|&g| g >= victim.class.blocks && g < WHOLE);
                        to != from
                            && node.memory >= victim.memory
                            && node.fits(&victim.class)
                            && (victim.class.gpus == 0 || used)
                    });
            }
        }
        let relocation = moves::find(&free, &held, &class, 2_048);
        assert_eq!(relocation.is_some(), exists);
        if let Some(relocation) = relocation {
            found += 1;
            let victim = held[relocation.from][relocation.place];
            assert_eq!(victim.task, relocation.task);
            let to = relocation.to;
            assert!(
                free[to.node]
                    .take(&victim.class, victim.memory, to.gpus)
                    .is_some()
            );
        } else {
            absent += 1;
        }
    }
    assert!(found > 20 && absent > 20, "{found} {absent}");
}

#[test]
fn popularity_forgets() {
    let class = |blocks| Class::of(&Demand::share(1_000, 1_024, blocks).unwrap());
    let mut learned = Popularity::learned();
    assert_eq!(learned.expected(), Some(Vec::new()));
    assert_eq!(learned.plan_every(400), 25);
    for _ in 0..30_000 {
        learned.arrived(&class(10), 1_024);
    }
    for _ in 0..30_000 {
        learned.arrived(&class(20), 2_048);
    }
    let counts: Vec<(u8, u32, u32)> = learned
        .expected()
        .unwrap()
        .iter()
        .map(|e| (e.class.blocks, e.count, e.memory))
        .collect();
    // Halved when the 40,000th had come and when there were 40,000 again.
    assert_eq!(counts, [(10, 7_500, 1_024), (20, 12_500, 2_048)]);
    assert_eq!(learned.plan_every(400), 400);
    let mut known = Popularity::known(Vec::new());
    known.arrived(&class(10), 1_024);
    assert_eq!(
        (known.expected(), known.expected()),
        (Some(Vec::new()), None)
    );
}
