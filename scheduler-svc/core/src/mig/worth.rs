//! What a layout is worth: how much of the future it can still take in.
//!
//! Requests for each shape arrive at their rates and may be taken in, instances leave after a
//! while, and each memory slice put to use counts. On one GPU that is a small Markov decision
//! process over the layouts; its relative values come from value iteration, in integers. The
//! start index that loses the least is the one to take.
//!
//! Among several GPUs each decision touches one, so the GPU that loses the least is a good
//! choice, with one addition: the process of a single GPU does not know that another one could
//! be filled instead. A bonus for full GPUs (the square of the slices in use) makes the choice
//! keep empty GPUs empty, which is what the largest shapes wait for.

use cnlab_model::mig::{Grid, Layout, Shape};

use super::space::{Space, State, Step};

/// What is usually asked for: the weight of each shape in the order of [`Shape::ALL`].
///
/// Learned from the requests of a cell; only the proportions matter. Weights above
/// [`Popularity::MOST`] count as that many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Popularity {
    weights: [u32; Shape::ALL.len()],
    load_percent: u32,
}

impl Popularity {
    /// The largest weight.
    pub const MOST: u32 = 1 << 16;

    /// These weights, at a load at which start indexes matter.
    #[must_use]
    pub const fn new(weights: [u32; Shape::ALL.len()]) -> Self {
        Self {
            weights,
            load_percent: 100,
        }
    }

    /// Every shape as often as every other.
    #[must_use]
    pub const fn even() -> Self {
        Self::new([1; Shape::ALL.len()])
    }

    /// The same for another load: how much of the GPU's memory slices the requests would take
    /// if all were taken in, in percent. Values from 10 to 1000 are used.
    #[must_use]
    pub const fn at_load(self, percent: u32) -> Self {
        Self {
            load_percent: percent,
            ..self
        }
    }

    /// The weight of a shape on a grid, that of its variant with media engines included.
    fn weight(&self, grid: Grid, shape: Shape) -> u64 {
        Shape::ALL
            .iter()
            .zip(self.weights)
            .filter(|(other, _)| other.plain() == shape && !grid.starts(**other).is_empty())
            .map(|(_, weight)| u64::from(weight.min(Self::MOST)))
            .sum()
    }
}

/// The value of every layout of one grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worth {
    space: Space,
    value: Vec<i64>,
}

/// What one memory slice put to use is worth. Values are relative, in parts of this.
const UNIT: i64 = 1 << 30;
/// Probabilities are in parts of two to this power.
const PARTS: u32 = 20;
/// The values stand when no two change by amounts that differ by more than this.
const SETTLED: i64 = UNIT >> 16;
/// Rounds until the values stand at the latest; a few hundred are usual.
const ROUNDS: usize = 5_000;

/// The chances of one step of the process, in parts.
struct Chances {
    /// That a request for each shape comes, in the order of [`Shape::ALL`].
    comes: [i64; Shape::ALL.len()],
    /// That a certain one of the instances leaves.
    leaves: i64,
}

impl Chances {
    fn of(popularity: &Popularity, grid: Grid) -> Self {
        let weights = Shape::ALL.map(|shape| popularity.weight(grid, shape));
        let demand: u64 = Shape::ALL
            .iter()
            .zip(weights)
            .map(|(shape, weight)| weight.saturating_mul(shape.memory().into()))
            .fold(0, u64::saturating_add);
        let load = u64::from(popularity.load_percent.clamp(10, 1_000));
        // A request for a shape comes weight * load * slices / (100 * demand) times while an
        // instance stays on average; times the denominator these are integers below 2^40.
        let rate = |weight: u64| {
            weight
                .saturating_mul(load)
                .saturating_mul(grid.memory().into())
        };
        let stay = demand.saturating_mul(100).max(1);
        let all = weights.into_iter().map(rate).fold(
            stay.saturating_mul(grid.compute().into()),
            u64::saturating_add,
        );
        let parts = |rate: u64| {
            (u128::from(rate) << PARTS)
                .checked_div(u128::from(all))
                .and_then(|parts| i64::try_from(parts).ok())
                .unwrap_or(0)
        };
        Self {
            comes: weights.map(|weight| parts(rate(weight))),
            leaves: parts(stay),
        }
    }

