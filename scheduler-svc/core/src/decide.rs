//! Where a request goes: best fit, the fullest GPU that still has room.
//!
//! Best fit keeps whole GPUs whole, which is what the largest profiles wait for.

use std::{cmp::Reverse, fmt, time::Duration};

use cnlab_model::{BLOCKS_PER_GPU, Blocks, ByteSize, Timestamp, id::NodeId};
use serde::{Deserialize, Serialize};

use crate::{
    estimate,
    explain::{Candidate, Explanation, Fit, TOP},
    snapshot::{Gpu, Node, Snapshot},
};

/// What a server asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The GPU family, such as `H100`.
    pub family: String,
    /// How many blocks, 1 to 100; 100 is a whole GPU.
    pub blocks: u8,
    /// Size of the volume in bytes.
    pub storage_bytes: u64,
    /// The node that has the volume already, which is then the only one possible.
    pub volume_on: Option<NodeId>,
}

/// A slice of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// UUID of the GPU.
    pub gpu: String,
    /// Which blocks; all of them are free.
    pub blocks: Blocks,
    /// Memory limit in bytes.
    pub vram_bytes: u64,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It starts now, here.
    Place(Placement),
    /// It waits.
    Queue {
        /// Expected wait, where it can be told.
        eta: Option<Duration>,
        /// What it waits for.
        reason: QueueReason,
    },
    /// It can never start on the nodes of this cell.
    Reject {
        /// Why.
        reason: RejectReason,
    },
}

/// A decision and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// What to do.
    pub decision: Decision,
    /// Why.
    pub explanation: Explanation,
}

/// What a queued request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueReason {
    /// Every GPU of the family is too full.
    Busy {
        /// The family.
        family: String,
        /// Blocks wanted.
        wanted: u8,
        /// Most blocks free on one GPU.
        most_free: u8,
    },
    /// The nodes that have room do not answer.
    NodesSilent {
        /// The family.
        family: String,
    },
}

/// Why a request can never start here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// A slice has 1 to 100 blocks.
    BadSlice {
        /// What was asked for.
        blocks: u8,
    },
    /// The cell has no node at all.
    NoNodes,
    /// No node has a GPU of the family.
    NoSuchGpu {
        /// The family.
        family: String,
    },
    /// The volume is larger than every disk beside such a GPU.
    StorageTooLarge {
        /// What was asked for, in bytes.
        wanted: u64,
        /// The largest disk, in bytes.
        largest: u64,
    },
    /// The node with the volume is gone or has no GPU of the family.
    VolumeElsewhere {
        /// The node with the volume.
        node: NodeId,
        /// The family.
        family: String,
    },
}

/// The memory limit of a slice: one hundredth of the GPU's memory, rounded down, per block.
#[must_use]
pub fn vram_bytes(memory_bytes: u64, blocks: u8) -> u64 {
    let block = memory_bytes.checked_div(u64::from(BLOCKS_PER_GPU));
    // At most memory_bytes, so nothing saturates for a valid count of blocks.
    block.unwrap_or(0).saturating_mul(u64::from(blocks))
}

fn fit(node: &Node, gpu: &Gpu, request: &Request) -> Fit {
    if request.volume_on.is_some_and(|pinned| pinned != node.id) {
        Fit::OtherNode
    } else if request.volume_on.is_none() && request.storage_bytes > node.disk_bytes {
        Fit::DiskTooSmall
    } else if !node.answers {
        Fit::NodeSilent
    } else if gpu.free().count() < request.blocks {
        Fit::TooFull
    } else {
        Fit::Fits
    }
}

