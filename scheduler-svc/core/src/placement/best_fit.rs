//! Best fit.

use cnlab_model::BLOCKS_PER_GPU;

use super::{Rank, Rule};
use crate::cluster::{Demand, GpuSet, MAX_GPUS, Node, Shape};

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
    blocks_free: [u8; MAX_GPUS],
    idle: u8,
    /// Free blocks of all GPUs, in steps of eight.
    free: u8,
}

impl View {
    fn of(node: &Node) -> Self {
        let blocks_free = node.blocks_free();
        let sum = blocks_free
            .iter()
            .fold(0_u16, |sum, free| sum.saturating_add((*free).into()));
        Self {
            blocks_free,
            idle: node.idle_gpus(),
            free: u8::try_from(sum / 8).unwrap_or(u8::MAX),
        }
    }

    /// How many blocks a share leaves on the fullest GPU with room for it.
    #[inline]
    fn left(&self, blocks: u8) -> Option<u8> {
        // Where there is no room the difference wraps to more than any GPU has.
        let least = self
            .blocks_free
            .iter()
            .fold(u8::MAX, |least, free| least.min(free.wrapping_sub(blocks)));
        (least < BLOCKS_PER_GPU).then_some(least)
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
        if node.has_room_beside_gpus(demand) {
            View::of(node).rank(node, demand)
        } else {
            0
        }
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        if !node.fits(demand) {
            return None;
        }
        match demand.shape() {
            Shape::CpuOnly => Some(GpuSet::EMPTY),
            Shape::Share(blocks) => {
                let view = View::of(node);
                let left = view.left(blocks)?;
                let mut free = view.blocks_free.iter();
                free.position(|free| free.checked_sub(blocks) == Some(left))
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
