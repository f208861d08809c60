use proptest::prelude::*;

use super::*;
use crate::cluster::{Cluster, Kind, KindSet, NodeIx, Place};

fn kind(number: u8) -> Kind {
    Kind::new(number).unwrap()
}

fn share(cpu: u32, blocks: u8) -> Demand {
    Demand::share(cpu, 1_024, blocks).unwrap()
}

fn whole(cpu: u32, gpus: u8) -> Demand {
    Demand::whole(cpu, 1_024, gpus).unwrap()
}

/// A node of kind 0 with these blocks free on each GPU.
fn node(cpu: u32, free: &[u8]) -> Node {
    let mut cell = Cluster::new();
    let gpus = u8::try_from(free.len()).unwrap();
    let ix = cell
        .add(Node::new(kind(0), cpu, 65_536, gpus).unwrap())
        .unwrap();
    for (gpu, free) in free.iter().enumerate() {
        if *free < 100 {
            let place = Place {
                node: ix,
                gpus: GpuSet::one(gpu),
            };
            cell.take(place, &Demand::share(0, 0, 100 - free).unwrap())
                .unwrap();
        }
    }
    *cell.node(NodeIx(0)).unwrap()
}

#[test]
fn fragments_by_hand() {
    let node = node(8_000, &[100, 30, 60, 0]);
    let any = [
        (Demand::cpu_only(1, 0), 190, "wants no GPU"),
        (share(1_000, 50), 30, "too small for it: the 30"),
        (share(1_000, 30), 0, "the full GPU has nothing to lose"),
        (share(8_001, 1), 190, "too few processors"),
        (whole(1_000, 1), 90, "everything that is not idle"),
        (whole(1_000, 2), 190, "does not fit"),
        (
            share(1_000, 50).on(KindSet::ANY.with(kind(1))),
            190,
            "another kind",
        ),
    ];
    for (task, expected, why) in any {
        assert_eq!(fragments(&node, &task), expected, "{why}");
    }
    let popularity = Popularity::weighted([(share(1_000, 50), 3), (whole(1_000, 1), 2)]);
    assert_eq!(popularity.amount(&node), 3 * 30 + 2 * 90);
    let published = Published::new(&popularity).amount(&node);
    assert!((published - 10.0 * 270.0 / 5.0).abs() < 1e-9, "{published}");
}

#[test]
fn the_typical_types_cover_95_percent_and_ignore_memory() {
    let tasks = [
        (share(1, 10), 50),
        (share(2, 20), 44),
        (share(3, 30), 4),
        (whole(4, 1), 2),
    ];
    let list = tasks
        .iter()
        .flat_map(|(task, count)| std::iter::repeat_n(*task, *count));
    let typical = Popularity::typical(list);
    let weights: Vec<_> = typical
        .types()
        .iter()
        .map(|(task, weight)| (task.cpu_milli(), *weight))
        .collect();
    assert_eq!(weights, [(1, 50), (2, 44), (3, 4)]);
    assert_eq!(typical.total(), 98);
    let memory = [
        Demand::share(1, 5, 10).unwrap(),
        Demand::share(1, 6, 10).unwrap(),
    ];
    assert_eq!(Popularity::typical(memory).types().len(), 1);
}

#[test]
fn large_weights_are_halved_and_needs_are_limited() {
    let halved = Popularity::weighted([
        (share(1, 10), 3 << 40),
        (share(2, 10), 1 << 40),
        (share(3, 10), 1),
    ]);
    let weights: Vec<_> = halved.types().iter().map(|(_, weight)| *weight).collect();
    assert_eq!(weights, [3 << 18, 1 << 18]);
    let many = Popularity::weighted((0..300).map(|cpu| (share(cpu, 10), 1)));
    assert_eq!(many.types().len(), MAX_CPU_NEEDS);
}

/// The integer thresholds against the formula, away from where rounding decides.
#[test]
fn levels_are_the_published_score() {
    for total in [1, 7, 98, 7_740, MAX_WEIGHT] {
        let levels = Levels::new(total);
        for step in -120_000..=120_000_i64 {
            let difference = step * i64::from(total) / 80;
            #[expect(clippy::cast_precision_loss, reason = "the oracle")]
            let exact = {
                let gpus = difference as f64 / f64::from(total) / 100.0;
                100.0 / (1.0 + (-gpus).exp())
            };
            let level = levels.search(difference);
            assert_eq!(levels.level(difference), level, "{difference} of {total}");
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "floor"
            )]
            if difference != 0 && (exact - exact.round()).abs() > 1e-9 {
                assert_eq!(level, exact as u8, "{difference} of {total}");
            }
        }
        assert_eq!(levels.search(0), 50);
        assert_eq!(levels.search(-1), 49);
        for extreme in [i64::MIN / 2, i64::MAX / 2] {
            assert_eq!(levels.level(extreme), levels.search(extreme));
        }
    }
}

