//! The nodes of a cell as dense numbers: what a placement is decided on.
//!
//! **Invariants**: nobody holds more than a node had when it was taken; a count never wraps,
//! an operation that would do so is refused and changes nothing; an index keeps naming the
//! same node until that node is removed; the lowest vacant index is given out first, so that
//! the same operations give the same indexes.
//!
//! ```text
//! Demand ──▶ Node::fit ──▶ Fit          what a node has room for, or what is short
//! Place  ──▶ Cluster::take / give       the book: held never exceeds the total
//! ```

mod demand;
mod node;

use std::collections::BTreeSet;

pub use demand::{Demand, GpuSet, InvalidDemand, Kind, KindSet, Shape};
pub use node::{Fit, MAX_GPUS, Node};

/// A node by its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIx(pub u32);

impl NodeIx {
    /// The position as the index of a slice.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// Where a demand goes: a node and the GPUs of it (none where only processors are asked for).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The node.
    pub node: NodeIx,
    /// The GPUs.
    pub gpus: GpuSet,
}

/// Why the book was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No node has this index.
    #[error("no node {}", .0.0)]
    NoNode(NodeIx),
    /// The place names other GPUs than the demand can use: a wrong number, or one that the
    /// node does not have.
    #[error("the place does not have the shape of the demand")]
    Shape,
    /// The node has too few free processors.
    #[error("too few free processors")]
    Cpu,
    /// The node has too little free memory.
    #[error("too little free memory")]
    Memory,
    /// A GPU has too few free blocks.
    #[error("too few free blocks")]
    Blocks,
    /// More would be given back than is held.
    #[error("more is given back than is held")]
    NotHeld,
    /// The node cannot be removed while something is held on it.
    #[error("something is held on the node")]
    InUse,
    /// Every index is given out.
    #[error("no index is left")]
    Full,
}

/// What all nodes together have or offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Blocks of all GPUs.
    pub blocks: u64,
}

/// The nodes of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    nodes: Vec<Option<Node>>,
    vacant: BTreeSet<NodeIx>,
    total: Sum,
    held: Sum,
}

impl Cluster {
    /// A cell without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many indexes were ever given out: every index is below it.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.nodes.len()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len().saturating_sub(self.vacant.len())
    }

    /// The node of an index.
    #[must_use]
    pub fn node(&self, ix: NodeIx) -> Option<&Node> {
        self.nodes.get(ix.get())?.as_ref()
    }

    /// Every node, in the order of the indexes.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        (0_u32..)
            .zip(&self.nodes)
            .filter_map(|(ix, node)| Some((NodeIx(ix), node.as_ref()?)))
    }

    /// What the nodes have, cordoned ones included.
    #[must_use]
    pub const fn total(&self) -> Sum {
        self.total
    }

    /// What is held on them.
    #[must_use]
    pub const fn held(&self) -> Sum {
        self.held
    }

    /// Adds a node at the lowest vacant index.
    ///
    /// # Errors
    /// [`Refused::Full`] where every index is given out.
    pub fn add(&mut self, node: Node) -> Result<NodeIx, Refused> {
        let ix = match self.vacant.pop_first() {
            Some(ix) => ix,
            None => {
                let ix = u32::try_from(self.nodes.len()).map_err(|_| Refused::Full)?;
                self.nodes.push(None);
                NodeIx(ix)
            }
        };
        *self.nodes.get_mut(ix.get()).ok_or(Refused::NoNode(ix))? = Some(node);
        self.total.add(node.total());
        self.held.add(node.held());
        Ok(ix)
    }

    /// Removes a node on which nothing is held.
    ///
    /// # Errors
    /// [`Refused::NoNode`], [`Refused::InUse`].
    pub fn remove(&mut self, ix: NodeIx) -> Result<Node, Refused> {
        let slot = self.nodes.get_mut(ix.get()).ok_or(Refused::NoNode(ix))?;
        let node = slot.as_ref().ok_or(Refused::NoNode(ix))?;
        if !node.is_unused() {
            return Err(Refused::InUse);
        }
        let node = slot.take().ok_or(Refused::NoNode(ix))?;
        self.vacant.insert(ix);
        self.total.sub(node.total());
        Ok(node)
    }

    /// Opens a node for new work, or closes it (cordoned, silent). What is held stays held.
    ///
    /// # Errors
    /// [`Refused::NoNode`].
    pub fn set_eligible(&mut self, ix: NodeIx, eligible: bool) -> Result<(), Refused> {
        self.node_mut(ix)?.set_eligible(eligible);
        Ok(())
    }

    /// Says what a node has now. Less than is held is a fact to live with: nothing is free
    /// then until enough was given back.
    ///
    /// # Errors
    /// [`Refused::NoNode`].
    pub fn set_total(
        &mut self,
        ix: NodeIx,
        cpu_milli: u32,
        memory_mib: u32,
        blocks: [u8; MAX_GPUS],
    ) -> Result<(), Refused> {
        let node = self.node_mut(ix)?;
        let before = node.total();
        node.set_total(cpu_milli, memory_mib, blocks);
        let after = node.total();
        self.total.sub(before);
        self.total.add(after);
        Ok(())
    }

    /// Notes that a demand is held at a place. Kind and eligibility are not looked at: what a
    /// node reports as running is recorded also where nothing new would be put.
    ///
    /// # Errors
    /// What is short, or [`Refused::Shape`]; nothing is changed then.
    pub fn take(&mut self, place: Place, demand: &Demand) -> Result<(), Refused> {
        self.node_mut(place.node)?.take(place.gpus, demand)?;
        self.held.add(Sum::of(demand));
        Ok(())
    }

    /// Notes that a demand is no longer held at a place.
    ///
    /// # Errors
    /// [`Refused::NotHeld`], [`Refused::Shape`] or [`Refused::NoNode`]; nothing is changed then.
    pub fn give(&mut self, place: Place, demand: &Demand) -> Result<(), Refused> {
        self.node_mut(place.node)?.give(place.gpus, demand)?;
        self.held.sub(Sum::of(demand));
        Ok(())
    }

    fn node_mut(&mut self, ix: NodeIx) -> Result<&mut Node, Refused> {
        self.nodes
            .get_mut(ix.get())
            .and_then(Option::as_mut)
            .ok_or(Refused::NoNode(ix))
    }
}

impl Sum {
    /// What a demand asks for.
    #[must_use]
    pub fn of(demand: &Demand) -> Self {
        Self {
            cpu_milli: demand.cpu_milli().into(),
            memory_mib: demand.memory_mib().into(),
            blocks: demand.total_blocks().into(),
        }
    }

    // Sums of at most 2^32 nodes of 32-bit values stay below 2^64; saturation only keeps the
    // arithmetic total.
    fn add(&mut self, other: Self) {
        self.cpu_milli = self.cpu_milli.saturating_add(other.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_add(other.memory_mib);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    fn sub(&mut self, other: Self) {
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_sub(other.memory_mib);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }
}

#[cfg(test)]
mod tests;
