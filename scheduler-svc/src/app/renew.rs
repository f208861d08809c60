//! Renewals: a node says what it runs, and hears what it must end.
//!
//! **Invariant** (X-12): a node that says nothing keeps every grant of a server; only what it
//! says itself takes one away. Grants of runs expire, see `run::expire`. The lease store is told for liveness, and its loss changes nothing here.

use std::{collections::BTreeMap, time::Duration};

use cnlab_lease::{Claim, Renewal};
use cnlab_model::id::{NodeId, WorkloadId};

use super::{
    App,
    report::{Gone, lost_by_node},
};
use crate::{
    cell::silent_before,
    error::SchedulerError,
    ports::Workload,
    store::{
        self, grant,
        record::{Grant, Node},
        roster,
    },
};
use scheduler_core::{run, server::State};

/// The shortest lease that is worth opening.
const SHORTEST: Duration = Duration::from_millis(1);

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// Everything else may run on.
    End(Vec<WorkloadId>),
    /// The node is not known here.
    RegisterAgain,
}

impl App {
    /// Renews all grants of a node, takes in what it says, and heals what was missed.
    pub(crate) async fn renew(
        &self,
        id: NodeId,
        workloads: &[Workload],
        disk_free_bytes: u64,
    ) -> Result<Renewed, SchedulerError> {
        let Some(node) = roster::node(self.db.read(), id).await? else {
            return Ok(Renewed::RegisterAgain);
        };
        let now = self.now();
        self.write(|tx| async move { roster::seen(&tx, id, disk_free_bytes, now).await })
            .await?;
        self.cell.heard(id, disk_free_bytes, now);
        if node.last_seen_at < silent_before(now, self.grants.ttl.0) {
            tracing::info!(cnlab.node_id = %id, "node answers again");
            self.outbox.wake();
        }
        for workload in workloads {
            self.take_in(id, workload).await?;
        }
        let held = grant::held(self.db.read(), Some(id)).await?;
        self.find_lost(&node, &held, workloads).await?;
        self.renew_leases(id, &held, workloads).await;
        Ok(Renewed::End(self.unwanted(&held, workloads).await?))
    }

    /// Grants that the node had and does not name any more.
    async fn find_lost(
        &self,
        node: &Node,
        held: &[Grant],
        workloads: &[Workload],
    ) -> Result<(), SchedulerError> {
        // A launch that was answered just now may be younger than the node's list.
        let settled = silent_before(self.now(), self.grants.ttl.0);
        for grant in held {
            let named = workloads
                .iter()
                .any(|workload| workload.id == grant.workload && workload.fence == grant.fence);
            if !named && grant.delivered_at.is_some_and(|at| at <= settled) {
                tracing::warn!(
                    workload = %grant.workload,
                    cnlab.node_id = %node.id,
                    cnlab.lease_fence = grant.fence,
                    "the node lost a workload"
                );
                let lost = lost_by_node(grant.workload, &node.name);
                self.gone(grant.workload, grant.id, Gone::Lost(&lost))
                    .await?;
            }
        }
        Ok(())
    }

    /// What runs there without a right to.
    async fn unwanted(
        &self,
        held: &[Grant],
        workloads: &[Workload],
    ) -> Result<Vec<WorkloadId>, SchedulerError> {
        let mut end = Vec::new();
        for workload in workloads
            .iter()
            .filter(|workload| !workload.state.is_over())
        {
            let grant = held.iter().find(|grant| grant.workload == workload.id);
            // With a newer grant, a launch is on its way that replaces what runs; naming it
            // here could hit the newer one.
            let granted = grant.is_some_and(|grant| grant.fence >= workload.fence);
            if !granted || !self.is_wanted(workload.id).await? {
                end.push(workload.id);
            }
        }
        Ok(end)
    }

    /// Whether somebody wants a workload to run.
    async fn is_wanted(&self, id: WorkloadId) -> Result<bool, SchedulerError> {
        let db = self.db.read();
        Ok(match id {
            WorkloadId::Server(id) => store::server::get(db, id).await?.is_some_and(|server| {
                matches!(server.state, State::Provisioning { .. } | State::Ready)
            }),
            WorkloadId::Run(id) => store::run::get(db, id).await?.is_some_and(|run| {
                matches!(
                    run.state,
                    run::State::Provisioning { .. } | run::State::Running
                )
            }),
        })
    }

    async fn renew_leases(&self, node: NodeId, held: &[Grant], workloads: &[Workload]) {
        let batch: Vec<Claim> = held
            .iter()
            .filter(|grant| {
                workloads
                    .iter()
                    .any(|workload| workload.fence == grant.fence)
            })
            .map(|grant| claim(node, grant))
            .collect();
        self.hold_leases(node, &batch, self.grants.ttl.0).await;
    }

    /// Opens the leases of all grants anew whose nodes answer, each for as long as its node has
    /// left to be heard of again: the store has lost them, or nobody has renewed them for a
    /// while. The rows say what there is.
    pub(crate) async fn reopen_leases(&self) -> Result<(), SchedulerError> {
        let mut held: BTreeMap<NodeId, Vec<Claim>> = BTreeMap::new();
        for grant in grant::held(self.db.read(), None).await? {
            let claim = claim(grant.node, &grant);
            held.entry(grant.node).or_default().push(claim);
        }
        let (now, ttl) = (self.now(), self.grants.ttl.0);
        for node in roster::nodes(self.db.read()).await? {
            let left = ttl.saturating_sub(now.since(node.last_seen_at));
            if let Some(batch) = held.get(&node.id)
                && left >= SHORTEST
            {
                self.hold_leases(node.id, batch, left).await;
            }
        }
        Ok(())
    }

    async fn hold_leases(&self, node: NodeId, batch: &[Claim], ttl: Duration) {
        if batch.is_empty() {
            return;
        }
        let renewed = match self.leases.renew(batch, ttl).await {
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::warn!(%error, cnlab.node_id = %node, "leases were not renewed");
                return;
            }
        };
        for (claim, renewal) in batch.iter().zip(renewed) {
            // The row is the truth: a lease that the store lost or let run out is opened anew.
            if renewal != Renewal::Renewed
                && let Err(error) = self.leases.acquire(claim, ttl).await
            {
                tracing::warn!(%error, key = claim.key, "a lease was not opened anew");
            }
        }
    }

    /// Opens the lease of a new grant. Liveness only, so a store that is away is no failure.
    pub(crate) async fn open_lease(&self, grant: &Grant) {
        let claim = claim(grant.node, grant);
        if let Err(error) = self.leases.acquire(&claim, self.grants.ttl.0).await {
            tracing::warn!(%error, key = claim.key, "a lease was not opened");
        }
    }

    /// Ends the lease of a grant that is released; one that stays runs out by itself.
    pub(crate) async fn end_lease(&self, grant: &Grant) {
        let claim = claim(grant.node, grant);
        if let Err(error) = self.leases.release(&claim).await {
            tracing::warn!(%error, key = claim.key, "a lease was not released");
        }
    }
}

fn claim(node: NodeId, grant: &Grant) -> Claim {
    Claim::new(grant.id.to_string(), node.to_string(), grant.fence)
}