/// A choice where the gradient differs from best fit: two 50s leave a GPU full, while a 50 on
/// the GPU with 55 free leaves 5 that nobody wants.
#[test]
fn blocks_go_where_they_lose_least() {
    let popularity = Popularity::weighted([(share(1_000, 50), 10)]);
    let node = node(64_000, &[55, 100]);
    for rule in [
        &Definition::new(popularity.clone()) as &dyn Rule,
        &Gradient::new(&popularity),
        &Published::new(&popularity),
    ] {
        assert_eq!(rule.gpus(&node, &share(1_000, 50)), Some(GpuSet::one(1)));
        assert_eq!(rule.gpus(&node, &share(1_000, 55)), Some(GpuSet::one(0)));
        assert_eq!(rule.gpus(&node, &share(1_000, 99)), Some(GpuSet::one(1)));
        assert_eq!(rule.gpus(&node, &whole(1_000, 2)), None);
        assert_eq!(rule.rank(&node, &whole(1_000, 2)), 0);
    }
}

fn demands() -> impl Strategy<Value = Demand> {
    let kinds = prop::sample::select(vec![0_u8, 0, 0, 1, 2, 3]);
    (0_u32..12, 0_u32..3, 0_u8..=4, 1_u8..=10, kinds).prop_map(
        |(cpu, memory, gpus, tenths, kinds)| {
            let (cpu, memory) = (cpu * 1_000, memory * 1_024);
            let demand = match gpus {
                0 => Demand::cpu_only(cpu, memory),
                1 | 2 => Demand::share(cpu, memory, tenths * 10).unwrap(),
                more => Demand::whole(cpu, memory, more - 2).unwrap(),
            };
            (0..2)
                .filter(|kind| kinds >> kind & 1 == 1)
                .map(kind)
                .fold(demand, |demand, kind| demand.on(demand.kinds().with(kind)))
        },
    )
}

prop_compose! {
    fn nodes()(
        total in (0_u32..16, 0_u32..4, 0_u8..2),
        free in prop::collection::vec(prop_oneof![Just(0_u8), Just(100), 0..=100_u8], 0..=8),
        lost in prop::option::of(0_usize..8),
        eligible in prop::bool::weighted(0.95),
    ) -> Node {
        let (cpu, memory, kind_number) = total;
        let mut cell = Cluster::new();
        let gpus = u8::try_from(free.len()).unwrap();
        let node = Node::new(kind(kind_number), cpu * 1_000, memory * 1_024, gpus).unwrap();
        let ix = cell.add(node).unwrap();
        for (gpu, free) in free.iter().enumerate().filter(|(_, free)| **free < 100) {
            let place = Place { node: ix, gpus: GpuSet::one(gpu) };
            cell.take(place, &Demand::share(0, 0, 100 - free).unwrap()).unwrap();
        }
        if let Some(lost) = lost {
            let mut blocks = [100; crate::cluster::MAX_GPUS];
            blocks[lost] = 60;
            blocks[free.len()..].fill(0);
            cell.set_total(ix, cpu * 1_000, memory * 1_024, blocks).unwrap();
        }
        cell.set_eligible(ix, eligible).unwrap();
        *cell.node(ix).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The tables against the definition, one by one and for many demands at once.
    #[test]
    fn the_tables_are_the_definition(
        types in prop::collection::vec((demands(), 0_u64..50), 0..12),
        nodes in prop::collection::vec(nodes(), 1..6),
        demands in prop::collection::vec(demands(), 1..12),
    ) {
        let popularity = Popularity::weighted(types);
        let definition = Definition::new(popularity.clone());
        let gradient = Gradient::new(&popularity);
        for node in &nodes {
            let mut ranks = vec![Rank::MAX; demands.len()];
            gradient.ranks(node, &demands, &mut ranks);
            for (demand, rank) in demands.iter().zip(ranks) {
                prop_assert_eq!(rank, definition.rank(node, demand));
                prop_assert_eq!(rank, gradient.rank(node, demand));
                prop_assert_eq!(rank > 0, node.fits(demand));
                prop_assert_eq!(gradient.gpus(node, demand), definition.gpus(node, demand));
            }
        }
    }

    /// The published floating point differs from the integers at most where a difference lies
    /// on a step, which is only at zero.
    #[test]
    fn the_published_score_is_the_same_up_to_rounding(
        types in prop::collection::vec((demands(), 1_u64..50), 1..12),
        node in nodes(),
        demand in demands(),
    ) {
        let popularity = Popularity::weighted(types);
        let exact = Definition::new(popularity.clone()).rank(&node, &demand);
        let published = Published::new(&popularity).rank(&node, &demand);
        prop_assert!(exact == published || (exact, published) == (51, 50), "{} {}", exact, published);
    }
}
