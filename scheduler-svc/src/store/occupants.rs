//! What is on one node.

use cnlab_model::id::{NodeId, RunId, ServerId, WorkloadId};
use sea_orm::ConnectionTrait;

use super::{
    grant,
    record::{Gpu, Grant, Run, Server},
    roster, run, server, volume,
};
use crate::error::SchedulerError;

/// The rows that belong to one node.
#[derive(Debug)]
pub(crate) struct Occupants {
    pub(crate) gpus: Vec<Gpu>,
    /// Grants that are not released.
    pub(crate) held: Vec<Grant>,
    /// Servers that hold one of the grants, or whose files lie there.
    pub(crate) servers: Vec<Server>,
    /// Runs that hold one of the grants.
    pub(crate) runs: Vec<Run>,
}

impl Occupants {
    /// Reads them.
    pub(crate) async fn load(
        db: &impl ConnectionTrait,
        node: NodeId,
    ) -> Result<Self, SchedulerError> {
        // Before the GPUs: of a node that holds nothing any more, no block is taken.
        let held = grant::held(db, Some(node)).await?;
        let gpus = roster::gpus_on(db, &[node]).await?;
        let (mut servers, runs) = split(&held);
        servers.extend(volume::servers_on(db, node).await?);
        servers.sort_unstable();
        servers.dedup();
        Ok(Self {
            gpus,
            held,
            servers: server::of_ids(db, &servers).await?,
            runs: run::of_ids(db, &runs).await?,
        })
    }
}

/// Whose these grants are.
pub(crate) fn split(held: &[Grant]) -> (Vec<ServerId>, Vec<RunId>) {
    let (mut servers, mut runs) = (Vec::new(), Vec::new());
    for grant in held {
        match grant.workload {
            WorkloadId::Server(id) => servers.push(id),
            WorkloadId::Run(id) => runs.push(id),
        }
    }
    (servers, runs)
}
