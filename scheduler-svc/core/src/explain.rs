//! Why a decision came out as it did, small enough to be stored and shown.

mod report;
mod sooner;
mod text;

use std::fmt;

use cnlab_model::id::NodeId;
use serde::{Deserialize, Serialize};

pub use report::{
    Ahead, Blocker, DeadlineTerm, GpuTypeTerm, LocalityTerm, Report, ShareTerm, explain,
};
pub use sooner::{Change, Sooner};
pub use text::Names;

/// How many candidates an explanation keeps.
pub(crate) const TOP: usize = 3;

/// The best candidates of a decision and how many were looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// GPUs of every family in the cell.
    pub considered: usize,
    /// The best candidates, best first; the first one is the one taken, if any was.
    pub top: Vec<Candidate>,
}

/// One GPU as a decision saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Where it is.
    pub node: NodeId,
    /// Its UUID.
    pub gpu: String,
    /// How many of its blocks are free.
    pub free: u8,
    /// Whether it can be taken.
    pub fit: Fit,
}

/// Whether a GPU of the wanted family can be taken, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Enough blocks are free.
    Fits,
    /// Too few blocks are free.
    TooFull,
    /// The node did not renew its leases.
    NodeSilent,
    /// The volume is larger than the node's disk.
    DiskTooSmall,
    /// The volume lies on another node.
    OtherNode,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fits => "fits",
            Self::TooFull => "too few free blocks",
            Self::NodeSilent => "the node does not answer",
            Self::DiskTooSmall => "the node's disk is too small",
            Self::OtherNode => "the volume lies on another node",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "looked at {} GPUs", self.considered)?;
        for candidate in &self.top {
            write!(
                f,
                "; {} on {}: {} of 100 blocks free, {}",
                candidate.gpu, candidate.node, candidate.free, candidate.fit
            )?;
        }
        Ok(())
    }
}
