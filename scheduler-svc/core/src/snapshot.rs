//! What the scheduler knows of the cell at one moment.

use std::collections::BTreeMap;

use cnlab_model::{Blocks, Timestamp, id::NodeId};
use serde::{Deserialize, Serialize};

use crate::{decide::Request, estimate::RunLengths};

/// Every node of the cell, who holds what, and who waits.
///
/// **Invariant**: nodes and GPUs are kept in the order of their ids, so that two snapshots of
/// the same facts are equal and give equal decisions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    nodes: BTreeMap<NodeId, Node>,
    /// Requests that wait already, oldest first.
    pub queue: Vec<Request>,
    /// How long servers ran until now.
    pub run_lengths: RunLengths,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Whether it was heard of within the time of a lease. A silent node keeps what it has
    /// and gets nothing new.
    pub answers: bool,
    /// Size of the file system for volumes, in bytes.
    pub disk_bytes: u64,
    /// Its GPUs by their UUID.
    pub gpus: BTreeMap<String, Gpu>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Marketing family such as `H100`.
    pub family: String,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// Who holds which blocks.
    pub holders: Vec<Holder>,
}

/// A grant on a GPU, as far as a decision depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The blocks that it holds.
    pub blocks: Blocks,
    /// Since when.
    pub since: Timestamp,
}

impl Gpu {
    /// The blocks that nobody holds.
    #[must_use]
    pub fn free(&self) -> Blocks {
        self.holders
            .iter()
            .fold(Blocks::ALL, |free, holder| free.minus(holder.blocks))
    }
}

impl Snapshot {
    /// A snapshot of these nodes, in whatever order they come, with an empty queue.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Self {
        Self {
            nodes: nodes.into_iter().map(|node| (node.id, node)).collect(),
            ..Self::default()
        }
    }

    /// Takes in a grant that was made since. A GPU that is not in the snapshot stays out of it.
    pub fn hold(&mut self, node: NodeId, uuid: &str, holder: Holder) {
        let gpu = self
            .nodes
            .get_mut(&node)
            .and_then(|node| node.gpus.get_mut(uuid));
        if let Some(gpu) = gpu {
            gpu.holders.push(holder);
        }
    }

    /// The nodes in the order of their ids.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The node of this id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Every GPU with its node and UUID, in the order of the ids.
    pub fn gpus(&self) -> impl Iterator<Item = (&Node, &str, &Gpu)> {
        self.nodes.values().flat_map(|node| {
            node.gpus
                .iter()
                .map(move |(uuid, gpu)| (node, uuid.as_str(), gpu))
        })
    }
}
