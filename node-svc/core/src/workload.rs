//! The life cycle of one life of a workload (one launch under one fence).
//!
//! ```text
//! Accepted ─▶ BuildingEnvironment ─▶ Starting ─▶ WaitingForPage ─▶ Ready
//!     └──────────────┴───── any of them ─┴──────────────┴───────────┴─▶ Stopping ─▶ Stopped
//!     └──────────────┴───────────────────┴──────────────┴───────────┴─▶ Failed
//! ```
//!
//! **Invariants**: `Stopped` and `Failed` are left by no event; `Ready` is reached only by a page
//! that answered; a life that was asked to stop can no longer fail or come up.

use serde::{Deserialize, Serialize};

/// Where a life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The node took it on; nothing runs.
    Accepted,
    /// The image's environment is being built, by this life or another one.
    BuildingEnvironment,
    /// Its process is being started.
    Starting,
    /// The process runs; its page does not answer yet.
    WaitingForPage,
    /// The page answers.
    Ready,
    /// Its processes are being ended on request.
    Stopping,
    /// Ended on request.
    Stopped,
    /// Ended by itself, or never came up.
    Failed,
}

impl Phase {
    /// Every phase, in the order of life.
    pub const ALL: [Self; 8] = [
        Self::Accepted,
        Self::BuildingEnvironment,
        Self::Starting,
        Self::WaitingForPage,
        Self::Ready,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// Whether no event can change it any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed)
    }
}

/// What happened to a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// The environment is not there and is being built.
    BuildBegan,
    /// The environment is there and the process is about to be started.
    StartBegan,
    /// The process was started, or found again by a new node-svc.
    ProcessFound,
    /// The page answered.
    PageAnswered,
    /// Somebody asked for the end.
    StopAsked,
    /// All processes are seen gone, or none was ever started.
    Gone,
    /// It cannot come up, or ended without being asked to; all processes are seen gone.
    Failed,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 7] = [
        Self::BuildBegan,
        Self::StartBegan,
        Self::ProcessFound,
        Self::PageAnswered,
        Self::StopAsked,
        Self::Gone,
        Self::Failed,
    ];
}

/// The phase after the event; the same phase when the event says nothing new, comes late, or
/// comes too early to be true.
#[must_use]
pub const fn step(phase: Phase, event: Event) -> Phase {
    match (phase, event) {
        (Phase::Accepted, Event::BuildBegan) => Phase::BuildingEnvironment,
        (Phase::Accepted | Phase::BuildingEnvironment, Event::StartBegan) => Phase::Starting,
        // A new node-svc may find a process whose start it did not see.
        (Phase::Accepted | Phase::BuildingEnvironment | Phase::Starting, Event::ProcessFound) => {
            Phase::WaitingForPage
        }
        (Phase::WaitingForPage, Event::PageAnswered) => Phase::Ready,
        (
            Phase::Accepted
            | Phase::BuildingEnvironment
            | Phase::Starting
            | Phase::WaitingForPage
            | Phase::Ready,
            Event::StopAsked,
        ) => Phase::Stopping,
        // Asked to stop: whatever ended it, it ended as asked.
        (Phase::Stopping, Event::Gone | Event::Failed) => Phase::Stopped,
        (
            Phase::Accepted
            | Phase::BuildingEnvironment
            | Phase::Starting
            | Phase::WaitingForPage
            | Phase::Ready,
            Event::Gone | Event::Failed,
        ) => Phase::Failed,
        (
            same @ (Phase::BuildingEnvironment
            | Phase::Starting
            | Phase::WaitingForPage
            | Phase::Ready
            | Phase::Stopping),
            Event::BuildBegan,
        ) => same,
        (
            same @ (Phase::Starting | Phase::WaitingForPage | Phase::Ready | Phase::Stopping),
            Event::StartBegan,
        ) => same,
        (same @ (Phase::WaitingForPage | Phase::Ready | Phase::Stopping), Event::ProcessFound) => {
            same
        }
        (
            same @ (Phase::Accepted
            | Phase::BuildingEnvironment
            | Phase::Starting
            | Phase::Ready
            | Phase::Stopping),
            Event::PageAnswered,
        ) => same,
        (Phase::Stopping, Event::StopAsked) => Phase::Stopping,
        (
            over @ (Phase::Stopped | Phase::Failed),
            Event::BuildBegan
            | Event::StartBegan
            | Event::ProcessFound
            | Event::PageAnswered
            | Event::StopAsked
            | Event::Gone
            | Event::Failed,
        ) => over,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_way_up_and_the_way_down() {
        let up = [
            (Event::BuildBegan, Phase::BuildingEnvironment),
            (Event::StartBegan, Phase::Starting),
            (Event::ProcessFound, Phase::WaitingForPage),
            (Event::PageAnswered, Phase::Ready),
            (Event::StopAsked, Phase::Stopping),
            (Event::Gone, Phase::Stopped),
        ];
        let mut phase = Phase::Accepted;
        for (event, next) in up {
            phase = step(phase, event);
            assert_eq!(phase, next);
        }
    }

    #[test]
    fn every_pair_keeps_the_laws() {
        for phase in Phase::ALL {
            for event in Event::ALL {
                let next = step(phase, event);
                if phase.is_over() {
                    assert_eq!(next, phase, "{phase:?} {event:?}");
                }
                if phase == Phase::Stopping {
                    assert!(
                        matches!(next, Phase::Stopping | Phase::Stopped),
                        "{event:?}"
                    );
                }
                if next == Phase::Ready && phase != Phase::Ready {
                    assert_eq!((phase, event), (Phase::WaitingForPage, Event::PageAnswered));
                }
                // Saying it twice says nothing new.
                assert_eq!(step(next, event), next, "{phase:?} {event:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn life_never_goes_back(events in proptest::collection::vec(0_usize..Event::ALL.len(), 0..30)) {
            let mut phase = Phase::Accepted;
            for event in events {
                let next = step(phase, Event::ALL[event]);
                prop_assert!(next >= phase, "{:?} after {:?}", next, phase);
                phase = next;
            }
        }

        #[test]
        fn every_life_ends(events in proptest::collection::vec(0_usize..Event::ALL.len(), 0..30)) {
            let phase = events.iter().fold(Phase::Accepted, |phase, event| step(phase, Event::ALL[*event]));
            prop_assert!(step(step(phase, Event::StopAsked), Event::Gone).is_over());
            prop_assert!(step(phase, Event::Failed).is_over());
        }
    }
}
