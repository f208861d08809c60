//! A run as the rest of the service sees it.

use std::time::Duration;

use cnlab_model::{
    ProjectName, RunName, Timestamp,
    id::{GrantId, NodeId, RunId, TeamId, UserId, VolumeId},
};
use scheduler_core::{
    order::Priority,
    profile::Profile,
    run::{Kind, Phase, State},
};
use serde::{Deserialize, Serialize};

use super::{Failure, Row, RuntimeFacts, json, phase_text, signed};
use crate::{error::SchedulerError, store::entity};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// It returned this.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) name: RunName,
    pub(crate) project: ProjectName,
    pub(crate) owner: UserId,
    pub(crate) team: TeamId,
    /// The profile as it was when the run was submitted.
    pub(crate) profile: Profile,
    /// How many slices of it.
    #[serde(default = "super::one")]
    pub(crate) gpus: u8,
    pub(crate) image: String,
    pub(crate) image_reference: String,
    pub(crate) install_heavy: bool,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    pub(crate) storage_bytes: u64,
    /// Of this attempt: each one has its own.
    pub(crate) volume: VolumeId,
    pub(crate) priority: Priority,
    pub(crate) kind: Kind,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) state: State,
    pub(crate) phase_detail: String,
    /// Present exactly while it holds a slice.
    pub(crate) grant: Option<GrantId>,
    /// The node of that slice.
    pub(crate) node: Option<NodeId>,
    /// Since when it waits; its place in the queue is kept when it begins anew.
    pub(crate) created_at: Timestamp,
    pub(crate) placed_at: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    /// When its command is expected to begin.
    pub(crate) expected_at: Option<Timestamp>,
    pub(crate) exit: Option<Exit>,
    pub(crate) failure: Option<Failure>,
    pub(crate) runtime: Option<RuntimeFacts>,
    /// 1 for the first.
    pub(crate) attempt: u32,
    /// How often it began anew because its node was lost.
    pub(crate) losses: u32,
    pub(crate) requeued_because: String,
    /// The last report of the node that was taken in, under the present grant.
    pub(crate) sequence: u64,
    /// The trace of the request that submitted it.
    pub(crate) traceparent: Option<String>,
    /// Grows with every change.
    pub(crate) version: u64,
}

/// The text of a state in its column.
pub(in crate::store) const fn state_text(state: State) -> &'static str {
    match state {
        State::Queued => "queued",
        State::Provisioning { .. } => "provisioning",
        State::Running => "running",
        State::Cancelling => "cancelling",
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
        State::TimedOut => "timed_out",
        State::Deleting => "deleting",
        State::Deleted => "deleted",
    }
}

