//! Which node, and which of its GPUs: rules that rank, and the search through all nodes.
//!
//! **Invariant**: of equally ranked nodes the one with the lowest index is taken, of equally
//! good GPUs of a node the one with the lowest position. An answer therefore depends on the
//! states of the nodes and their order, and on nothing else.

mod best_fit;

use crate::cluster::{Cluster, Demand, GpuSet, Node, NodeIx, Place, Shape};

pub use best_fit::BestFit;

/// How good a node is for a demand; more is better, zero is no room.
pub type Rank = u8;

/// What makes one node better for a demand than another.
///
/// A rule looks at one node at a time, and two nodes in the same state get the same rank. The
/// memory that a demand needs decides whether there is room, and nothing else. That is what
/// lets an index keep ranks until the state of a node changes, and share them.
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

#[cfg(test)]
mod tests;
