//! The rows as the rest of the service sees them: typed, and checked when they are read.

use std::str::FromStr;

use cnlab_model::{
    Blocks, ProjectName, ServerName, Timestamp,
    id::{GrantId, NodeId, ServerId, TeamId, Ulid, UserId, VolumeId, WorkloadId},
};
use scheduler_core::{
    profile::Profile,
    server::{Phase, State},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

mod run;

use super::entity;
use crate::error::SchedulerError;

pub(super) use run::state_text as run_state_text;
pub(crate) use run::{Exit, Run};

/// Why a server or run failed, as every surface prints it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) cause: String,
    pub(crate) try_this: String,
}

/// What really runs, as its node says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RuntimeFacts {
    pub(crate) simulated_gpu: bool,
    pub(crate) installed: Vec<String>,
    pub(crate) not_installed: Vec<String>,
    pub(crate) enforced: Vec<String>,
    pub(crate) not_enforced: Vec<String>,
    pub(crate) python_version: String,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) name: ServerName,
    pub(crate) project: ProjectName,
    pub(crate) owner: UserId,
    /// Who is charged.
    #[serde(default = "nobody")]
    pub(crate) team: TeamId,
    /// The profile as it was when the server was created.
    pub(crate) profile: Profile,
    /// How many slices of it.
    #[serde(default = "one")]
    pub(crate) gpus: u8,
    pub(crate) image: String,
    pub(crate) image_reference: String,
    pub(crate) install_heavy: bool,
    pub(crate) storage_bytes: u64,
    pub(crate) volume: VolumeId,
    pub(crate) state: State,
    pub(crate) phase_detail: String,
    /// Present exactly while it holds a slice.
    pub(crate) grant: Option<GrantId>,
    /// The node of that slice.
    pub(crate) node: Option<NodeId>,
    pub(crate) created_at: Timestamp,
    pub(crate) queued_at: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ready_at: Option<Timestamp>,
    pub(crate) stopped_at: Option<Timestamp>,
    /// When it is expected to be ready.
    pub(crate) expected_at: Option<Timestamp>,
    pub(crate) failure: Option<Failure>,
    pub(crate) runtime: Option<RuntimeFacts>,
    /// The last report of the node that was taken in, under the present grant.
    pub(crate) sequence: u64,
    /// The trace of the request that it is being started for.
    pub(crate) traceparent: Option<String>,
    /// Grows with every change.
    pub(crate) version: u64,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) id: GrantId,
    pub(crate) fence: u64,
    pub(crate) workload: WorkloadId,
    /// Who is charged.
    #[serde(default = "nobody")]
    pub(crate) team: TeamId,
    pub(crate) node: NodeId,
    pub(crate) gpu_type: String,
    /// On different GPUs.
    pub(crate) slices: Vec<Slice>,
    pub(crate) granted_at: Timestamp,
    /// When the node was first known to have it.
    pub(crate) delivered_at: Option<Timestamp>,
    pub(crate) released_at: Option<Timestamp>,
}

/// A share of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    pub(crate) gpu_uuid: String,
    pub(crate) blocks: Blocks,
    pub(crate) vram_bytes: u64,
}

impl Grant {
    /// Blocks of all its GPUs.
    pub(crate) fn blocks(&self) -> u32 {
        let each = self
            .slices
            .iter()
            .map(|slice| u32::from(slice.blocks.count()));
        each.sum()
    }

    /// Memory of all its GPUs, in bytes.
    pub(crate) fn vram_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.vram_bytes).sum()
    }
}

/// Why nothing new begins on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cordon {
    pub(crate) since: Timestamp,
    /// What its operator said, possibly nothing.
    pub(crate) reason: String,
    /// Whether what ran there was asked to end.
    pub(crate) drain: bool,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) endpoint: String,
    pub(crate) cpu_milli: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_free_bytes: u64,
    pub(crate) not_enforced: Vec<String>,
    /// Short names of images whose environment is built.
    pub(crate) ready_images: Vec<String>,
    pub(crate) registered_at: Timestamp,
    pub(crate) last_seen_at: Timestamp,
    /// The mark of an operator, which registrations and renewals leave alone.
    pub(crate) cordon: Option<Cordon>,
}

