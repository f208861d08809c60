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
    record::{Gpu, Grant, Node, Server},
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
        // Grouped once: a cell has thousands of GPUs and of grants.
        let mut holders: BTreeMap<(NodeId, &str), Vec<Holder>> = BTreeMap::new();
        for grant in &grants {
            let key = (grant.node, grant.gpu_uuid.as_str());
            holders.entry(key).or_default().push(holder(grant));
        }
        let mut by_node: BTreeMap<NodeId, BTreeMap<String, scheduler_core::Gpu>> = BTreeMap::new();
        for row in &gpus {
            let gpu = scheduler_core::Gpu {
                family: row.family.clone(),
                memory_bytes: row.memory_bytes,
                holders: holders
                    .remove(&(row.node, row.uuid.as_str()))
                    .unwrap_or_default(),
            };
            by_node
                .entry(row.node)
                .or_default()
                .insert(row.uuid.clone(), gpu);
        }
        let mut snapshot = Snapshot::new(nodes.iter().map(|node| scheduler_core::Node {
            id: node.id,
            answers: node.last_seen_at >= silent_before,
            disk_bytes: node.disk_bytes,
            gpus: by_node.remove(&node.id).unwrap_or_default(),
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

    /// Takes in a grant that was made on this cell, as if it had been read again.
    pub(crate) fn take_in(&mut self, grant: &Grant) {
        self.snapshot
            .hold(grant.node, &grant.gpu_uuid, holder(grant));
        let row = self
            .gpus
            .iter_mut()
            .find(|gpu| gpu.node == grant.node && gpu.uuid == grant.gpu_uuid);
        if let Some(row) = row {
            row.taken = row.taken.union(grant.blocks);
            row.version = row.version.saturating_add(1);
        }
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

fn holder(grant: &Grant) -> Holder {
    Holder {
        blocks: grant.blocks,
        since: grant.granted_at,
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
    let mut found = BTreeMap::new();
    // Far below the variables that a statement may have.
    for servers in servers.chunks(1000) {
        let ids = servers.iter().map(|server| server.volume.to_string());
        let rows = volume::Entity::find()
            .filter(volume::Column::Id.is_in(ids))
            .filter(volume::Column::NodeId.is_not_null())
            .all(db)
            .await
            .map_err(DbError::from)?;
        // A volume whose node makes no sense is refused where its server is placed.
        for row in rows {
            let node = row.node_id.and_then(|node| node.parse::<NodeId>().ok());
            if let (Ok(volume), Some(node)) = (row.id.parse::<VolumeId>(), node) {
                found.insert(volume, node);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use cnlab_model::{
        Blocks,
        id::{GrantId, ServerId, Ulid},
    };

    use super::*;

    #[test]
    fn a_grant_is_taken_in_as_if_the_cell_had_been_read_again() {
        let node = NodeId::from_ulid(Ulid(1));
        let gpu = |uuid: &str| Gpu {
            node,
            uuid: uuid.to_owned(),
            family: "H100".to_owned(),
            name: "NVIDIA H100".to_owned(),
            memory_bytes: 80 << 30,
            simulated: true,
            driver_version: String::new(),
            taken: Blocks::EMPTY,
            present: true,
            version: 4,
        };
        let free = || scheduler_core::Gpu {
            family: "H100".to_owned(),
            memory_bytes: 80 << 30,
            holders: Vec::new(),
        };
        let mut cell = Cell {
            snapshot: Snapshot::new([scheduler_core::Node {
                id: node,
                answers: true,
                disk_bytes: 1 << 40,
                gpus: [("a".to_owned(), free()), ("b".to_owned(), free())].into(),
            }]),
            nodes: Vec::new(),
            gpus: vec![gpu("a"), gpu("b")],
            queue: Vec::new(),
        };
        let blocks: Blocks = "0-24".parse().unwrap();
        cell.take_in(&Grant {
            id: GrantId::from_ulid(Ulid(2)),
            fence: 1,
            server: ServerId::from_ulid(Ulid(3)),
            node,
            gpu_uuid: "b".to_owned(),
            gpu_type: "H100".to_owned(),
            blocks,
            vram_bytes: 20 << 30,
            granted_at: Timestamp(1),
            delivered_at: None,
            released_at: None,
        });
        let seen = cell.snapshot.gpus().map(|(_, _, gpu)| gpu.free());
        assert!(seen.eq([Blocks::ALL, Blocks::ALL.minus(blocks)]));
        let rows = cell.gpus.iter().map(|gpu| (gpu.taken, gpu.version));
        assert!(rows.eq([(Blocks::EMPTY, 4), (blocks, 5)]));
    }
}
