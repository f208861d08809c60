//! What the choice of start indexes is measured against, in floating point.
//!
//! Uses the legality of layouts and nothing else of the code under test; the bench measures
//! with the same code.

use std::collections::BTreeMap;

use cnlab_model::mig::{Grid, Layout, Shape};

/// A small generator with a printed seed; good enough to draw traces.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// In [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub(super) fn plain_shapes(grid: Grid) -> Vec<Shape> {
    Shape::ALL
        .into_iter()
        .filter(|shape| !shape.media() && !grid.starts(*shape).is_empty())
        .collect()
}

/// The exact process of one GPU in floating point: requests for each shape at their rates,
/// each taken in where any start index is legal, each instance leaving at rate one.
pub(super) struct Process {
    layouts: Vec<Layout>,
    /// Per layout: per shape, what the legal start indexes lead to.
    up: Vec<Vec<Vec<usize>>>,
    down: Vec<Vec<usize>>,
    rates: Vec<f64>,
    /// The memory slices of each shape.
    counts: Vec<f64>,
}

impl Process {
    pub(super) fn new(grid: Grid, weights: &[u32], percent: u32) -> Self {
        let weights: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let shapes = plain_shapes(grid);
        let mut index: BTreeMap<Layout, usize> = BTreeMap::new();
        let mut layouts = vec![Layout::new(grid)];
        index.insert(layouts[0], 0);
        let mut next = 0;
        while next < layouts.len() {
            let layout = layouts[next];
            next += 1;
            for shape in &shapes {
                for start in layout.starts(*shape) {
                    let fuller = layout.with(*shape, start).unwrap();
                    index.entry(fuller).or_insert_with(|| {
                        layouts.push(fuller);
                        layouts.len() - 1
                    });
                }
            }
        }
        let up = layouts
            .iter()
            .map(|layout| {
                let of = |shape: &Shape| {
                    layout
                        .starts(*shape)
                        .map(|start| index[&layout.with(*shape, start).unwrap()])
                        .collect()
                };
                shapes.iter().map(of).collect()
            })
            .collect();
        let down = layouts
            .iter()
            .map(|layout| {
                layout
                    .instances()
                    .map(|instance| index[&layout.without(instance.start)])
                    .collect()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let sizes: Vec<f64> = shapes.iter().map(|s| f64::from(s.memory())).collect();
        let mean: f64 = sizes.iter().zip(&weights).map(|(s, w)| s * w / total).sum();
        let all = f64::from(percent) / 100.0 * f64::from(grid.memory()) / mean;
        Self {
            layouts,
            up,
            down,
            rates: weights.iter().map(|weight| all * weight / total).collect(),
            counts: sizes,
        }
    }

    /// How much is taken in per time under a policy that picks among the ways up; `None` takes
    /// the best there is.
    pub(super) fn taken(&self, policy: Option<&Vec<Vec<usize>>>) -> f64 {
        let all: f64 = self.rates.iter().sum::<f64>() + 7.0;
        let mut value = vec![0.0_f64; self.layouts.len()];
        loop {
            let next: Vec<f64> = (0..value.len())
                .map(|state| {
                    let mut sum = 0.0;
                    let mut left = all;
                    for (shape, ways) in self.up[state].iter().enumerate() {
                        if ways.is_empty() {
                            continue;
                        }
                        let to = match policy {
                            Some(policy) => value[policy[state][shape]],
                            None => ways.iter().map(|to| value[*to]).fold(f64::MIN, f64::max),
                        };
                        sum += self.rates[shape] * (self.counts[shape] + to);
                        left -= self.rates[shape];
                    }
                    for to in &self.down[state] {
                        sum += value[*to];
                        left -= 1.0;
                    }
                    (sum + left * value[state]) / all
                })
                .collect();
            let steps = || next.iter().zip(&value).map(|(new, old)| new - old);
            let (low, high) = steps().fold((f64::MAX, f64::MIN), |(low, high), step| {
                (low.min(step), high.max(step))
            });
            value = next;
            if high - low < 1e-5 {
                return (high + low) / 2.0 * all;
            }
        }
    }

    /// The policy that takes the start index of a rule.
    pub(super) fn policy(
        &self,
        grid: Grid,
        rule: impl Fn(Layout, Shape) -> Option<u8>,
    ) -> Vec<Vec<usize>> {
        let shapes = plain_shapes(grid);
        self.layouts
            .iter()
            .map(|layout| {
                let to = |shape: &Shape| {
                    rule(*layout, *shape).map_or(0, |start| {
                        let fuller = layout.with(*shape, start).unwrap();
                        self.layouts
                            .iter()
                            .position(|other| *other == fuller)
                            .unwrap()
                    })
                };
                shapes.iter().map(to).collect()
            })
            .collect()
    }
}

/// Mixes of shapes, in the order of [`plain_shapes`]: the last three only where they exist.
pub(super) const MIXES: [(&str, [u32; 6]); 5] = [
    ("small", [8, 2, 4, 2, 1, 1]),
    ("1g and 4g", [4, 0, 0, 0, 1, 0]),
    ("even", [1, 1, 1, 1, 1, 1]),
    ("large", [1, 1, 1, 3, 3, 3]),
    ("1g and 3g", [3, 0, 0, 1, 0, 0]),
];

/// The weights of a mix in the order of [`Shape::ALL`].
pub(super) fn weights(grid: Grid, mix: &[u32]) -> [u32; Shape::ALL.len()] {
    let shapes = plain_shapes(grid);
    Shape::ALL.map(|shape| {
        let index = shapes.iter().position(|other| *other == shape);
        index.map_or(0, |index| mix[index])
    })
}

/// What a simulation was asked for and what it took in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) requests: f64,
    pub(super) started: f64,
    pub(super) slices_asked: f64,
    pub(super) slices_taken: f64,
}

/// Requests for a mix on many GPUs, which are asked for `percent` of their memory slices,
/// placed by a rule. An instance stays for an exponential time of mean one.
pub(super) fn simulate(
    (gpus, percent, events): (u16, u32, u32),
    mix: &[u32],
    seed: u64,
    mut rule: impl FnMut(&[Layout], Shape) -> Option<(usize, u8)>,
) -> Tally {
    let grid = Grid::Seven;
    let shapes = plain_shapes(grid);
    let weights: Vec<f64> = mix.iter().map(|weight| f64::from(*weight)).collect();
    let total: f64 = weights.iter().sum();
    let size = |shape: Shape| f64::from(shape.memory());
    let mean: f64 = shapes
        .iter()
        .zip(&weights)
        .map(|(s, w)| size(*s) * w / total)
        .sum();
    let rate = f64::from(gpus) * f64::from(grid.memory()) * f64::from(percent) / 100.0 / mean;
    let mut dice = Dice::new(seed);
    let mut layouts = vec![Layout::new(grid); gpus.into()];
    let mut leaving: BTreeMap<u64, (usize, u8)> = BTreeMap::new();
    let mut now = 0.0;
    let mut tally = Tally::default();
    for event in 0..events {
        now += -(1.0 - dice.unit()).ln() / rate;
        let mut draw = dice.unit() * total;
        let mut pick = 0;
        while pick + 1 < shapes.len() && draw >= weights[pick] {
            draw -= weights[pick];
            pick += 1;
        }
        let shape = shapes[pick];
        let end = now - (1.0 - dice.unit()).ln();
        while let Some(first) = leaving.first_entry().filter(|e| *e.key() <= tick(now)) {
            let (gpu, start) = first.remove();
            layouts[gpu] = layouts[gpu].without(start);
        }
        // The first events only fill the GPUs.
        let counts = if event > events / 4 { 1.0 } else { 0.0 };
        tally.requests += counts;
        tally.slices_asked += counts * size(shape);
        if let Some((gpu, start)) = rule(&layouts, shape) {
            layouts[gpu] = layouts[gpu].with(shape, start).unwrap();
            let mut key = tick(end);
            while leaving.contains_key(&key) {
                key += 1;
            }
            leaving.insert(key, (gpu, start));
            tally.started += counts;
            tally.slices_taken += counts * size(shape);
        }
    }
    tally
}

/// The baseline: the first GPU with room, and there the lowest start index.
pub(super) fn first_fit(layouts: &[Layout], shape: Shape) -> Option<(usize, u8)> {
    layouts
        .iter()
        .enumerate()
        .find_map(|(gpu, layout)| Some((gpu, layout.starts(shape).next()?)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times stay small and positive"
)]
fn tick(time: f64) -> u64 {
    (time * 1e9) as u64
}