/// A GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) node: NodeId,
    pub(crate) uuid: String,
    pub(crate) family: String,
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) simulated: bool,
    pub(crate) driver_version: String,
    pub(crate) taken: Blocks,
    pub(crate) present: bool,
    pub(crate) version: i64,
}

// --- reading and writing columns

/// Integers are stored signed; what does not fit is stored as the largest that does, which
/// no size, count or fence of this world reaches.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The slices of what is older than several.
const fn one() -> u8 {
    1
}

/// The team of what is older than teams.
fn nobody() -> TeamId {
    TeamId::from_ulid(Ulid(0))
}

struct Row<'a> {
    table: &'static str,
    id: &'a str,
}

impl Row<'_> {
    fn wrong(&self, problem: impl std::fmt::Display) -> SchedulerError {
        SchedulerError::Row {
            table: self.table,
            id: self.id.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn parse<T>(&self, text: &str) -> Result<T, SchedulerError>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|error: T::Err| self.wrong(error))
    }

    /// Rows from before there were teams name none.
    fn team(&self, text: &str) -> Result<TeamId, SchedulerError> {
        if text.is_empty() {
            Ok(nobody())
        } else {
            self.parse(text)
        }
    }

    fn maybe<T>(&self, text: Option<&str>) -> Result<Option<T>, SchedulerError>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        text.map(|text| self.parse(text)).transpose()
    }

    fn number<T: TryFrom<i64>>(&self, number: i64) -> Result<T, SchedulerError> {
        T::try_from(number).map_err(|_| self.wrong(format!("{number} is out of range")))
    }

    fn json<T: DeserializeOwned>(&self, text: &str) -> Result<T, SchedulerError> {
        serde_json::from_str(text).map_err(|error| self.wrong(error))
    }
}

/// JSON of a plain record, whose keys are texts, cannot fail.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

const fn phase_text(phase: Phase) -> &'static str {
    match phase {
        Phase::SendingToNode => "sending_to_node",
        Phase::BuildingEnvironment => "building_environment",
        Phase::Starting => "starting",
        Phase::WaitingForPage => "waiting_for_page",
    }
}

/// The text of a state in its column.
pub(super) const fn state_text(state: State) -> &'static str {
    match state {
        State::Queued => "queued",
        State::Provisioning { .. } => "provisioning",
        State::Ready => "ready",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Failed => "failed",
        State::Deleting => "deleting",
        State::Deleted => "deleted",
    }
}

fn read_state(row: &Row<'_>, state: &str, phase: Option<&str>) -> Result<State, SchedulerError> {
    Ok(match (state, phase) {
        ("queued", None) => State::Queued,
        ("ready", None) => State::Ready,
        ("stopping", None) => State::Stopping,
        ("stopped", None) => State::Stopped,
        ("failed", None) => State::Failed,
        ("deleting", None) => State::Deleting,
        ("deleted", None) => State::Deleted,
        ("provisioning", Some(phase)) => {
            let all = [
                Phase::SendingToNode,
                Phase::BuildingEnvironment,
                Phase::Starting,
                Phase::WaitingForPage,
            ];
            let phase = all.into_iter().find(|known| phase_text(*known) == phase);
            State::Provisioning {
                phase: phase.ok_or_else(|| row.wrong("unknown phase"))?,
            }
        }
        _ => return Err(row.wrong(format!("unknown state {state:?} with phase {phase:?}"))),
    })
}

impl TryFrom<entity::server::Model> for Server {
    type Error = SchedulerError;

