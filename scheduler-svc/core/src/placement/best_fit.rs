//! Best fit.

use cnlab_model::BLOCKS_PER_GPU;

use super::{Rank, Rule};
use crate::cluster::{Demand, GpuSet, Node, Shape};

/// Leaves as little as possible.
///
/// A share goes to the GPU with the fewest blocks left after it, entire GPUs to the node with
/// the fewest entirely free GPUs left, and a demand without GPUs to the node with the fewest
/// free blocks (in steps of eight), whose processors are of least use to GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BestFit;

/// What is looked at of a node.
#[derive(Debug, Clone, Copy)]
struct View {
    /// A bit for each number of free blocks that some GPU has.
    present: u128,
    idle: u8,
    /// Free blocks of all GPUs, in steps of eight.
    free: u8,
}

impl View {
    fn of(node: &Node) -> Self {
        let mut view = Self {
            present: 0,
            idle: 0,
            free: 0,
        };
        let mut sum = 0_u16;
        for free in node.blocks_free() {
            view.present |= 1_u128.checked_shl(free.into()).unwrap_or(0);
            view.idle = view.idle.saturating_add((free == BLOCKS_PER_GPU).into());
            sum = sum.saturating_add(free.into());
        }
        view.free = u8::try_from(sum / 8).unwrap_or(u8::MAX);
        view
    }

    /// How many blocks a share leaves on the fullest GPU with room for it.
    fn left(&self, blocks: u8) -> Option<u8> {
        let left = (self.present >> blocks).trailing_zeros();
        u8::try_from(left)
            .ok()
            .filter(|left| *left < BLOCKS_PER_GPU)
    }

    #[inline]
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        if !node.has_room_beside_gpus(demand) {
            return 0;
        }
        let (most, left) = match demand.shape() {
            Shape::CpuOnly => (200, Some(self.free)),
            Shape::Share(blocks) => (99, self.left(blocks)),
            Shape::Whole(gpus) => (15, self.idle.checked_sub(gpus)),
        };
        left.map_or(0, |left| Rank::saturating_sub(most, left).saturating_add(1))
    }
}

impl Rule for BestFit {
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        View::of(node).rank(node, demand)
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        if !node.fits(demand) {
            return None;
        }
        match demand.shape() {
            Shape::CpuOnly => Some(GpuSet::EMPTY),
            Shape::Share(blocks) => {
                let left = View::of(node).left(blocks)?;
                let free = node.blocks_free();
                free.iter()
                    .position(|free| free.checked_sub(blocks) == Some(left))
                    .map(GpuSet::one)
            }
            Shape::Whole(gpus) => node.first_idle(gpus),
        }
    }

    fn ranks(&self, node: &Node, demands: &[Demand], ranks: &mut [Rank]) {
        let view = View::of(node);
        for (rank, demand) in ranks.iter_mut().zip(demands) {
            *rank = view.rank(node, demand);
        }
    }
}
