//! The cell as a decision sees it.

use std::{collections::BTreeMap, time::Duration};

use cnlab_db::DbError;
use cnlab_model::{
    Timestamp,
    id::{NodeId, VolumeId},
};
use scheduler_core::{
    Holder, Request, Snapshot,
    estimate::RunLengths,
    profile::{self, Profile, Template},
};
use sea_orm::{ColumnTrait, ConnectionTrait, EntityTrait, QueryFilter};

use super::{
    entity::volume,
    grant,
    record::{Gpu, Node, Server},
    roster, server,
};
use crate::error::SchedulerError;

/// How many past runs an estimate of waiting looks at.
const RUNS: u64 = 100;

/// Rows of one moment, and the snapshot made of them.
#[derive(Debug)]
pub(crate) struct Cell {
    /// For the core, with the whole queue.
    pub(crate) snapshot: Snapshot,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gpus: Vec<Gpu>,
    /// Servers that wait, oldest first, each with its request.
    pub(crate) queue: Vec<(Server, Request)>,
}

impl Cell {
    /// Reads the cell. A node that was not heard of since `silent_before` is silent.
    pub(crate) async fn load(
        db: &impl ConnectionTrait,
        silent_before: Timestamp,
    ) -> Result<Self, SchedulerError> {
        // GPUs before grants: a grant that is made between the two reads raises the GPU's
        // version, so that a decision on this cell is refused, not carried out wrongly.
        let gpus = roster::gpus(db).await?;
        let grants = grant::held(db, None).await?;
        let nodes = roster::nodes(db).await?;
        let waiting = server::queued(db).await?;
        let volumes = volumes_of(db, &waiting).await?;
        let queue: Vec<(Server, Request)> = waiting
            .into_iter()
            .map(|server| {
                let request = request(&server, volumes.get(&server.volume).copied());
                (server, request)
            })
            .collect();
        let gpu = |row: &Gpu| scheduler_core::Gpu {
            family: row.family.clone(),
            memory_bytes: row.memory_bytes,
            holders: grants
                .iter()
                .filter(|grant| grant.node == row.node && grant.gpu_uuid == row.uuid)
                .map(|grant| Holder {
                    blocks: grant.blocks,
                    since: grant.granted_at,
                })
                .collect(),
        };
        let mut snapshot = Snapshot::new(nodes.iter().map(|node| {
            scheduler_core::Node {
                id: node.id,
                answers: node.last_seen_at >= silent_before,
                disk_bytes: node.disk_bytes,
                gpus: gpus
                    .iter()
                    .filter(|row| row.node == node.id)
                    .map(|row| (row.uuid.clone(), gpu(row)))
                    .collect(),
            }
        }));
        snapshot.queue = queue.iter().map(|(_, request)| request.clone()).collect();
        snapshot.run_lengths = RunLengths {
            past: grant::lengths(db, RUNS).await?,
            ..RunLengths::default()
        };
        Ok(Self {
            snapshot,
            nodes,
            gpus,
            queue,
        })
    }

    /// The node of this id.
    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The GPU of this id.
    pub(crate) fn gpu(&self, node: NodeId, uuid: &str) -> Option<&Gpu> {
        self.gpus
            .iter()
            .find(|gpu| gpu.node == node && gpu.uuid == uuid)
    }

    /// The profiles that can be asked for here.
    pub(crate) fn profiles(&self, written: &[Profile], templates: &[Template]) -> Vec<Profile> {
        let families = self.gpus.iter().map(|gpu| gpu.family.as_str());
        profile::offered(written, templates, families)
    }
}

/// What a server asks of the core.
pub(crate) fn request(server: &Server, volume_on: Option<NodeId>) -> Request {
    Request {
        family: server.profile.gpu_type.clone(),
        blocks: server.profile.percent,
        storage_bytes: server.storage_bytes,
        volume_on,
    }
}

/// The time before which a node that is silent was last heard of.
pub(crate) fn silent_before(now: Timestamp, ttl: Duration) -> Timestamp {
    let micros = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(micros))
}

async fn volumes_of(
    db: &impl ConnectionTrait,
    servers: &[Server],
) -> Result<BTreeMap<VolumeId, NodeId>, SchedulerError> {
    if servers.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows = volume::Entity::find()
        .filter(volume::Column::Id.is_in(servers.iter().map(|server| server.volume.to_string())))
        .filter(volume::Column::NodeId.is_not_null())
        .all(db)
        .await
        .map_err(DbError::from)?;
    // A volume whose node makes no sense is refused where its server is placed.
    Ok(rows
        .into_iter()
        .filter_map(|row| Some((row.id.parse().ok()?, row.node_id?.parse().ok()?)))
        .collect())
}
