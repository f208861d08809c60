//! For every node the least that room on it can cost, kept up to date as work comes and goes.
//!
//! A block whose work was last saved at `t` costs `now - t`. Taken newest first, the cheapest
//! `s` blocks of a GPU therefore cost at least `s * now - W(s)`, where `W(s)` is the sum of
//! their `t`. That sum does not depend on `now`, so it is kept; only who comes, ends or saves
//! changes it. The same holds for the `k` GPUs whose work is newest on average.
//!
//! **Invariant**: a floor is never above what [`cheapest`](super::victims::cheapest) finds.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "asked of every node; products of 64 bits and at most 1,600 blocks stay below 2^75"
)]

use cnlab_model::{BLOCKS_PER_GPU, Timestamp};

use crate::cluster::{Demand, MAX_GPUS, Shape};

use super::room::Room;

/// Blocks between two sums that are kept of a GPU.
const STRIDE: u8 = 10;

/// How many are kept.
const KNOTS: usize = (BLOCKS_PER_GPU / STRIDE) as usize;

/// A floor of a number of blocks is not above this, so that it can be multiplied.
const LIMIT: u64 = u64::MAX / BLOCKS_PER_GPU as u64;

/// What is kept of every node, by number of blocks or GPUs, since a question reads one of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Floors {
    blocks: [Vec<i64>; KNOTS],
    gpus: [Vec<i64>; MAX_GPUS],
}

/// What is kept of one node, while it is summed up.
#[derive(Debug, Clone)]
pub(super) struct Floor {
    /// The greatest sum over its GPUs for 10, 20, ... blocks.
    blocks: [i64; KNOTS],
    /// The sum of the greatest means over its GPUs, for one, two, ... of them.
    gpus: [i64; MAX_GPUS],
    on: [OnGpu; MAX_GPUS],
}

/// What is summed up of a GPU.
#[derive(Debug, Clone, Copy, Default)]
struct OnGpu {
    held: u8,
    sum: i128,
}

impl Default for Floor {
    fn default() -> Self {
        Self {
            blocks: [i64::MIN; KNOTS],
            gpus: [i64::MIN; MAX_GPUS],
            on: [OnGpu::default(); MAX_GPUS],
        }
    }
}

impl Floor {
    /// Adds blocks on a GPU; the work that was saved last comes first.
    pub(super) fn add(&mut self, gpu: usize, blocks: u8, saved: Timestamp) {
        let Some(on) = self.on.get_mut(gpu) else {
            return;
        };
        let held = on.held.saturating_add(blocks).min(BLOCKS_PER_GPU);
        for knot in usize::from(on.held / STRIDE)..usize::from(held / STRIDE) {
            if let Some(most) = self.blocks.get_mut(knot) {
                let more = (knot as i128 + 1) * i128::from(STRIDE) - i128::from(on.held);
                *most = (*most).max(narrow(on.sum + more * i128::from(saved.0)));
            }
        }
        on.sum += i128::from(held - on.held) * i128::from(saved.0);
        on.held = held;
    }

    /// Adds up the GPUs once everybody was added.
    fn finish(&mut self) {
        let used = self.on.iter().filter(|on| on.held > 0);
        let mut means = [i128::MIN; MAX_GPUS];
        let mut count = 0;
        for (mean, on) in means.iter_mut().zip(used) {
            // Rounded up, so that the floor is rounded down.
            *mean = -(-on.sum).div_euclid(on.held.into());
            count += 1;
        }
        means.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        for (most, mean) in self.gpus.iter_mut().zip(means).take(count) {
            sum += mean;
            *most = narrow(sum);
        }
    }
}

impl Floors {
    /// Makes room for so many nodes.
    pub(super) fn grow(&mut self, nodes: usize) {
        for column in self.blocks.iter_mut().chain(&mut self.gpus) {
            column.resize(nodes, i64::MIN);
        }
    }

    /// Replaces what is kept of a node.
    pub(super) fn set(&mut self, node: usize, mut floor: Floor) {
        floor.finish();
        let columns = self.blocks.iter_mut().zip(floor.blocks);
        for (column, value) in columns.chain(self.gpus.iter_mut().zip(floor.gpus)) {
            if let Some(slot) = column.get_mut(node) {
                *slot = value;
            }
        }
    }

    /// A bound of the GPU time that is lost if a task gets room on a node that has this much
    /// free, but not enough: at least that much.
    #[inline]
    pub(super) fn at_least(
        &self,
        node: usize,
        room: &Room,
        demand: &Demand,
        now: Timestamp,
    ) -> u64 {
        match demand.shape() {
            Shape::CpuOnly => 0,
            Shape::Share(blocks) => {
                let short = blocks.saturating_sub(room.most());
                let Some(knot) = usize::from(short / STRIDE).checked_sub(1) else {
                    return 0;
                };
                let Some(sum) = self.blocks.get(knot).and_then(|sums| sums.get(node)) else {
                    return 0;
                };
                let kept = short / STRIDE * STRIDE;
                let least = lost(kept.into(), now, *sum).min(LIMIT);
                // Each further block costs no less than those so far on average.
                least * u64::from(short) / u64::from(kept)
            }
            Shape::Whole(count) => {
                let missing = u32::from(count).saturating_sub(room.idle());
                let at = missing.checked_sub(1).map(|at| at as usize);
                let Some(sum) = at.and_then(|at| self.gpus.get(at)?.get(node)) else {
                    return 0;
                };
                let used = |free: u8| if free == BLOCKS_PER_GPU { 0 } else { free };
                let most = room
                    .blocks
                    .iter()
                    .fold(0, |most, free| used(*free).max(most));
                // Each of them has at least so many blocks held.
                let held = u64::from(BLOCKS_PER_GPU - most);
                lost(missing.into(), now, *sum).saturating_mul(held)
            }
        }
    }
}

/// So many times `now` without a sum that was kept, in 64 bits, which are much faster and, but
/// for times beyond all sense, enough.
#[inline]
fn lost(times: i64, now: Timestamp, sum: i64) -> u64 {
    if sum == i64::MAX {
        return 0;
    }
    // Neither rounds up: what is too large is cut off, and what is too small stays so.
    u64::try_from(times.saturating_mul(now.0).saturating_sub(sum)).unwrap_or(0)
}

/// No less than the value, but for the greatest number, which stands for any above.
fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
