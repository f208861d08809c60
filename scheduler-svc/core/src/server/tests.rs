use proptest::prelude::*;

use super::*;

const PHASES: [Phase; 4] = [
    Phase::SendingToNode,
    Phase::BuildingEnvironment,
    Phase::Starting,
    Phase::WaitingForPage,
];

fn states() -> Vec<State> {
    let provisioning = PHASES.map(|phase| State::Provisioning { phase });
    [
        State::Queued,
        State::Ready,
        State::Stopping,
        State::Stopped,
        State::Failed,
        State::Deleting,
        State::Deleted,
    ]
    .into_iter()
    .chain(provisioning)
    .collect()
}

fn events() -> Vec<Event> {
    [
        Event::SlicePlaced,
        Event::PageAnswered,
        Event::EndingBegun,
        Event::WorkloadEnded,
        Event::WorkloadFailed,
        Event::StartRequested,
        Event::StopRequested,
        Event::DeleteRequested,
        Event::VolumeRemoved,
    ]
    .into_iter()
    .chain(PHASES.map(Event::PhaseReached))
    .collect()
}

#[test]
fn the_quickstart_passes_through_every_phase() {
    let mut state = State::Queued;
    for event in [
        Event::SlicePlaced,
        Event::PhaseReached(Phase::BuildingEnvironment),
        Event::PhaseReached(Phase::Starting),
        Event::PhaseReached(Phase::WaitingForPage),
        Event::PageAnswered,
        Event::StopRequested,
        Event::EndingBegun,
        Event::WorkloadEnded,
        Event::StartRequested,
        Event::SlicePlaced,
        Event::PageAnswered,
        Event::DeleteRequested,
        Event::WorkloadEnded,
        Event::VolumeRemoved,
    ] {
        state = step(state, event).unwrap();
    }
    assert_eq!(state, State::Deleted);
}

#[test]
fn stop_works_while_pending() {
    assert_eq!(
        step(State::Queued, Event::StopRequested),
        Ok(State::Stopped)
    );
    for phase in PHASES {
        let pending = State::Provisioning { phase };
        assert_eq!(step(pending, Event::StopRequested), Ok(State::Stopping));
    }
}

#[test]
fn an_accepted_event_can_be_repeated() {
    for state in states() {
        for event in events() {
            // A slice is granted once; the shell's compare-and-set tells a repetition.
            if event == Event::SlicePlaced {
                continue;
            }
            if let Ok(next) = step(state, event)
                && next != State::Deleted
            {
                assert_eq!(step(next, event), Ok(next), "{state:?} {event:?}");
            }
        }
    }
}

#[test]
fn a_refusal_says_what_and_where() {
    assert_eq!(
        step(State::Stopping, Event::StartRequested)
            .unwrap_err()
            .to_string(),
        "starting is not possible while the server is stopping"
    );
}

proptest! {
    #[test]
    fn deleted_is_for_ever_and_deleting_ends_only_there(
        walk in proptest::collection::vec(0..events().len(), 0..40)
    ) {
        let mut state = State::Queued;
        for index in walk {
            let next = step(state, events()[index]).unwrap_or(state);
            match state {
                State::Deleted => prop_assert_eq!(next, State::Deleted),
                State::Deleting => {
                    prop_assert!(matches!(next, State::Deleting | State::Deleted));
                }
                State::Queued
                | State::Provisioning { .. }
                | State::Ready
                | State::Stopping
                | State::Stopped
                | State::Failed => {}
            }
            // Only a placement leads to something that runs.
            if next.may_run() && !state.may_run() {
                prop_assert!(
                    events()[index] == Event::SlicePlaced || next == State::Deleting
                );
            }
            state = next;
        }
    }
}
