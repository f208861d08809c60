//! The values against exact solutions of the process, and the choice against first fit.

use cnlab_model::mig::{Grid, Layout, Shape};

use super::{
    super::{Popularity, Worth, space::Space},
    process::{MIXES, Process, first_fit, plain_shapes, simulate, weights},
    rounds,
};

#[test]
fn spaces_have_as_many_states_as_the_enumeration() {
    assert_eq!(Space::new(Grid::Seven).len(), 723);
    assert_eq!(Space::new(Grid::Four).len(), 26);
}

#[test]
fn start_indexes_reach_99_percent_of_the_optimum_of_one_gpu() {
    // What counts are memory slices: counting requests instead, an optimum under overload
    // takes the start indexes of the large ones away on purpose.
    let (few, loads) = if rounds(1) > 1 {
        (MIXES.len(), [60, 120, 300].as_slice())
    } else {
        (2, [120].as_slice())
    };
    let mut worst = f64::MAX;
    for (grid, mixes) in [
        (Grid::Seven, &MIXES[..few]),
        (
            Grid::Four,
            &[("even", [1; 6]), ("small", [8, 4, 1, 0, 0, 0])],
        ),
    ] {
        for (name, mix) in mixes {
            let mix = &mix[..plain_shapes(grid).len()];
            for percent in loads.iter().copied() {
                let worth = Worth::new(grid, &Popularity::new(weights(grid, mix)).at_load(percent));
                let process = Process::new(grid, mix, percent);
                let policy = process.policy(grid, |layout, shape| {
                    worth.best(layout, shape).map(|(start, _)| start)
                });
                let lowest = process.policy(grid, |layout, shape| layout.starts(shape).next());
                let best = process.taken(None);
                let got = process.taken(Some(&policy)) / best;
                let naive = process.taken(Some(&lowest)) / best;
                println!("{grid:?} {name} at {percent} %: {got:.4}, lowest start {naive:.4}");
                assert!(
                    got <= 1.0 + 1e-4,
                    "better than the best: a fault of the oracle"
                );
                assert!(got >= 0.99, "{grid:?} {name} at {percent} %: {got}");
                worst = worst.min(got);
            }
        }
    }
    println!("worst: {worst:.4}");
}

#[test]
fn the_choice_takes_the_least_loss_and_the_lowest_of_equals() {
    let worth = Worth::new(Grid::Seven, &Popularity::even());
    let empty = Layout::new(Grid::Seven);
    // A 1g goes where nothing else can begin; 4g needs slice 0 free.
    assert_eq!(
        worth.best(empty, Shape::One).map(|(start, _)| start),
        Some(6)
    );
    let three = worth.best(empty, Shape::Three).map(|(start, _)| start);
    assert_eq!(three, Some(4));
    let full = empty.with(Shape::Seven, 0).unwrap();
    assert_eq!(worth.best(full, Shape::One), None);
    // Media engines are at most once there.
    let media = empty.with(Shape::OneMedia, 6).unwrap();
    assert_eq!(worth.best(media, Shape::OneMedia), None);
    assert!(worth.best(media, Shape::One).is_some());
    // Of another grid there is nothing to say.
    assert_eq!(worth.best(Layout::new(Grid::Four), Shape::Two), None);
    assert_eq!(worth.grid(), Grid::Seven);
}

#[test]
fn values_are_the_same_every_time_and_for_proportional_weights() {
    let once = Worth::new(Grid::Seven, &Popularity::even());
    assert_eq!(once, Worth::new(Grid::Seven, &Popularity::even()));
    let none = Popularity::new([0; 8]);
    let worth = Worth::new(Grid::Seven, &none);
    assert!(worth.best(Layout::new(Grid::Seven), Shape::Two).is_some());
    let huge = Popularity::new([u32::MAX; 8]).at_load(0);
    assert!(
        Worth::new(Grid::Seven, &huge)
            .best(Layout::new(Grid::Seven), Shape::Two)
            .is_some()
    );
}

#[test]
fn many_gpus_take_in_more_than_by_first_fit() {
    let few = if rounds(1) > 1 { MIXES.len() } else { 3 };
    for (name, mix) in &MIXES[..few] {
        let worth = Worth::new(Grid::Seven, &Popularity::new(weights(Grid::Seven, mix)));
        let (mut first, mut ours) = (0.0, 0.0);
        for seed in 0..rounds(1) {
            let size = (12, 100, 3_000);
            first += simulate(size, mix, seed, first_fit).slices_taken;
            ours += simulate(size, mix, seed, |layouts, shape| {
                let of = |(gpu, layout): (usize, &Layout)| {
                    let (start, loss) = worth.best(*layout, shape)?;
                    Some((loss, gpu, start))
                };
                let best = layouts.iter().enumerate().filter_map(of).min();
                best.map(|(_, gpu, start)| (gpu, start))
            })
            .slices_taken;
        }
        println!("{name}: {:+.1} %", (ours / first - 1.0) * 100.0);
        assert!(ours > first, "{name}: {ours} against {first}");
    }
}
