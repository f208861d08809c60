//! Which node, and which of its GPUs: rules that rank, and the search through all nodes.
//!
//! **Invariant**: of equally ranked nodes the one with the lowest index is taken, of equally
//! good GPUs of a node the one with the lowest position. An answer therefore depends on the
//! states of the nodes and their order, and on nothing else.

use crate::cluster::{Cluster, Demand, GpuSet, Node, NodeIx, Place, Shape};

/// How good a node is for a demand; more is better, zero is no room.
pub type Rank = u16;

/// What makes one node better for a demand than another.
///
/// A rule looks at one node at a time, and two nodes in the same state get the same rank.
/// That is what lets an index keep ranks until the state of a node changes.
pub trait Rule {
    /// The rank of a node for a demand: zero exactly where [`Node::fits`] says no.
    fn rank(&self, node: &Node, demand: &Demand) -> Rank;

    /// The GPUs to take on a node that has room, or `None` where it has none.
    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet>;

    /// The ranks of one node for many demands, written to `ranks` in their order.
    fn ranks(&self, node: &Node, demands: &[Demand], ranks: &mut [Rank]) {
        for (rank, demand) in ranks.iter_mut().zip(demands) {
            *rank = self.rank(node, demand);
        }
    }
}

/// The place for a demand, and how good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Where.
    pub place: Place,
    /// The rank of the node, at least one.
    pub rank: Rank,
}

/// The best place for a demand, found by looking at every node.
#[must_use]
pub fn scan<R: Rule + ?Sized>(rule: &R, cluster: &Cluster, demand: &Demand) -> Option<Choice> {
    let mut best: Option<(NodeIx, &Node, Rank)> = None;
    for (ix, node) in cluster.nodes() {
        let rank = rule.rank(node, demand);
        if rank > best.map_or(0, |(_, _, rank)| rank) {
            best = Some((ix, node, rank));
        }
    }
    let (node, state, rank) = best?;
    let gpus = rule.gpus(state, demand)?;
    Some(Choice {
        place: Place { node, gpus },
        rank,
    })
}

/// Every set of GPUs worth comparing for a demand on a node: for a share each GPU with room,
/// else just one set, because entirely free GPUs are alike. Empty where the node has no room.
pub fn candidates(node: &Node, demand: &Demand) -> impl Iterator<Item = GpuSet> {
    let fits = node.fits(demand);
    let (share, other) = match demand.shape() {
        Shape::CpuOnly => (None, Some(GpuSet::EMPTY)),
        Shape::Share(blocks) => (Some(blocks), None),
        Shape::Whole(gpus) => (None, node.first_idle(gpus)),
    };
    node.blocks_free()
        .into_iter()
        .enumerate()
        .filter(move |(_, free)| share.is_some_and(|blocks| *free >= blocks))
        .map(|(gpu, _)| GpuSet::one(gpu))
        .chain(other)
        .filter(move |_| fits)
}

/// Best fit: leave as little as possible.
///
/// A share goes to the GPU with the fewest blocks left after it, entire GPUs to the node with
/// the fewest entirely free GPUs left, and a demand without GPUs to the node with the fewest
/// free blocks, whose processors are of least use to GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BestFit;

impl Rule for BestFit {
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        if !node.fits(demand) {
            return 0;
        }
        let (most, left) = match demand.shape() {
            Shape::CpuOnly => (
                1_600,
                node.blocks_free()
                    .iter()
                    .fold(0, |sum: u16, free| sum.saturating_add((*free).into())),
            ),
            Shape::Share(blocks) => (
                99,
                tightest(node, blocks).map_or(0, |(_, left)| left.into()),
            ),
            Shape::Whole(gpus) => (15, node.idle_gpus().saturating_sub(gpus).into()),
        };
        Rank::saturating_sub(most, left).saturating_add(1)
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        if !node.fits(demand) {
            return None;
        }
        match demand.shape() {
            Shape::CpuOnly => Some(GpuSet::EMPTY),
            Shape::Share(blocks) => tightest(node, blocks).map(|(gpu, _)| GpuSet::one(gpu)),
            Shape::Whole(gpus) => node.first_idle(gpus),
        }
    }
}

/// The GPU with the fewest blocks left after a share, and how many those are.
fn tightest(node: &Node, blocks: u8) -> Option<(usize, u8)> {
    node.blocks_free()
        .into_iter()
        .enumerate()
        .filter_map(|(gpu, free)| Some((gpu, free.checked_sub(blocks)?)))
        .min_by_key(|(_, left)| *left)
}

#[cfg(test)]
mod tests;
