//! Why a request waits, and why one can never start, in words for whoever asked.

use std::fmt;

use cnlab_model::{ByteSize, id::NodeId};
use serde::{Deserialize, Serialize};

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
    /// Too few GPUs of one node are entirely free.
    BusyGpus {
        /// The family.
        family: String,
        /// GPUs wanted.
        wanted: u8,
        /// Most GPUs that are free on one node.
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
    /// Only entire GPUs can be combined.
    NotEntire {
        /// The share of one GPU that was asked for several times.
        percent: u8,
    },
    /// No node has so many GPUs of the family.
    TooManyGpus {
        /// The family.
        family: String,
        /// GPUs wanted.
        wanted: u8,
        /// The most that one node has, of those whose disk is large enough.
        most: u8,
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
            Self::BusyGpus {
                family,
                wanted,
                most_free,
            } => write!(
                f,
                "waiting for {wanted} entire {family} on one node; at most {most_free} are free"
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
            Self::NotEntire { percent } => write!(
                f,
                "only entire GPUs can be combined, and the profile is {percent}% of one"
            ),
            Self::TooManyGpus {
                family,
                wanted,
                most,
            } => write!(
                f,
                "no node has {wanted} GPUs of type {family}; the most on one is {most}"
            ),
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
