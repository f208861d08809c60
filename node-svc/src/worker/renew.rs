//! Renews all grants of this node in one batch, and ends what the scheduler says must end.

use std::{sync::Arc, time::Duration};

use cnlab_proto::scheduler::v1 as pb;
use cnlab_service::Next;
use node_core::WorkloadId;

use super::Roster;
use crate::{app::Node, convert::encode_workload, machine};

const EVERY: Duration = Duration::from_secs(10);
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Renews.
#[derive(Debug)]
pub(super) struct Renew {
    node: Arc<Node>,
    roster: Roster,
}

impl Renew {
    pub(super) const fn new(node: Arc<Node>, roster: Roster) -> Self {
        Self { node, roster }
    }

    pub(super) async fn tick(&self) -> Next {
        if self.node.endpoint.get().is_none() {
            return Next::After(AFTER_FAILURE);
        }
        let workloads = self
            .node
            .all_lives()
            .iter()
            .map(|life| encode_workload(life.snapshot()))
            .collect();
        let request = pb::RenewGrantsRequest {
            node_id: self.node.id.to_string(),
            workloads,
            disk_free_bytes: machine::disk(self.node.data_folder()).free_bytes,
        };
        match self.roster.clone().renew_grants(request).await {
            Ok(response) => {
                let response = response.into_inner();
                if response.register_again {
                    self.node.register.wake();
                }
                for id in response.end_workload_ids {
                    self.end(&id).await;
                }
                Next::After(EVERY)
            }
            Err(status) => {
                // What runs goes on: a server's grant outlives a scheduler that is away.
                tracing::debug!(%status, "grants not renewed");
                Next::After(AFTER_FAILURE)
            }
        }
    }

    /// Begins the end of a workload; its report says when it is gone.
    async fn end(&self, id: &str) {
        let Ok(workload) = id.parse::<WorkloadId>() else {
            tracing::warn!(id, "the scheduler names a workload that cannot exist");
            return;
        };
        match self.node.newest(workload) {
            Some(life) if !life.is_over() => {
                tracing::info!(%workload, "ending a workload whose grant is gone");
                self.node.ask_to_stop(&life).await;
            }
            Some(_) | None => {}
        }
    }
}
