//! The life of a server.
//!
//! ```text
//!            SlicePlaced                 PageAnswered
//!   Queued ─────────────▶ Provisioning ──────────────▶ Ready
//!     ▲  │ StopRequested     │  │ StopRequested          │ StopRequested
//!     │  └──────▶ Stopped    │  └──────▶ Stopping ◀──────┤
//!     │              ▲       │              │            │
//!     │              └───────┼── WorkloadEnded ──────────┤
//!     │ StartRequested       │ WorkloadFailed            │ WorkloadFailed
//!     └── Stopped, Failed ◀──┴───────────────────────────┘
//!
//!   any but Deleted ── DeleteRequested ──▶ Deleting ── VolumeRemoved ──▶ Deleted
//! ```
//!
//! **Invariants**: every event is answered in every state; repeating an event that was
//! accepted is accepted again or changes nothing; a server holds a slice exactly in
//! `Provisioning`, `Ready` and `Stopping`, and in `Deleting` until its processes are gone.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for a slice.
    Queued,
    /// Has a slice; the node prepares it.
    Provisioning {
        /// How far it is.
        phase: Phase,
    },
    /// The page answers.
    Ready,
    /// Its processes are being ended.
    Stopping,
    /// Nothing runs; the volume is kept.
    Stopped,
    /// Nothing runs, and not because somebody asked for that.
    Failed,
    /// Being removed with its volume.
    Deleting,
    /// Removed.
    Deleted,
}

/// How far the node has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The node was not reached yet.
    SendingToNode,
    /// The node installs the image's software.
    BuildingEnvironment,
    /// The processes start.
    Starting,
    /// The processes run, the page does not answer yet.
    WaitingForPage,
}

/// What happened to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A slice was granted.
    SlicePlaced,
    /// The node said how far it is.
    PhaseReached(Phase),
    /// The page answers.
    PageAnswered,
    /// The node ends the processes.
    EndingBegun,
    /// The processes are gone, in good order.
    WorkloadEnded,
    /// The processes are gone or never came up, and nobody had asked for that.
    WorkloadFailed,
    /// Its user wants it to run.
    StartRequested,
    /// Its user wants it to stop.
    StopRequested,
    /// Its user wants it gone.
    DeleteRequested,
    /// The volume is gone.
    VolumeRemoved,
}

/// An event that has no place in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{event} is not possible while the server is {state}")]
pub struct Refused {
    /// The state, which stays.
    pub state: State,
    /// The event.
    pub event: Event,
}

/// The state after an event.
///
/// # Errors
/// When the event has no place in this state: a request that must be refused, or a report
/// that came too late and is dropped.
pub fn step(state: State, event: Event) -> Result<State, Refused> {
    use Event as E;
    use State as S;
    let refused = Err(Refused { state, event });
    match event {
        E::SlicePlaced => match state {
            S::Queued => Ok(S::Provisioning {
                phase: Phase::SendingToNode,
            }),
            S::Provisioning { .. }
            | S::Ready
            | S::Stopping
            | S::Stopped
            | S::Failed
            | S::Deleting
            | S::Deleted => refused,
        },
        E::PhaseReached(phase) => match state {
            S::Provisioning { .. } => Ok(S::Provisioning { phase }),
            // The page answered once; what the node prepares behind it changes nothing.
            S::Ready | S::Stopping | S::Deleting => Ok(state),
            S::Queued | S::Stopped | S::Failed | S::Deleted => refused,
        },
        E::PageAnswered => match state {
            S::Provisioning { .. } | S::Ready => Ok(S::Ready),
            S::Stopping | S::Deleting => Ok(state),
            S::Queued | S::Stopped | S::Failed | S::Deleted => refused,
        },
        E::EndingBegun => match state {
            S::Provisioning { .. } | S::Ready | S::Stopping => Ok(S::Stopping),
            S::Deleting => Ok(S::Deleting),
            S::Queued | S::Stopped | S::Failed | S::Deleted => refused,
        },
        E::WorkloadEnded => match state {
            S::Provisioning { .. } | S::Ready | S::Stopping | S::Stopped => Ok(S::Stopped),
            S::Failed | S::Deleting => Ok(state),
            S::Queued | S::Deleted => refused,
        },
        E::WorkloadFailed => match state {
            S::Provisioning { .. } | S::Ready | S::Failed => Ok(S::Failed),
            // It was to end; how it did is not the user's concern.
            S::Stopping | S::Stopped => Ok(S::Stopped),
            S::Deleting => Ok(S::Deleting),
            S::Queued | S::Deleted => refused,
        },
        E::StartRequested => match state {
            S::Stopped | S::Failed => Ok(S::Queued),
            S::Queued | S::Provisioning { .. } | S::Ready => Ok(state),
            S::Stopping | S::Deleting | S::Deleted => refused,
        },
        E::StopRequested => match state {
            S::Provisioning { .. } | S::Ready | S::Stopping => Ok(S::Stopping),
            S::Queued | S::Stopped => Ok(S::Stopped),
            // Nothing runs, and the failure stays readable.
            S::Failed => Ok(S::Failed),
            S::Deleting | S::Deleted => refused,
        },
        E::DeleteRequested => match state {
            S::Queued
            | S::Provisioning { .. }
            | S::Ready
            | S::Stopping
            | S::Stopped
            | S::Failed
            | S::Deleting => Ok(S::Deleting),
            S::Deleted => refused,
        },
        E::VolumeRemoved => match state {
            S::Deleting | S::Deleted => Ok(S::Deleted),
            S::Queued
            | S::Provisioning { .. }
            | S::Ready
            | S::Stopping
            | S::Stopped
            | S::Failed => refused,
        },
    }
}

impl State {
    /// Whether a server in this state can have processes on a node.
    #[must_use]
    pub const fn may_run(self) -> bool {
        match self {
            Self::Provisioning { .. } | Self::Ready | Self::Stopping | Self::Deleting => true,
            Self::Queued | Self::Stopped | Self::Failed | Self::Deleted => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::Provisioning { .. } => "provisioning",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Deleting => "being deleted",
            Self::Deleted => "deleted",
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlicePlaced => "placing a slice",
            Self::PhaseReached(_) => "a report of progress",
            Self::PageAnswered => "a report of readiness",
            Self::EndingBegun => "a report of an ending",
            Self::WorkloadEnded => "a report of an end",
            Self::WorkloadFailed => "a report of a failure",
            Self::StartRequested => "starting",
            Self::StopRequested => "stopping",
            Self::DeleteRequested => "deleting",
            Self::VolumeRemoved => "removing the volume",
        })
    }
}

#[cfg(test)]
mod tests;
