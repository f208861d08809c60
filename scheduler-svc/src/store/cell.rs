//! The cell as a decision sees it.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::{
    Timestamp,
    id::{NodeId, VolumeId, WorkloadId},
};
use scheduler_core::{
    Holder, Request, Snapshot,
    estimate::RunLengths,
    order::{Priority, Turn},
    profile::{self, Profile, Template},
};
use sea_orm::ConnectionTrait;

use super::{
    grant,
    record::{Gpu, Grant, Node, Run, Server},
    roster, run, server, volume,
};
use crate::error::SchedulerError;

/// How many past runs an estimate of waiting looks at.
const RUNS: u64 = 100;

/// Somebody who waits for a slice.
#[derive(Debug, Clone)]
pub(crate) enum Waiter {
    Server(Box<Server>),
    Run(Box<Run>),
}

impl Waiter {
    pub(crate) fn id(&self) -> WorkloadId {
        match self {
            Self::Server(server) => server.id.into(),
            Self::Run(run) => run.id.into(),
        }
    }

    pub(crate) fn image(&self) -> &str {
        match self {
            Self::Server(server) => &server.image,
            Self::Run(run) => &run.image,
        }
    }

    /// The trace of the request that it waits for.
    pub(crate) fn traceparent(&self) -> Option<&str> {
        match self {
            Self::Server(server) => server.traceparent.as_deref(),
            Self::Run(run) => run.traceparent.as_deref(),
        }
    }

    fn volume(&self) -> VolumeId {
        match self {
            Self::Server(server) => server.volume,
            Self::Run(run) => run.volume,
        }
    }

    fn turn(&self) -> Turn {
        match self {
            Self::Server(server) => server_turn(server.queued_at.unwrap_or(server.created_at)),
            Self::Run(run) => run.turn(),
        }
    }
}

/// The place in the queue of a server that waits since a time.
pub(crate) const fn server_turn(since: Timestamp) -> Turn {
    Turn::new(Priority::Normal, None, since)
}

/// One place in the queue.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) turn: Turn,
    pub(crate) who: Waiter,
    pub(crate) request: Request,
}

/// Rows of one moment, and the snapshot made of them.
#[derive(Debug)]
pub(crate) struct Cell {
    /// For the core, with the whole queue.
    pub(crate) snapshot: Snapshot,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gpus: Vec<Gpu>,
    /// Servers and runs that wait, in the order of their turns.
    pub(crate) queue: Vec<Waiting>,
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
        let queue = queue(db).await?;
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
        snapshot.queue = queue
            .iter()
            .map(|waiting| waiting.request.clone())
            .collect();
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

    /// Leaves out of the snapshot's queue who does not go before somebody with this turn.
    pub(crate) fn keep_ahead_of(&mut self, turn: Turn) {
        let ahead = self.queue.iter().filter(|waiting| waiting.turn <= turn);
        self.snapshot.queue = ahead.map(|waiting| waiting.request.clone()).collect();
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

/// Everybody who waits, in the order of their turns; of equal ones the lower id goes first.
async fn queue(db: &impl ConnectionTrait) -> Result<Vec<Waiting>, SchedulerError> {
    let servers = server::queued(db).await?.into_iter();
    let runs = run::queued(db).await?.into_iter();
    let waiters: Vec<Waiter> = servers
        .map(|server| Waiter::Server(Box::new(server)))
        .chain(runs.map(|run| Waiter::Run(Box::new(run))))
        .collect();
    let volumes: Vec<VolumeId> = waiters.iter().map(Waiter::volume).collect();
    let nodes = volume::nodes_of(db, &volumes).await?;
    let mut queue: Vec<Waiting> = waiters
        .into_iter()
        .map(|who| {
            let on = nodes.get(&who.volume()).copied();
            let request = match &who {
                Waiter::Server(server) => request(&server.profile, server.storage_bytes, on),
                Waiter::Run(run) => request(&run.profile, run.storage_bytes, on),
            };
            let turn = who.turn();
            Waiting { turn, who, request }
        })
        .collect();
    queue.sort_by_key(|waiting| (waiting.turn, waiting.who.id()));
    Ok(queue)
}

/// What a server or run asks of the core.
pub(crate) fn request(profile: &Profile, storage_bytes: u64, volume_on: Option<NodeId>) -> Request {
    Request {
        family: profile.gpu_type.clone(),
        blocks: profile.percent,
        storage_bytes,
        volume_on,
    }
}

/// The time before which a node that is silent was last heard of.
pub(crate) fn silent_before(now: Timestamp, ttl: Duration) -> Timestamp {
    let micros = i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_sub(micros))
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
            workload: ServerId::from_ulid(Ulid(3)).into(),
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
