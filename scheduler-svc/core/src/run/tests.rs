use proptest::prelude::*;

use super::*;

const PHASES: [Phase; 3] = [
    Phase::SendingToNode,
    Phase::BuildingEnvironment,
    Phase::Starting,
];

fn states() -> Vec<State> {
    let provisioning = PHASES.map(|phase| State::Provisioning { phase });
    [
        State::Queued,
        State::Running,
        State::Cancelling,
        State::Succeeded,
        State::Failed,
        State::Cancelled,
        State::TimedOut,
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
        Event::CommandStarted,
        Event::EndingBegun,
        Event::CommandSucceeded,
        Event::CommandFailed,
        Event::TimeOver,
        Event::Requeued,
        Event::CancelRequested,
        Event::DeleteRequested,
        Event::VolumeRemoved,
    ]
    .into_iter()
    .chain(PHASES.map(Event::PhaseReached))
    .collect()
}

fn walked(events: &[Event]) -> State {
    events
        .iter()
        .fold(State::Queued, |state, event| step(state, *event).unwrap())
}

#[test]
fn a_run_ends_as_its_command_did() {
    let up = [
        Event::SlicePlaced,
        Event::PhaseReached(Phase::BuildingEnvironment),
        Event::PhaseReached(Phase::Starting),
        Event::CommandStarted,
    ];
    for (end, state) in [
        (Event::CommandSucceeded, State::Succeeded),
        (Event::CommandFailed, State::Failed),
        (Event::TimeOver, State::TimedOut),
        (Event::Requeued, State::Queued),
    ] {
        assert_eq!(walked(&[&up[..], &[end]].concat()), state);
        // A short command may be over before anybody heard that it began.
        assert_eq!(walked(&[&up[..1], &[end]].concat()), state);
        for asked in [&up[..1], &up[..3], &up[..]] {
            let cancelled = [asked, &[Event::CancelRequested, end]].concat();
            assert_eq!(walked(&cancelled), State::Cancelled);
        }
    }
    assert_eq!(walked(&[Event::CancelRequested]), State::Cancelled);
}

#[test]
fn a_lost_node_is_forgiven_once() {
    let lost = |losses| walked(&[Event::SlicePlaced, after_loss(losses)]);
    assert_eq!(lost(0), State::Queued);
    assert_eq!(lost(1), State::Failed);
    assert_eq!(lost(u32::MAX), State::Failed);
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
fn what_is_over_is_over() {
    for state in states().into_iter().filter(|state| state.is_over()) {
        assert!(!state.may_run());
        for event in events() {
            let next = step(state, event).unwrap_or(state);
            assert!(
                next == state || (next == State::Deleting && event == Event::DeleteRequested),
                "{state:?} {event:?} {next:?}"
            );
        }
    }
}

#[test]
fn a_refusal_says_what_and_where() {
    assert_eq!(
        step(State::Deleting, Event::CancelRequested)
            .unwrap_err()
            .to_string(),
        "cancelling is not possible while the run is being deleted"
    );
}

proptest! {
    #[test]
    fn whatever_happens(walk in proptest::collection::vec(0..events().len(), 0..40)) {
        let mut state = State::Queued;
        let mut cancelled = false;
        for index in walk {
            let event = events()[index];
            let next = step(state, event).unwrap_or(state);
            // Only a placement leads to something that runs.
            if next.may_run() && !state.may_run() {
                prop_assert!(event == Event::SlicePlaced || next == State::Deleting);
            }
            cancelled |= event == Event::CancelRequested && !state.is_over();
            if cancelled {
                prop_assert!(matches!(
                    next,
                    State::Cancelling | State::Cancelled | State::Deleting | State::Deleted
                ) || state == State::Deleting);
            }
            if state == State::Deleting {
                prop_assert!(matches!(next, State::Deleting | State::Deleted));
            }
            state = next;
        }
    }
}
