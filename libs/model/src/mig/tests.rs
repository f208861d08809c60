use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// The oracle: every combination of places, judged slice by slice, from a table of its own.
/// Nothing of it uses the code under test.
mod oracle {
    use std::collections::BTreeSet;

    /// Name, compute slices, memory slices, start indexes.
    pub(super) type Row = (&'static str, usize, usize, &'static [usize]);

    pub(super) const CLASSIC: &[Row] = &[
        ("1g", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        ("2g", 2, 2, &[0, 2, 4]),
        ("3g", 3, 4, &[0, 4]),
        ("4g", 4, 4, &[0]),
        ("7g", 7, 8, &[0]),
    ];
    pub(super) const WITH_DOUBLE: &[Row] = &[
        ("1g", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        ("1g2", 1, 2, &[0, 2, 4, 6]),
        ("2g", 2, 2, &[0, 2, 4]),
        ("3g", 3, 4, &[0, 4]),
        ("4g", 4, 4, &[0]),
        ("7g", 7, 8, &[0]),
    ];
    pub(super) const A30: &[Row] = &[
        ("1g", 1, 1, &[0, 1, 2, 3]),
        ("2g", 2, 2, &[0, 2]),
        ("4g", 4, 4, &[0]),
    ];

    pub(super) type State = BTreeSet<(&'static str, usize)>;

    pub(super) fn legal(rows: &[Row], compute: usize, state: &State) -> bool {
        let mut slices = [false; 8];
        let mut used = 0;
        for (name, start) in state {
            let row = rows.iter().find(|row| row.0 == *name).unwrap();
            used += row.1;
            for slice in &mut slices[*start..*start + row.2] {
                if *slice {
                    return false;
                }
                *slice = true;
            }
        }
        used <= compute
    }

    /// Every legal state, by trying to add every place to every state, in every order.
    pub(super) fn reachable(rows: &[Row], compute: usize) -> BTreeSet<State> {
        let mut seen = BTreeSet::from([State::new()]);
        let mut fresh: Vec<State> = vec![State::new()];
        while let Some(state) = fresh.pop() {
            for next in successors(rows, compute, &state) {
                if seen.insert(next.clone()) {
                    fresh.push(next);
                }
            }
        }
        seen
    }

    pub(super) fn successors(rows: &[Row], compute: usize, state: &State) -> Vec<State> {
        rows.iter()
            .flat_map(|row| row.3.iter().map(|start| (row.0, *start)))
            .filter(|place| !state.contains(place))
            .map(|place| {
                let mut next = state.clone();
                next.insert(place);
                next
            })
            .filter(|next| legal(rows, compute, next))
            .collect()
    }
}

fn name(shape: Shape) -> &'static str {
    match shape {
        Shape::One => "1g",
        Shape::OneMedia => "1g+me",
        Shape::OneDouble => "1g2",
        Shape::Two => "2g",
        Shape::TwoMedia => "2g+me",
        Shape::Three => "3g",
        Shape::Four => "4g",
        Shape::Seven => "7g",
    }
}

fn named(layout: Layout) -> oracle::State {
    layout
        .instances()
        .map(|instance| (name(instance.shape), usize::from(instance.start)))
        .collect()
}

/// Every layout of these shapes that the code under test reaches.
fn layouts(grid: Grid, shapes: &[Shape]) -> BTreeSet<Layout> {
    let mut seen = BTreeSet::from([Layout::new(grid)]);
    let mut fresh: Vec<Layout> = seen.iter().copied().collect();
    while let Some(layout) = fresh.pop() {
        for shape in shapes {
            for start in layout.starts(*shape) {
                let next = layout.with(*shape, start).unwrap();
                if seen.insert(next) {
                    fresh.push(next);
                }
            }
        }
    }
    seen
}

const CLASSIC: &[Shape] = &[
    Shape::One,
    Shape::Two,
    Shape::Three,
    Shape::Four,
    Shape::Seven,
];
const WITH_DOUBLE: &[Shape] = &[
    Shape::One,
    Shape::OneDouble,
    Shape::Two,
    Shape::Three,
    Shape::Four,
    Shape::Seven,
];

#[test]
fn layouts_are_those_of_the_exhaustive_enumeration() {
    for (grid, shapes, rows, compute, states, maximal, multisets) in [
        (Grid::Seven, CLASSIC, oracle::CLASSIC, 7, 298, 19, 14),
        (
            Grid::Seven,
            WITH_DOUBLE,
            oracle::WITH_DOUBLE,
            7,
            723,
            78,
            38,
        ),
        (Grid::Four, CLASSIC, oracle::A30, 4, 26, 5, 4),
    ] {
        let wanted = oracle::reachable(rows, compute);
        assert_eq!(wanted.len(), states);
        let full: Vec<&oracle::State> = wanted
            .iter()
            .filter(|state| oracle::successors(rows, compute, state).is_empty())
            .collect();
        assert_eq!(full.len(), maximal);
        let kinds: BTreeSet<Vec<&str>> = full
            .iter()
            .map(|state| {
                let mut names: Vec<&str> = state.iter().map(|place| place.0).collect();
                names.sort_unstable();
                names
            })
            .collect();
        assert_eq!(kinds.len(), multisets);

        let got = layouts(grid, shapes);
        assert_eq!(
            got.iter().map(|l| named(*l)).collect::<BTreeSet<_>>(),
            wanted
        );
        let got_full: BTreeSet<oracle::State> = got
            .iter()
            .filter(|layout| shapes.iter().all(|s| layout.starts(*s).next().is_none()))
            .map(|layout| named(*layout))
            .collect();
        assert_eq!(got_full, full.into_iter().cloned().collect());
    }
}

#[test]
fn limits_of_the_drivers_list_follow_from_the_slices() {
    for product in Product::ALL {
        let shapes: Vec<Shape> = product.profiles().iter().map(|p| p.shape).collect();
        let mut most: BTreeMap<Shape, u8> = BTreeMap::new();
        for layout in layouts(product.grid(), &shapes) {
            for shape in &shapes {
                let count = layout.instances().filter(|i| i.shape == *shape).count();
                let entry = most.entry(*shape).or_default();
                *entry = (*entry).max(u8::try_from(count).unwrap());
            }
        }
        for profile in product.profiles() {
            assert_eq!(
                most[&profile.shape], profile.most,
                "{product} {}",
                profile.name
            );
        }
    }
}

#[test]
fn profiles_grow_in_both_figures() {
    for product in Product::ALL {
        for pair in product.profiles().windows(2) {
            let (small, large) = (pair[0], pair[1]);
            assert!(small.shape < large.shape);
            assert!(small.shape.compute() <= large.shape.compute());
            assert!(small.shape.memory() <= large.shape.memory());
            if let (Some(less), Some(more)) = (small.multiprocessors, large.multiprocessors) {
                assert!(less <= more, "{product} {}", large.name);
            }
            if let (Some(less), Some(more)) = (small.memory_mib, large.memory_mib) {
                assert!(less <= more, "{product} {}", large.name);
            }
        }
        for profile in product.profiles() {
            assert!(!product.grid().starts(profile.shape).is_empty());
            assert_eq!(product.named(&profile.name.to_uppercase()), Some(profile));
            assert!(
                profile
                    .name
                    .starts_with(&format!("{}g.", profile.shape.compute()))
            );
            assert_eq!(profile.name.ends_with("+me"), profile.shape.media());
            // The number in the name is the memory in GB, generously rounded.
            let gb: u32 = profile.name[3..]
                .trim_end_matches("+me")
                .trim_end_matches("gb")
                .parse()
                .unwrap();
            if let Some(mib) = profile.memory_mib {
                assert!(
                    mib <= gb * 1024 && mib * 5 / 4 >= gb * 954,
                    "{}",
                    profile.name
                );
            }
        }
        assert_eq!(product.to_string().parse(), Ok(product));
    }
    assert!("H100".parse::<Product>().is_err());
}

#[test]
fn the_profiles_of_an_h100_with_80_gb() {
    // G-05, beside the one with the media engines.
    let names: Vec<&str> = Product::H100With80
        .profiles()
        .iter()
        .filter(|profile| !profile.shape.media())
        .map(|profile| profile.name)
        .collect();
    assert_eq!(
        names,
        [
            "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"
        ]
    );
    let one = Product::H100With80.profile(Shape::One).unwrap();
    assert_eq!((one.memory_mib, one.shape.blocks()), (Some(9_984), 14));
    assert_eq!(Shape::Seven.blocks(), 98);
    assert_eq!(
        Product::B200.profile(Shape::Seven).unwrap().memory_mib,
        None
    );
}

#[test]
fn products_are_told_by_name_and_memory() {
    for (name, mib, product) in [
        ("NVIDIA A30", 24_576, Some(Product::A30)),
        ("NVIDIA A100-SXM4-40GB", 40_960, Some(Product::A100With40)),
        ("NVIDIA A100 80GB PCIe", 81_920, Some(Product::A100With80)),
        ("NVIDIA H100 80GB HBM3", 81_559, Some(Product::H100With80)),
        ("NVIDIA H100 NVL", 95_830, Some(Product::H100With94)),
        ("NVIDIA GH200 480GB", 97_871, Some(Product::H100With96)),
        ("NVIDIA H200", 143_771, Some(Product::H200)),
        ("NVIDIA B200", 183_359, Some(Product::B200)),
        // With MIG, but cuts that are not written down.
        ("NVIDIA GH200 144G HBM3e", 147_000, None),
        ("NVIDIA A100-SXM-64GB", 65_536, None),
        // Without MIG.
        ("NVIDIA L40S", 46_068, None),
        ("NVIDIA A10", 24_576, None),
    ] {
        assert_eq!(Product::of(name, mib << 20), product, "{name}");
    }
}

#[test]
fn where_mig_is_not_offered_the_reason_is_told() {
    let h100 = |mode| available("NVIDIA H100 80GB HBM3", 81_559 << 20, mode);
    assert_eq!(h100(Mode::On), Ok(Product::H100With80));
    for (got, text) in [
        (
            h100(Mode::Off),
            "MIG mode is off on this H100-80GB; an administrator can switch it on while the GPU is idle",
        ),
        (
            h100(Mode::Pending),
            "MIG mode of this H100-80GB begins with the next reset of the GPU",
        ),
        (
            available("NVIDIA L40S", 46_068 << 20, Mode::Absent),
            "NVIDIA L40S has no MIG",
        ),
        (
            available("NVIDIA B300", 270_000 << 20, Mode::On),
            "the MIG profiles of NVIDIA B300 are not known",
        ),
    ] {
        assert_eq!(got.unwrap_err().to_string(), text);
    }
}

#[test]
fn numbered_blocks_of_slices_share_the_hundred() {
    for grid in [Grid::Four, Grid::Seven] {
        let mut all = Blocks::EMPTY;
        for slice in 0..grid.memory() {
            let part = grid.numbered(slice, 1);
            assert!(!part.overlaps(all));
            all = all.union(part);
        }
        assert_eq!(all, Blocks::ALL);
        assert_eq!(grid.numbered(0, grid.memory()), Blocks::ALL);
    }
    assert_eq!(Grid::Seven.numbered(0, 1).to_string(), "0-11");
    assert_eq!(Grid::Seven.numbered(1, 1).to_string(), "12-24");
    assert_eq!(Grid::Seven.numbered(4, 4).to_string(), "50-99");
    assert_eq!(Grid::Seven.numbered(9, 4), Blocks::EMPTY);
}

proptest! {
    #[test]
    fn a_random_walk_stays_legal_and_says_why_not(
        four: bool,
        steps in prop::collection::vec((0_usize..8, 0_u8..9, 0_u8..3), 1..60),
    ) {
        let (grid, rows, compute) = if four {
            (Grid::Four, oracle::A30, 4)
        } else {
            (Grid::Seven, oracle::WITH_DOUBLE, 7)
        };
        let mut layout = Layout::new(grid);
        for (shape, start, action) in steps {
            let shape = Shape::ALL[shape];
            if action == 0 {
                let before = layout.instances().count();
                let there = layout.at(start).is_some();
                layout = layout.without(start);
                prop_assert_eq!(layout.instances().count() + usize::from(there), before);
            }
            let media = layout.instances().any(|i| i.shape.media());
            let mut wanted = named(layout.plain());
            let place = (name(shape.plain()), usize::from(start));
            let exists = rows.iter().any(|row| row.0 == place.0 && row.3.contains(&place.1))
                && (four || shape != Shape::TwoMedia);
            let twice = !wanted.insert(place);
            let may = exists && !twice && oracle::legal(rows, compute, &wanted)
                && !(media && shape.media());
            match layout.with(shape, start) {
                Ok(next) => {
                    prop_assert!(may);
                    prop_assert_eq!(named(next.plain()), wanted);
                    layout = next;
                }
                Err(why) => {
                    prop_assert!(!may, "{layout:?} {shape:?} {start}: {why}");
                    prop_assert_eq!(why == Refused::NoSuchPlace, !exists);
                }
            }
            let slices: u32 = layout.instances().map(|i| u32::from(i.shape.memory())).sum();
            prop_assert_eq!(layout.memory_taken().count_ones(), slices);
        }
    }
}