    fn try_from(model: entity::server::Model) -> Result<Self, SchedulerError> {
        let row = Row {
            table: "servers",
            id: &model.id,
        };
        Ok(Self {
            id: row.parse(&model.id)?,
            name: row.parse(&model.name)?,
            project: row.parse(&model.project)?,
            owner: row.parse(&model.owner_id)?,
            team: row.team(&model.team_id)?,
            profile: Profile {
                percent: row.number(model.percent.into())?,
                memory_bytes: row.number(model.memory_bytes)?,
                cpu_milli: row.number(model.cpu_milli)?,
                name: model.profile.clone(),
                gpu_type: model.gpu_type.clone(),
            },
            gpus: row.number(model.gpus.into())?,
            install_heavy: model.install_heavy,
            storage_bytes: row.number(model.storage_bytes)?,
            volume: row.parse(&model.volume_id)?,
            state: read_state(&row, &model.state, model.phase.as_deref())?,
            grant: row.maybe(model.grant_id.as_deref())?,
            node: row.maybe(model.node_id.as_deref())?,
            created_at: Timestamp(model.created_at),
            queued_at: model.queued_at.map(Timestamp),
            started_at: model.started_at.map(Timestamp),
            ready_at: model.ready_at.map(Timestamp),
            stopped_at: model.stopped_at.map(Timestamp),
            expected_at: model.expected_at.map(Timestamp),
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
            sequence: row.number(model.sequence)?,
            version: row.number(model.version)?,
            image: model.image.clone(),
            image_reference: model.image_reference.clone(),
            phase_detail: model.phase_detail.clone(),
            traceparent: model.traceparent.clone(),
        })
    }
}

impl From<&Server> for entity::server::Model {
    fn from(server: &Server) -> Self {
        let micros = |at: Option<Timestamp>| at.map(|at| at.0);
        Self {
            id: server.id.to_string(),
            name: server.name.to_string(),
            project: server.project.to_string(),
            owner_id: server.owner.to_string(),
            team_id: server.team.to_string(),
            live_name: (server.state != State::Deleted)
                .then(|| format!("{}/{}", server.project, server.name)),
            profile: server.profile.name.clone(),
            gpu_type: server.profile.gpu_type.clone(),
            percent: server.profile.percent.into(),
            memory_bytes: signed(server.profile.memory_bytes),
            cpu_milli: server.profile.cpu_milli.into(),
            gpus: server.gpus.into(),
            image: server.image.clone(),
            image_reference: server.image_reference.clone(),
            install_heavy: server.install_heavy,
            storage_bytes: signed(server.storage_bytes),
            volume_id: server.volume.to_string(),
            state: state_text(server.state).to_owned(),
            phase: match server.state {
                State::Provisioning { phase } => Some(phase_text(phase).to_owned()),
                State::Queued
                | State::Ready
                | State::Stopping
                | State::Stopped
                | State::Failed
                | State::Deleting
                | State::Deleted => None,
            },
            phase_detail: server.phase_detail.clone(),
            grant_id: server.grant.map(String::from),
            node_id: server.node.map(String::from),
            created_at: server.created_at.0,
            queued_at: micros(server.queued_at),
            started_at: micros(server.started_at),
            ready_at: micros(server.ready_at),
            stopped_at: micros(server.stopped_at),
            expected_at: micros(server.expected_at),
            failure: server.failure.as_ref().map(json),
            runtime: server.runtime.as_ref().map(json),
            sequence: signed(server.sequence),
            traceparent: server.traceparent.clone(),
            version: signed(server.version),
        }
    }
}

impl TryFrom<entity::grant::Model> for Grant {
    type Error = SchedulerError;

    fn try_from(model: entity::grant::Model) -> Result<Self, SchedulerError> {
        let row = Row {
            table: "grants",
            id: &model.id,
        };
        Ok(Self {
            id: row.parse(&model.id)?,
            fence: row.number(model.fence)?,
            workload: row.parse(&model.workload_id)?,
            team: row.team(&model.team_id)?,
            node: row.parse(&model.node_id)?,
            slices: row.json(&model.slices)?,
            granted_at: Timestamp(model.granted_at),
            delivered_at: model.delivered_at.map(Timestamp),
            released_at: model.released_at.map(Timestamp),
            gpu_type: model.gpu_type.clone(),
        })
    }
}

