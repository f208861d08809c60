//! Runs on the wire.

use std::time::Duration;

use cnlab_proto::{
    convert::{FieldError, decode_timestamp, encode_duration, encode_timestamp},
    scheduler::v1 as pb,
};
use scheduler_core::{
    order::Priority,
    run::{Kind, Phase, State},
};

use super::{encode_failure, encode_grant, encode_runtime};
use crate::{
    app::run::{NewRun, OnLate, RunView},
    store::record::Exit,
};

const fn encode_state(state: State) -> pb::RunState {
    match state {
        State::Queued => pb::RunState::Queued,
        State::Provisioning { .. } => pb::RunState::Provisioning,
        State::Running => pb::RunState::Running,
        State::Cancelling => pb::RunState::Cancelling,
        State::Succeeded => pb::RunState::Succeeded,
        State::Failed => pb::RunState::Failed,
        State::Cancelled => pb::RunState::Cancelled,
        State::TimedOut => pb::RunState::TimedOut,
        State::Deleting => pb::RunState::Deleting,
        State::Deleted => pb::RunState::Deleted,
    }
}

const fn encode_phase(state: State) -> pb::RunPhase {
    match state {
        State::Queued => pb::RunPhase::WaitingForSlice,
        State::Provisioning { phase } => match phase {
            Phase::SendingToNode => pb::RunPhase::SendingToNode,
            Phase::BuildingEnvironment => pb::RunPhase::BuildingEnvironment,
            Phase::Starting | Phase::WaitingForPage => pb::RunPhase::Starting,
        },
        State::Running
        | State::Cancelling
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::TimedOut
        | State::Deleting
        | State::Deleted => pb::RunPhase::Unspecified,
    }
}

pub(super) const fn encode_priority(priority: Priority) -> pb::Priority {
    match priority {
        Priority::Low => pb::Priority::Low,
        Priority::Normal => pb::Priority::Normal,
        Priority::High => pb::Priority::High,
        Priority::Critical => pb::Priority::Critical,
    }
}

const fn encode_kind(kind: Kind) -> pb::RunKind {
    match kind {
        Kind::Training => pb::RunKind::Training,
        Kind::Inference => pb::RunKind::Inference,
        Kind::Evaluation => pb::RunKind::Evaluation,
    }
}

pub(crate) fn encode_run(view: RunView) -> pb::Run {
    let run = view.run;
    let (exit_code, signal) = match run.exit {
        None => (None, None),
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
    };
    pb::Run {
        id: run.id.to_string(),
        name: run.name.to_string(),
        project: run.project.to_string(),
        owner_id: run.owner.to_string(),
        profile: run.profile.name,
        image: run.image,
        image_reference: run.image_reference,
        command: run.command,
        storage_bytes: run.storage_bytes,
        volume_id: run.volume.to_string(),
        priority: encode_priority(run.priority).into(),
        run_kind: encode_kind(run.kind).into(),
        deadline: run.deadline.map(encode_timestamp),
        max_runtime: run.max_runtime.map(encode_duration),
        install_heavy: run.install_heavy,
        state: encode_state(run.state).into(),
        phase: encode_phase(run.state).into(),
        phase_detail: run.phase_detail,
        eta: view.eta.map(encode_duration),
        node_id: run.node.map(String::from).unwrap_or_default(),
        node_name: view.node_name.unwrap_or_default(),
        grant: view.grant.as_ref().map(encode_grant),
        created_at: Some(encode_timestamp(run.created_at)),
        placed_at: run.placed_at.map(encode_timestamp),
        started_at: run.started_at.map(encode_timestamp),
        ended_at: run.ended_at.map(encode_timestamp),
        exit_code,
        signal,
        failure: run.failure.map(encode_failure),
        runtime: run.runtime.map(encode_runtime),
        attempt: run.attempt,
        requeued_because: run.requeued_because,
        version: run.version,
        gpus: run.gpus.into(),
    }
}

/// The known value of an enum; one from a later version is refused, not guessed.
fn known<T: TryFrom<i32>>(field: &str, value: i32) -> Result<T, FieldError> {
    T::try_from(value).map_err(|_| FieldError::new(field, format!("{value} is not known")))
}

pub(crate) fn decode_new_run(request: pb::SubmitRunRequest) -> Result<NewRun, FieldError> {
    let priority = match known("priority", request.priority)? {
        pb::Priority::Low => Priority::Low,
        pb::Priority::Unspecified | pb::Priority::Normal => Priority::Normal,
        pb::Priority::High => Priority::High,
        pb::Priority::Critical => Priority::Critical,
    };
    let kind = match known("run_kind", request.run_kind)? {
        pb::RunKind::Unspecified | pb::RunKind::Training => Kind::Training,
        pb::RunKind::Inference => Kind::Inference,
        pb::RunKind::Evaluation => Kind::Evaluation,
    };
    let on_late = match known("on_late", request.on_late)? {
        pb::OnLate::Unspecified | pb::OnLate::Refuse => OnLate::Refuse,
        pb::OnLate::Accept => OnLate::Accept,
    };
    Ok(NewRun {
        name: request.name,
        image: request.image,
        profile: request.profile,
        command: request.command,
        storage_bytes: request.storage_bytes,
        project: request.project,
        priority,
        kind,
        deadline: match &request.deadline {
            Some(_) => Some(decode_timestamp("deadline", request.deadline.as_ref())?),
            None => None,
        },
        on_late,
        max_runtime: request.max_runtime.as_ref().map(longest),
        install_heavy: request.install_heavy,
        gpus: request.gpus,
    })
}

/// A longest time; what is not longer than nothing is nothing.
fn longest(span: &prost_types::Duration) -> Duration {
    match (u64::try_from(span.seconds), u32::try_from(span.nanos)) {
        // Whole microseconds, as they are stored.
        (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos / 1_000 * 1_000),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_and_what_is_not_said_has_a_default() {
        let ask = decode_new_run(pb::SubmitRunRequest::default()).unwrap();
        assert_eq!(ask.priority, Priority::Normal);
        assert_eq!((ask.kind, ask.on_late), (Kind::Training, OnLate::Refuse));
        assert_eq!((ask.deadline, ask.max_runtime), (None, None));
        type Change = fn(&mut pb::SubmitRunRequest);
        let changes: [(&str, Change); 4] = [
            ("priority", |ask| ask.priority = 5),
            ("run_kind", |ask| ask.run_kind = -1),
            ("on_late", |ask| ask.on_late = 3),
            ("deadline", |ask| {
                ask.deadline = Some(prost_types::Timestamp {
                    seconds: 1,
                    nanos: -1,
                });
            }),
        ];
        for (field, change) in changes {
            let mut ask = pb::SubmitRunRequest::default();
            change(&mut ask);
            assert_eq!(decode_new_run(ask).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_negative_time_is_none() {
        let span = |seconds, nanos| longest(&prost_types::Duration { seconds, nanos });
        assert_eq!(span(90, 1_500), Duration::new(90, 1_000));
        for (seconds, nanos) in [(0, 0), (-5, 0), (0, -1), (i64::MIN, i32::MIN), (0, 999)] {
            assert!(span(seconds, nanos).is_zero());
        }
    }
}
