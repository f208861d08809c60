//! Why a request to the node is refused.

use std::io;

use cnlab_model::{ErrorKind, Fault, id::VolumeId};
use node_core::{Refused, WorkloadId};
use thiserror::Error;

use crate::disk;

/// An error of a request.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The GPU book refuses.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A newer life of the workload is known.
    #[error("fence {fence} is too low: fence {seen} was seen before")]
    FenceTooLow {
        /// The fence that was offered.
        fence: u64,
        /// The fence that was seen.
        seen: u64,
    },
    /// Nothing is known of it.
    #[error("this node knows no workload {0}")]
    NoWorkload(WorkloadId),
    /// A workload that is not over uses the volume.
    #[error("volume {volume} is in use by {workload}")]
    VolumeInUse {
        /// The volume.
        volume: VolumeId,
        /// Who uses it.
        workload: WorkloadId,
    },
    /// The node's state could not be read or written.
    #[error("{what} could not be kept on disk")]
    Storage {
        /// What was to be kept.
        what: &'static str,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
    /// Work off the async threads panicked.
    #[error("a task of the node ended early")]
    Task(#[from] tokio::task::JoinError),
}

impl Fault for NodeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(Refused::FenceTooLow { .. }) | Self::FenceTooLow { .. } => {
                ErrorKind::Precondition
            }
            Self::Refused(Refused::UnknownGpu { .. }) | Self::NoWorkload(_) => ErrorKind::NotFound,
            Self::Refused(Refused::NoBlocks | Refused::NoFence | Refused::GpuTwice { .. }) => {
                ErrorKind::Invalid
            }
            Self::Refused(Refused::MemoryTooLarge { .. }) => ErrorKind::Exhausted,
            Self::VolumeInUse { .. } => ErrorKind::Precondition,
            Self::Storage { source, .. } if disk::is_full(source) => ErrorKind::Exhausted,
            Self::Storage { .. } | Self::Task(_) => ErrorKind::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Refused(Refused::FenceTooLow { .. }) | Self::FenceTooLow { .. } => {
                "FENCE_TOO_LOW"
            }
            Self::Refused(Refused::UnknownGpu { .. }) => "GPU_NOT_FOUND",
            Self::Refused(Refused::NoBlocks | Refused::NoFence | Refused::GpuTwice { .. }) => {
                "GRANT_INVALID"
            }
            Self::Refused(Refused::MemoryTooLarge { .. }) => "GPU_MEMORY_EXHAUSTED",
            Self::NoWorkload(_) => "WORKLOAD_NOT_FOUND",
            Self::VolumeInUse { .. } => "VOLUME_IN_USE",
            Self::Storage { source, .. } if disk::is_full(source) => "DISK_FULL",
            Self::Storage { .. } | Self::Task(_) => "INTERNAL",
        }
    }

    fn try_this(&self) -> Option<String> {
        match self {
            Self::Storage { source, .. } if disk::is_full(source) => {
                Some("free space in the data folder of the node".to_owned())
            }
            Self::VolumeInUse { .. } => Some("stop the workload first".to_owned()),
            Self::Refused(_)
            | Self::FenceTooLow { .. }
            | Self::NoWorkload(_)
            | Self::Storage { .. }
            | Self::Task(_) => None,
        }
    }
}

/// Names what was to be kept when the disk refuses.
pub(crate) fn storage(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
    move |source| NodeError::Storage { what, source }
}