impl From<&Grant> for entity::grant::Model {
    fn from(grant: &Grant) -> Self {
        Self {
            id: grant.id.to_string(),
            fence: signed(grant.fence),
            workload_id: grant.workload.to_string(),
            team_id: grant.team.to_string(),
            node_id: grant.node.to_string(),
            gpu_type: grant.gpu_type.clone(),
            slices: json(&grant.slices),
            granted_at: grant.granted_at.0,
            delivered_at: grant.delivered_at.map(|at| at.0),
            released_at: grant.released_at.map(|at| at.0),
        }
    }
}

impl TryFrom<entity::node::Model> for Node {
    type Error = SchedulerError;

    fn try_from(model: entity::node::Model) -> Result<Self, SchedulerError> {
        let row = Row {
            table: "nodes",
            id: &model.id,
        };
        Ok(Self {
            id: row.parse(&model.id)?,
            cpu_milli: row.number(model.cpu_milli)?,
            memory_bytes: row.number(model.memory_bytes)?,
            disk_bytes: row.number(model.disk_bytes)?,
            disk_free_bytes: row.number(model.disk_free_bytes)?,
            not_enforced: row.json(&model.not_enforced)?,
            ready_images: row.json(&model.ready_images)?,
            registered_at: Timestamp(model.registered_at),
            last_seen_at: Timestamp(model.last_seen_at),
            cordon: model.cordoned_at.map(|since| Cordon {
                since: Timestamp(since),
                reason: model.cordon_reason.clone(),
                drain: model.drain,
            }),
            name: model.name.clone(),
            endpoint: model.endpoint.clone(),
        })
    }
}

impl From<&Node> for entity::node::Model {
    fn from(node: &Node) -> Self {
        Self {
            id: node.id.to_string(),
            name: node.name.clone(),
            endpoint: node.endpoint.clone(),
            cpu_milli: node.cpu_milli.into(),
            memory_bytes: signed(node.memory_bytes),
            disk_bytes: signed(node.disk_bytes),
            disk_free_bytes: signed(node.disk_free_bytes),
            not_enforced: json(&node.not_enforced),
            ready_images: json(&node.ready_images),
            registered_at: node.registered_at.0,
            last_seen_at: node.last_seen_at.0,
            cordoned_at: node.cordon.as_ref().map(|cordon| cordon.since.0),
            cordon_reason: node
                .cordon
                .as_ref()
                .map_or_else(String::new, |cordon| cordon.reason.clone()),
            drain: node.cordon.as_ref().is_some_and(|cordon| cordon.drain),
        }
    }
}

impl TryFrom<entity::gpu::Model> for Gpu {
    type Error = SchedulerError;

    fn try_from(model: entity::gpu::Model) -> Result<Self, SchedulerError> {
        let row = Row {
            table: "gpus",
            id: &model.uuid,
        };
        Ok(Self {
            node: row.parse(&model.node_id)?,
            memory_bytes: row.number(model.memory_bytes)?,
            simulated: model.simulated,
            taken: row.parse(&model.taken)?,
            present: model.present,
            version: model.version,
            uuid: model.uuid.clone(),
            family: model.family.clone(),
            name: model.name.clone(),
            driver_version: model.driver_version.clone(),
        })
    }
}

impl From<&Gpu> for entity::gpu::Model {
    fn from(gpu: &Gpu) -> Self {
        Self {
            node_id: gpu.node.to_string(),
            uuid: gpu.uuid.clone(),
            family: gpu.family.clone(),
            name: gpu.name.clone(),
            memory_bytes: signed(gpu.memory_bytes),
            simulated: gpu.simulated,
            driver_version: gpu.driver_version.clone(),
            taken: gpu.taken.to_string(),
            present: gpu.present,
            version: gpu.version,
        }
    }
}

#[cfg(test)]
mod tests;
