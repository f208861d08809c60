//! The life of a run: one command on one slice, until it ends.
//!
//! ```text
//!            SlicePlaced               CommandStarted
//!   Queued ─────────────▶ Provisioning ─────────────▶ Running
//!    ▲ │ ◀──── Requeued ─────┘ │ ◀─ ─ ─ Requeued ─ ─ ─ ┘ │
//!      │ CancelRequested       └── CommandSucceeded ─────┼─▶ Succeeded
//!      ▼                           CommandFailed ────────┼─▶ Failed
//!   Cancelled ◀─ any end ─ Cancelling ◀─ CancelRequested ┤
//!                                  TimeOver ─────────────┴─▶ TimedOut
//!
//!   any but Deleted ── DeleteRequested ──▶ Deleting ── VolumeRemoved ──▶ Deleted
//! ```
//!
//! **Invariants**: every event is answered in every state; repeating an event that was accepted
//! is accepted again or changes nothing; a run that was cancelled becomes nothing else; a run
//! that has ended by itself never runs again; a run holds a slice exactly in `Provisioning`,
//! `Running` and `Cancelling`, and in `Deleting` until its processes are gone.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::server::Phase;

/// How often a run begins anew because its node was lost (X-12).
pub const LOSSES_FORGIVEN: u32 = 1;

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It makes something better, such as a model.
    #[default]
    Training,
    /// It answers with something that was made before.
    Inference,
    /// It says how good something is.
    Evaluation,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Training, Self::Inference, Self::Evaluation];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Inference => "inference",
            Self::Evaluation => "evaluation",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a run is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for a slice, for the first time or again.
    Queued,
    /// Has a slice; the node prepares it.
    Provisioning {
        /// How far it is; never [`Phase::WaitingForPage`].
        phase: Phase,
    },
    /// The command runs.
    Running,
    /// Its processes are being ended, as somebody asked.
    Cancelling,
    /// The command ended with exit code 0.
    Succeeded,
    /// The command ended otherwise, or could not be started.
    Failed,
    /// Ended because somebody asked for that.
    Cancelled,
    /// Ended because its longest time was over.
    TimedOut,
    /// Being removed with its volume.
    Deleting,
    /// Removed.
    Deleted,
}

/// What happened to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A slice was granted.
    SlicePlaced,
    /// The node said how far it is.
    PhaseReached(Phase),
    /// The command was started.
    CommandStarted,
    /// The node ends the processes.
    EndingBegun,
    /// The command ended with exit code 0.
    CommandSucceeded,
    /// The command ended otherwise, or could not be started.
    CommandFailed,
    /// The node ended the command because its longest time was over.
    TimeOver,
    /// Its processes are gone through no fault of its own, and it may begin anew: its node was
    /// lost, or ended in good order.
    Requeued,
    /// Its user wants it to end.
    CancelRequested,
    /// Its user wants it gone.
    DeleteRequested,
    /// The volume is gone.
    VolumeRemoved,
}

