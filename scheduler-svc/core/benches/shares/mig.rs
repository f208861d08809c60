//! MIG: legal traces, acceptance, and the time of a decision.

use std::collections::BTreeSet;

use cnlab_model::{
    id::{GrantId, TeamId},
    mig::{Grid, Layout, Product, Shape},
};
use scheduler_core::mig::{Ask, Book, Boundary, Popularity, Want, Worth};

use super::{
    nanos,
    process::{Dice, MIXES, Process, first_fit, plain_shapes, simulate, weights},
    row,
};

pub(super) fn measure(quick: bool) {
    optimum(quick);
    acceptance(quick);
    legal(quick);
    speed();
}

fn optimum(quick: bool) {
    let loads: &[u32] = if quick {
        &[120]
    } else {
        &[60, 90, 120, 200, 300]
    };
    let (mut worst, mut lowest) = (f64::MAX, f64::MAX);
    for (_, mix) in MIXES {
        for percent in loads {
            let popularity = Popularity::new(weights(Grid::Seven, &mix)).at_load(*percent);
            let worth = Worth::new(Grid::Seven, &popularity);
            let process = Process::new(Grid::Seven, &mix, *percent);
            let best = process.taken(None);
            let ours = process.policy(Grid::Seven, |layout, shape| {
                worth.best(layout, shape).map(|(start, _)| start)
            });
            let low = process.policy(Grid::Seven, |layout, shape| layout.starts(shape).next());
            worst = worst.min(process.taken(Some(&ours)) / best);
            lowest = lowest.min(process.taken(Some(&low)) / best);
        }
    }
    row(
        "mig: accepted slices of one GPU, worst of the exact optimum",
        worst * 100.0,
        "%",
        ">= 99",
        "5 mixes, loads of 60 to 300 %",
    );
    row(
        "mig: the same by the lowest start index",
        lowest * 100.0,
        "%",
        "",
        "for comparison",
    );
}

fn acceptance(quick: bool) {
    let events = if quick { 5_000 } else { 40_000 };
    let mut sums = [0.0; 2];
    for (name, mix) in MIXES {
        let mut gains = [0.0; 2];
        for percent in [85, 100, 130] {
            let popularity = Popularity::new(weights(Grid::Seven, &mix)).at_load(percent);
            let worth = Worth::new(Grid::Seven, &popularity);
            let best = |layouts: &[Layout], shape: Shape| {
                let of = |(gpu, layout): (usize, &Layout)| {
                    let (start, loss) = worth.best(*layout, shape)?;
                    Some((loss, gpu, start))
                };
                let best = layouts.iter().enumerate().filter_map(of).min();
                best.map(|(_, gpu, start)| (gpu, start))
            };
            let size = (50, percent, events);
            let first = simulate(size, &mix, 1, first_fit);
            let ours = simulate(size, &mix, 1, best);
            gains[0] += (ours.started / first.started - 1.0) * 100.0 / 3.0;
            gains[1] += (ours.slices_taken / first.slices_taken - 1.0) * 100.0 / 3.0;
        }
        for (sum, gain) in sums.iter_mut().zip(gains) {
            *sum += gain / 5.0;
        }
        row(
            &format!("mig: accepted requests over first fit, {name}"),
            gains[0],
            "%",
            "",
            "50 GPUs, mean of loads of 85, 100 and 130 %",
        );
        row(
            &format!("mig: accepted slices over first fit, {name}"),
            gains[1],
            "%",
            ">= 10",
            "50 GPUs, mean of loads of 85, 100 and 130 %",
        );
    }
    row(
        "mig: accepted requests over first fit, mean",
        sums[0],
        "%",
        "",
        "5 mixes",
    );
    row(
        "mig: accepted slices over first fit, mean",
        sums[1],
        "%",
        ">= 10",
        "5 mixes",
    );
}

fn grant(number: u64) -> GrantId {
    format!("grt_{number:026}").parse().unwrap()
}

fn team(number: u64) -> TeamId {
    format!("team_{number:026}").parse().unwrap()
}

/// Random lives of books of every product; counts states that break a rule of the hardware.
fn legal(quick: bool) {
    let steps = if quick { 2_000 } else { 50_000 };
    let mut wrong = 0_u32;
    for product in Product::ALL {
        let worth = Worth::new(product.grid(), &Popularity::even());
        let mut dice = Dice::new(7);
        let mut book = Book::new(product);
        let mut there: Vec<u64> = Vec::new();
        for number in 0..steps {
            if dice.below(2) == 0 && !there.is_empty() {
                let index = usize::try_from(dice.below(there.len() as u64)).unwrap();
                book.give(grant(there.swap_remove(index))).unwrap();
            }
            let want = match dice.below(3) {
                0 => {
                    let profiles = product.profiles();
                    let index = usize::try_from(dice.below(profiles.len() as u64)).unwrap();
                    Want::Whole(profiles[index].shape)
                }
                1 => Want::Slice(u8::try_from(1 + dice.below(20)).unwrap()),
                _ => Want::Percent(u8::try_from(1 + dice.below(30)).unwrap()),
            };
            let ask = Ask {
                grant: grant(number),
                team: team(dice.below(3)),
                want,
                boundary: [Boundary::Open, Boundary::Instance][usize::from(dice.below(4) == 0)],
            };
            if let Ok(room) = book.best(&ask, &worth) {
                book.take(&ask, &room).unwrap();
                there.push(number);
            }
            let mut slices = BTreeSet::new();
            let mut compute = 0;
            for instance in book.layout().instances() {
                compute += instance.shape.compute();
                let legal = product
                    .grid()
                    .starts(instance.shape)
                    .contains(&instance.start)
                    && (0..instance.shape.memory()).all(|n| slices.insert(instance.start + n))
                    && book.used(instance.start).count() <= 14 * instance.shape.compute();
                wrong += u32::from(!legal);
            }
            wrong += u32::from(compute > product.grid().compute());
        }
    }
    row(
        "mig: illegal states in random traces of instances and blocks",
        wrong.into(),
        "",
        "<= 0",
        &format!("{steps} steps on each of 8 products"),
    );
}

fn speed() {
    let (worth, prepare) = nanos(|| Worth::new(Grid::Seven, &Popularity::even()));
    row(
        "mig: values of all 723 layouts",
        prepare / 1e6,
        "ms",
        "",
        "once per popularity",
    );
    let shapes = plain_shapes(Grid::Seven);
    let mut dice = Dice::new(3);
    let layouts: Vec<(Layout, Shape)> = (0..20_000)
        .map(|_| {
            let mut layout = Layout::new(Grid::Seven);
            for _ in 0..dice.below(5) {
                let shape = shapes[usize::try_from(dice.below(6)).unwrap()];
                if let Some((start, _)) = worth.best(layout, shape) {
                    layout = layout.with(shape, start).unwrap();
                }
            }
            (layout, shapes[usize::try_from(dice.below(6)).unwrap()])
        })
        .collect();
    let (_, all) = nanos(|| {
        layouts
            .iter()
            .filter_map(|(layout, shape)| worth.best(*layout, *shape))
            .map(|(start, _)| u64::from(start))
            .sum::<u64>()
    });
    row(
        "mig: start index on one GPU",
        all / 20_000.0,
        "ns",
        "",
        "20,000 layouts",
    );
}
