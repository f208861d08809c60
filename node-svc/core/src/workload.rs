//! The life cycle of one life of a workload (one launch under one fence).
//!
//! ```text
//! Accepted ─▶ BuildingEnvironment ─▶ Starting ─▶ WaitingForPage ─▶ Ready      a server
//!     │                 │               ├──────▶ Running ─▶ Succeeded          a run
//!     ├─────────────────┴───── any of them, when asked ─▶ Stopping ─▶ Stopped
//!     └─────────────────┴───── any of them, by itself ──▶ Failed
//! ```
//!
//! **Invariants**: `Stopped`, `Failed` and `Succeeded` are left by no event; `Ready` is reached only
//! by a page that answered, `Succeeded` only by a command that was not asked to stop; a life that
//! was asked to stop can no longer fail or come up.

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
    /// The command of a run runs.
    Running,
    /// Its processes are being ended on request.
    Stopping,
    /// Ended on request.
    Stopped,
    /// Ended by itself, or never came up.
    Failed,
    /// The command ended with exit code 0.
    Succeeded,
}

impl Phase {
    /// Every phase, in the order of life.
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::BuildingEnvironment,
        Self::Starting,
        Self::WaitingForPage,
        Self::Ready,
        Self::Running,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Succeeded,
    ];

    /// Whether no event can change it any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed | Self::Succeeded)
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
    /// The command of a run was started, or found again by a new node-svc.
    CommandFound,
    /// The command ended with exit code 0; all processes are seen gone.
    Succeeded,
    /// Somebody asked for the end.
    StopAsked,
    /// All processes are seen gone, or none was ever started.
    Gone,
    /// It cannot come up, or ended without being asked to; all processes are seen gone.
    Failed,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::BuildBegan,
        Self::StartBegan,
        Self::ProcessFound,
        Self::PageAnswered,
        Self::CommandFound,
        Self::Succeeded,
        Self::StopAsked,
        Self::Gone,
        Self::Failed,
    ];
}

/// The phase after the event; the same phase when the event says nothing new, comes late, or
/// comes too early to be true.
#[must_use]
pub const fn step(phase: Phase, event: Event) -> Phase {
    if phase.is_over() {
        return phase;
    }
    match (event, phase) {
        (Event::BuildBegan, Phase::Accepted) => Phase::BuildingEnvironment,
        (Event::StartBegan, Phase::Accepted | Phase::BuildingEnvironment) => Phase::Starting,
        // A new node-svc may find a process whose start it did not see.
        (Event::ProcessFound, Phase::Accepted | Phase::BuildingEnvironment | Phase::Starting) => {
            Phase::WaitingForPage
        }
        (Event::PageAnswered, Phase::WaitingForPage) => Phase::Ready,
        (Event::CommandFound, Phase::Accepted | Phase::BuildingEnvironment | Phase::Starting) => {
            Phase::Running
        }
        // Asked to stop: whatever ended it, it ended as asked.
        (Event::Succeeded | Event::Gone | Event::Failed, Phase::Stopping) => Phase::Stopped,
        (Event::Succeeded, _) => Phase::Succeeded,
        (Event::Gone | Event::Failed, _) => Phase::Failed,
        (Event::StopAsked, _) => Phase::Stopping,
        (
            Event::BuildBegan
            | Event::StartBegan
            | Event::ProcessFound
            | Event::PageAnswered
            | Event::CommandFound,
            same,
        ) => same,
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
    fn a_command_runs_and_ends() {
        let started = [Event::BuildBegan, Event::StartBegan, Event::CommandFound];
        let running = started.into_iter().fold(Phase::Accepted, step);
        assert_eq!(running, Phase::Running);
        for (event, next) in [
            (Event::Succeeded, Phase::Succeeded),
            (Event::Failed, Phase::Failed),
            (Event::StopAsked, Phase::Stopping),
            (Event::PageAnswered, Phase::Running),
        ] {
            assert_eq!(step(running, event), next);
        }
        assert_eq!(step(Phase::Stopping, Event::Succeeded), Phase::Stopped);
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
                if next == Phase::Succeeded && phase != Phase::Succeeded {
                    assert_eq!(event, Event::Succeeded);
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