/// An event that has no place in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{event} is not possible while the run is {state}")]
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
    // What an end of the processes leads to: `own` where nobody asked for it.
    let ended = |own: State| match state {
        S::Provisioning { .. } | S::Running => Ok(own),
        S::Cancelling | S::Cancelled => Ok(S::Cancelled),
        S::Deleting => Ok(S::Deleting),
        S::Succeeded | S::Failed | S::TimedOut if state == own => Ok(own),
        S::Queued | S::Succeeded | S::Failed | S::TimedOut | S::Deleted => refused,
    };
    match event {
        E::SlicePlaced => match state {
            S::Queued => Ok(S::Provisioning {
                phase: Phase::SendingToNode,
            }),
            S::Provisioning { .. }
            | S::Running
            | S::Cancelling
            | S::Succeeded
            | S::Failed
            | S::Cancelled
            | S::TimedOut
            | S::Deleting
            | S::Deleted => refused,
        },
        E::PhaseReached(phase) => match state {
            S::Provisioning { .. } => Ok(S::Provisioning { phase }),
            // The command was seen running; what the node said before is old.
            S::Running | S::Cancelling | S::Deleting => Ok(state),
            S::Queued | S::Succeeded | S::Failed | S::Cancelled | S::TimedOut | S::Deleted => {
                refused
            }
        },
        E::CommandStarted => match state {
            S::Provisioning { .. } | S::Running => Ok(S::Running),
            S::Cancelling | S::Deleting => Ok(state),
            S::Queued | S::Succeeded | S::Failed | S::Cancelled | S::TimedOut | S::Deleted => {
                refused
            }
        },
        // How it ends is said when it has.
        E::EndingBegun => match state {
            S::Provisioning { .. } | S::Running | S::Cancelling | S::Deleting => Ok(state),
            S::Queued | S::Succeeded | S::Failed | S::Cancelled | S::TimedOut | S::Deleted => {
                refused
            }
        },
        E::CommandSucceeded => ended(S::Succeeded),
        E::CommandFailed => ended(S::Failed),
        E::TimeOver => ended(S::TimedOut),
        E::Requeued => match state {
            // It waits already.
            S::Queued => Ok(S::Queued),
            S::Provisioning { .. }
            | S::Running
            | S::Cancelling
            | S::Succeeded
            | S::Failed
            | S::Cancelled
            | S::TimedOut
            | S::Deleting
            | S::Deleted => ended(S::Queued),
        },
        E::CancelRequested => match state {
            S::Provisioning { .. } | S::Running | S::Cancelling => Ok(S::Cancelling),
            S::Queued | S::Cancelled => Ok(S::Cancelled),
            // It is over, and how stays readable.
            S::Succeeded | S::Failed | S::TimedOut => Ok(state),
            S::Deleting | S::Deleted => refused,
        },
        E::DeleteRequested => match state {
            S::Queued
            | S::Provisioning { .. }
            | S::Running
            | S::Cancelling
            | S::Succeeded
            | S::Failed
            | S::Cancelled
            | S::TimedOut
            | S::Deleting => Ok(S::Deleting),
            S::Deleted => refused,
        },
        E::VolumeRemoved => match state {
            S::Deleting | S::Deleted => Ok(S::Deleted),
            S::Queued
            | S::Provisioning { .. }
            | S::Running
            | S::Cancelling
            | S::Succeeded
            | S::Failed
            | S::Cancelled
            | S::TimedOut => refused,
        },
    }
}

/// What the loss of its node means for a run that lost a node so many times before: it begins
/// anew, or has failed.
#[must_use]
pub const fn after_loss(losses_before: u32) -> Event {
    if losses_before < LOSSES_FORGIVEN {
        Event::Requeued
    } else {
        Event::CommandFailed
    }
}

impl State {
    /// Whether a run in this state can have processes on a node.
    #[must_use]
    pub const fn may_run(self) -> bool {
        match self {
            Self::Provisioning { .. } | Self::Running | Self::Cancelling | Self::Deleting => true,
            Self::Queued
            | Self::Succeeded
            | Self::Failed
            | Self::Cancelled
            | Self::TimedOut
            | Self::Deleted => false,
        }
    }

    /// Whether it has ended and nothing more happens but that it is deleted.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Deleted => {
                true
            }
            Self::Queued
            | Self::Provisioning { .. }
            | Self::Running
            | Self::Cancelling
            | Self::Deleting => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::Provisioning { .. } => "provisioning",
            Self::Running => "running",
            Self::Cancelling => "being cancelled",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed out",
            Self::Deleting => "being deleted",
            Self::Deleted => "deleted",
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlicePlaced => "placing",
            Self::PhaseReached(_) => "preparing",
            Self::CommandStarted => "beginning",
            Self::EndingBegun | Self::CommandSucceeded | Self::CommandFailed => "ending",
            Self::TimeOver => "timing out",
            Self::Requeued => "requeueing",
            Self::CancelRequested => "cancelling",
            Self::DeleteRequested => "deleting",
            Self::VolumeRemoved => "removing the volume",
        })
    }
}

#[cfg(test)]
mod tests;