    /// The value of a state one step earlier, from the values one step later.
    fn earlier(&self, value: &[i64], own: i64, up: &[Step], down: &[State]) -> i64 {
        let of = |state: State| value.get(state.get()).copied().unwrap_or(own);
        // Values stay below 2^7 units and chances below 2^20 parts, so products below 2^57.
        let gain = |to: i64, chance: i64| to.saturating_sub(own).saturating_mul(chance);
        let mut sum: i64 = 0;
        for (shape, chance) in Shape::ALL.into_iter().zip(self.comes) {
            let best = up
                .iter()
                .filter(|step| step.shape == shape)
                .map(|step| of(step.to))
                .max();
            if let Some(best) = best {
                let used = UNIT.saturating_mul(shape.memory().into());
                sum = sum.saturating_add(gain(best.saturating_add(used), chance).max(0));
            }
        }
        for state in down {
            sum = sum.saturating_add(gain(of(*state), self.leaves));
        }
        own.saturating_add(sum >> PARTS)
    }
}

impl Worth {
    /// Computes the values of all layouts of a grid: some milliseconds.
    #[must_use]
    pub fn new(grid: Grid, popularity: &Popularity) -> Self {
        let space = Space::new(grid);
        let chances = Chances::of(popularity, grid);
        let mut value = vec![0; space.len()];
        for _ in 0..ROUNDS {
            let next: Vec<i64> = space
                .rows()
                .zip(&value)
                .map(|((up, down), own)| chances.earlier(&value, *own, up, down))
                .collect();
            let changes = || {
                next.iter()
                    .zip(&value)
                    .map(|(new, old)| new.saturating_sub(*old))
            };
            let spread = changes()
                .max()
                .unwrap_or(0)
                .saturating_sub(changes().min().unwrap_or(0));
            let empty = next.first().copied().unwrap_or(0);
            value = next
                .into_iter()
                .map(|new| new.saturating_sub(empty))
                .collect();
            if spread <= SETTLED {
                break;
            }
        }
        for (value, layout) in value.iter_mut().zip(space.layouts()) {
            *value = value.saturating_add(bonus(layout));
        }
        Self { space, value }
    }

    /// Which grid it is of.
    #[must_use]
    pub const fn grid(&self) -> Grid {
        self.space.grid()
    }

    /// The start index for an instance of this shape that loses the least value, the lowest of
    /// equals, with what it loses. Losses of GPUs of one grid can be compared.
    #[must_use]
    pub fn best(&self, layout: Layout, shape: Shape) -> Option<(u8, i64)> {
        let own = self.of(self.space.state(layout)?)?;
        // Without media engines a start index is found in the steps of the state; with them
        // the check of the layout comes on top.
        self.space
            .steps(self.space.state(layout)?)
            .iter()
            .filter(|step| step.shape == shape.plain() && layout.check(shape, step.start).is_ok())
            .filter_map(|step| Some((step.start, own.saturating_sub(self.of(step.to)?))))
            .min_by_key(|(start, loss)| (*loss, *start))
    }

    fn of(&self, state: State) -> Option<i64> {
        self.value.get(state.get()).copied()
    }
}

/// The square of the memory slices in use over twice those of the GPU, in units.
fn bonus(layout: Layout) -> i64 {
    let used = i64::from(layout.memory_taken().count_ones());
    let twice = i64::from(layout.grid().memory()).saturating_mul(2);
    used.saturating_mul(used)
        .saturating_mul(UNIT)
        .checked_div(twice)
        .unwrap_or(0)
}