/// Decides one request.
///
/// Laws, each a property test: asking twice gives the same answer; a placement lies inside
/// the free blocks of its GPU; the order in which nodes are named does not matter; an
/// additional GPU or a freed block never turns `Place` into `Queue`; a slice of 100 blocks
/// takes an empty GPU.
#[must_use]
pub fn decide(snapshot: &Snapshot, request: &Request, now: Timestamp) -> Decided {
    let mut candidates: Vec<(Fit, u8, &Node, &str, &Gpu)> = snapshot
        .gpus()
        .filter(|(_, _, gpu)| gpu.family == request.family)
        .map(|(node, uuid, gpu)| (fit(node, gpu, request), gpu.free().count(), node, uuid, gpu))
        .collect();
    candidates.sort_by_key(|(fit, free, node, uuid, _)| match fit {
        // The fullest first.
        Fit::Fits => (*fit, Reverse(0), *free, node.id, *uuid),
        // The emptiest first: it is the one that comes closest.
        Fit::TooFull | Fit::NodeSilent | Fit::DiskTooSmall | Fit::OtherNode => {
            (*fit, Reverse(*free), 0, node.id, *uuid)
        }
    });
    let explanation = Explanation {
        considered: snapshot.gpus().count(),
        top: candidates
            .iter()
            .take(TOP)
            .map(|(fit, free, node, uuid, _)| Candidate {
                node: node.id,
                gpu: (*uuid).to_owned(),
                free: *free,
                fit: *fit,
            })
            .collect(),
    };
    let decision = if (1..=BLOCKS_PER_GPU).contains(&request.blocks) {
        placed(&candidates, request)
            .unwrap_or_else(|| unplaced(snapshot, &candidates, request, now))
    } else {
        let blocks = request.blocks;
        Decision::Reject {
            reason: RejectReason::BadSlice { blocks },
        }
    };
    Decided {
        decision,
        explanation,
    }
}

fn placed(candidates: &[(Fit, u8, &Node, &str, &Gpu)], request: &Request) -> Option<Decision> {
    let (fit, _, node, uuid, gpu) = candidates.first()?;
    if *fit != Fit::Fits {
        return None;
    }
    Some(Decision::Place(Placement {
        node: node.id,
        gpu: (*uuid).to_owned(),
        blocks: gpu.free().lowest(request.blocks)?,
        vram_bytes: vram_bytes(gpu.memory_bytes, request.blocks),
    }))
}

fn unplaced(
    snapshot: &Snapshot,
    candidates: &[(Fit, u8, &Node, &str, &Gpu)],
    request: &Request,
    now: Timestamp,
) -> Decision {
    let family = request.family.clone();
    let reject = |reason| Decision::Reject { reason };
    if snapshot.nodes().next().is_none() {
        return reject(RejectReason::NoNodes);
    }
    if let Some(node) = request.volume_on
        && candidates.iter().all(|(fit, ..)| *fit == Fit::OtherNode)
    {
        return reject(RejectReason::VolumeElsewhere { node, family });
    }
    match candidates.first() {
        None => reject(RejectReason::NoSuchGpu { family }),
        Some((Fit::DiskTooSmall | Fit::OtherNode, ..)) => {
            let disks = candidates.iter().map(|(_, _, node, ..)| node.disk_bytes);
            reject(RejectReason::StorageTooLarge {
                wanted: request.storage_bytes,
                largest: disks.max().unwrap_or(0),
            })
        }
        Some((Fit::NodeSilent, ..)) => Decision::Queue {
            eta: None,
            reason: QueueReason::NodesSilent { family },
        },
        Some((Fit::TooFull | Fit::Fits, most_free, ..)) => Decision::Queue {
            eta: estimate::wait(snapshot, request, now),
            reason: QueueReason::Busy {
                family,
                wanted: request.blocks,
                most_free: *most_free,
            },
        },
    }
}

impl fmt::Display for QueueReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy {
                family,
                wanted,
                most_free,
            } => write!(
                f,
                "waiting for {wanted}% of one {family}; at most {most_free}% is free"
            ),
            Self::NodesSilent { family } => {
                write!(f, "waiting for a node with {family} to answer again")
            }
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSlice { blocks } => {
                write!(f, "a slice has 1 to 100 blocks, not {blocks}")
            }
            Self::NoNodes => f.write_str("no node has joined yet"),
            Self::NoSuchGpu { family } => write!(f, "no node has a GPU of type {family}"),
            Self::StorageTooLarge { wanted, largest } => write!(
                f,
                "a volume of {} is larger than every disk, the largest has {}",
                ByteSize(*wanted),
                ByteSize(*largest)
            ),
            Self::VolumeElsewhere { node, family } => write!(
                f,
                "the volume lies on {node}, which has left or has no GPU of type {family}"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