fn read_state(row: &Row<'_>, state: &str, phase: Option<&str>) -> Result<State, SchedulerError> {
    Ok(match (state, phase) {
        ("queued", None) => State::Queued,
        ("running", None) => State::Running,
        ("cancelling", None) => State::Cancelling,
        ("succeeded", None) => State::Succeeded,
        ("failed", None) => State::Failed,
        ("cancelled", None) => State::Cancelled,
        ("timed_out", None) => State::TimedOut,
        ("deleting", None) => State::Deleting,
        ("deleted", None) => State::Deleted,
        ("provisioning", Some(phase)) => {
            let all = [
                Phase::SendingToNode,
                Phase::BuildingEnvironment,
                Phase::Starting,
            ];
            let phase = all.into_iter().find(|known| phase_text(*known) == phase);
            State::Provisioning {
                phase: phase.ok_or_else(|| row.wrong("unknown phase"))?,
            }
        }
        _ => return Err(row.wrong(format!("unknown state {state:?} with phase {phase:?}"))),
    })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl TryFrom<entity::run::Model> for Run {
    type Error = SchedulerError;

    fn try_from(model: entity::run::Model) -> Result<Self, SchedulerError> {
        let row = Row {
            table: "runs",
            id: &model.id,
        };
        let priority = Priority::ALL
            .into_iter()
            .find(|priority| priority.name() == model.priority)
            .ok_or_else(|| row.wrong("unknown priority"))?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == model.kind)
            .ok_or_else(|| row.wrong("unknown kind"))?;
        Ok(Self {
            id: row.parse(&model.id)?,
            name: row.parse(&model.name)?,
            project: row.parse(&model.project)?,
            owner: row.parse(&model.owner_id)?,
            team: row.parse(&model.team_id)?,
            profile: Profile {
                percent: row.number(model.percent.into())?,
                memory_bytes: row.number(model.memory_bytes)?,
                cpu_milli: row.number(model.cpu_milli)?,
                name: model.profile.clone(),
                gpu_type: model.gpu_type.clone(),
            },
            gpus: row.number(model.gpus.into())?,
            install_heavy: model.install_heavy,
            command: row.json(&model.command)?,
            storage_bytes: row.number(model.storage_bytes)?,
            volume: row.parse(&model.volume_id)?,
            priority,
            kind,
            deadline: model.deadline.map(Timestamp),
            max_runtime: match model.max_runtime_us {
                Some(micros) => Some(Duration::from_micros(row.number(micros)?)),
                None => None,
            },
            state: read_state(&row, &model.state, model.phase.as_deref())?,
            grant: row.maybe(model.grant_id.as_deref())?,
            node: row.maybe(model.node_id.as_deref())?,
            created_at: Timestamp(model.created_at),
            placed_at: model.placed_at.map(Timestamp),
            started_at: model.started_at.map(Timestamp),
            ended_at: model.ended_at.map(Timestamp),
            expected_at: model.expected_at.map(Timestamp),
            exit: match (model.exit_code, model.exit_signal) {
                (None, None) => None,
                (Some(code), None) => Some(Exit::Code(code)),
                (None, Some(signal)) => Some(Exit::Signal(signal)),
                (Some(_), Some(_)) => return Err(row.wrong("two exits")),
            },
            failure: model
                .failure
                .as_deref()
                .map(|text| row.json(text))
                .transpose()?,
            runtime: model
                .runtime
                .as_deref()
                .map(|text| row.json(text))
                .transpose()?,
            attempt: row.number(model.attempt.into())?,
            losses: row.number(model.losses.into())?,
            sequence: row.number(model.sequence)?,
            version: row.number(model.version)?,
            image: model.image.clone(),
            image_reference: model.image_reference.clone(),
            phase_detail: model.phase_detail.clone(),
            requeued_because: model.requeued_because.clone(),
            traceparent: model.traceparent.clone(),
        })
    }
}

impl From<&Run> for entity::run::Model {
    fn from(run: &Run) -> Self {
        let at = |at: Option<Timestamp>| at.map(|at| at.0);
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        let (exit_code, exit_signal) = match run.exit {
            None => (None, None),
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
        };
        Self {
            id: run.id.to_string(),
            name: run.name.to_string(),
            project: run.project.to_string(),
            owner_id: run.owner.to_string(),
            team_id: run.team.to_string(),
            live_name: (run.state != State::Deleted)
                .then(|| format!("{}/{}", run.project, run.name)),
            profile: run.profile.name.clone(),
            gpu_type: run.profile.gpu_type.clone(),
            percent: run.profile.percent.into(),
            memory_bytes: signed(run.profile.memory_bytes),
            cpu_milli: run.profile.cpu_milli.into(),
            gpus: run.gpus.into(),
            image: run.image.clone(),
            image_reference: run.image_reference.clone(),
            install_heavy: run.install_heavy,
            command: json(&run.command),
            storage_bytes: signed(run.storage_bytes),
            volume_id: run.volume.to_string(),
            priority: run.priority.name().to_owned(),
            kind: run.kind.name().to_owned(),
            deadline: at(run.deadline),
            max_runtime_us: run.max_runtime.map(micros),
            state: state_text(run.state).to_owned(),
            phase: match run.state {
                State::Provisioning { phase } => Some(phase_text(phase).to_owned()),
                State::Queued
                | State::Running
                | State::Cancelling
                | State::Succeeded
                | State::Failed
                | State::Cancelled
                | State::TimedOut
                | State::Deleting
                | State::Deleted => None,
            },
            phase_detail: run.phase_detail.clone(),
            grant_id: run.grant.map(String::from),
            node_id: run.node.map(String::from),
            created_at: run.created_at.0,
            placed_at: at(run.placed_at),
            started_at: at(run.started_at),
            ended_at: at(run.ended_at),
            expected_at: at(run.expected_at),
            exit_code,
            exit_signal,
            failure: run.failure.as_ref().map(json),
            runtime: run.runtime.as_ref().map(json),
            attempt: count(run.attempt),
            losses: count(run.losses),
            requeued_because: run.requeued_because.clone(),
            sequence: signed(run.sequence),
            traceparent: run.traceparent.clone(),
            version: signed(run.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    fn run() -> Run {
        Run {
            id: RunId::from_ulid(Ulid(1)),
            name: "a".parse().unwrap(),
            project: "o/p".parse().unwrap(),
            owner: UserId::from_ulid(Ulid(2)),
            team: TeamId::from_ulid(Ulid(3)),
            profile: Profile {
                name: "p".to_owned(),
                gpu_type: "H100".to_owned(),
                percent: 25,
                memory_bytes: u64::from(u32::MAX) + 1,
                cpu_milli: u32::MAX,
            },
            gpus: 8,
            image: "i".to_owned(),
            image_reference: "r".to_owned(),
            install_heavy: true,
            command: vec!["python".to_owned(), "ä \"b\"\n".to_owned()],
            storage_bytes: 1,
            volume: VolumeId::from_ulid(Ulid(4)),
            priority: Priority::High,
            kind: Kind::Evaluation,
            deadline: Some(Timestamp(9)),
            max_runtime: Some(Duration::from_micros(7)),
            state: State::Queued,
            phase_detail: "d".to_owned(),
            grant: Some(GrantId::from_ulid(Ulid(5))),
            node: Some(NodeId::from_ulid(Ulid(6))),
            created_at: Timestamp(1),
            placed_at: Some(Timestamp(2)),
            started_at: Some(Timestamp(3)),
            ended_at: None,
            expected_at: Some(Timestamp(4)),
            exit: None,
            failure: Some(Failure::default()),
            runtime: Some(RuntimeFacts::default()),
            attempt: 2,
            losses: 1,
            requeued_because: "lost".to_owned(),
            sequence: 6,
            traceparent: None,
            version: 7,
        }
    }

    #[test]
    fn every_run_survives_its_row() {
        let states = [
            State::Queued,
            State::Running,
            State::Cancelling,
            State::Succeeded,
            State::Failed,
            State::Cancelled,
            State::TimedOut,
            State::Deleting,
            State::Deleted,
            State::Provisioning {
                phase: Phase::BuildingEnvironment,
            },
        ];
        let exits = [None, Some(Exit::Code(-3)), Some(Exit::Signal(9))];
        for (index, state) in states.into_iter().enumerate() {
            let run = Run {
                state,
                exit: exits[index % 3],
                priority: Priority::ALL[index % 4],
                kind: Kind::ALL[index % 3],
                ..run()
            };
            let row = entity::run::Model::from(&run);
            assert_eq!(row.live_name.is_none(), state == State::Deleted);
            assert_eq!(Run::try_from(row).unwrap(), run);
        }
    }

    #[test]
    fn a_row_that_makes_no_sense_is_refused() {
        type Change = fn(&mut entity::run::Model);
        let changes: [Change; 6] = [
            |row| row.state = "ready".to_owned(),
            |row| row.phase = Some("starting".to_owned()),
            |row| row.priority = "urgent".to_owned(),
            |row| row.kind = "interactive".to_owned(),
            |row| row.command = "python".to_owned(),
            |row| (row.exit_code, row.exit_signal) = (Some(1), Some(9)),
        ];
        for change in changes {
            let mut row = entity::run::Model::from(&run());
            change(&mut row);
            let error = Run::try_from(row).unwrap_err();
            assert!(error.to_string().contains("makes no sense"), "{error}");
        }
    }
}
