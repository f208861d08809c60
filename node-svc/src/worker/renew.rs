//! Renews all grants of this node in one batch, and ends what the scheduler says must end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cnlab_proto::{convert::decode_duration, scheduler::v1 as pb};
use cnlab_service::Next;
use node_core::WorkloadId;

use super::Roster;
use crate::{
    app::{Node, life::Life},
    convert::encode_workload,
    machine,
};

/// Until the scheduler has said how often it wants to hear of a node.
const EVERY: Duration = Duration::from_secs(10);
/// What it says is obeyed from here on: less would be a storm.
const AT_LEAST: Duration = Duration::from_millis(100);
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// How often to renew, in milliseconds: what the scheduler said when the node registered.
#[derive(Debug)]
pub(super) struct Rhythm(AtomicU64);

impl Rhythm {
    pub(super) fn new() -> Self {
        let rhythm = Self(AtomicU64::new(0));
        rhythm.keep(EVERY);
        rhythm
    }

    /// Takes over what the scheduler says; where it says nothing, everything stays.
    pub(super) fn heard(&self, answer: &pb::RegisterNodeResponse) {
        if let Some(every) = &answer.renew_every {
            self.keep(decode_duration(every).max(AT_LEAST));
        }
    }

    fn keep(&self, every: Duration) {
        let millis = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    fn every(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Renews.
#[derive(Debug)]
pub(super) struct Renew {
    node: Arc<Node>,
    roster: Roster,
    rhythm: Arc<Rhythm>,
}

impl Renew {
    pub(super) const fn new(node: Arc<Node>, roster: Roster, rhythm: Arc<Rhythm>) -> Self {
        Self {
            node,
            roster,
            rhythm,
        }
    }

    pub(super) async fn tick(&self) -> Next {
        if self.node.endpoint.get().is_none() {
            return Next::After(AFTER_FAILURE);
        }
        let said = self.node.all_lives();
        let workloads = said
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
                    self.end(&id, &said).await;
                }
                Next::After(self.rhythm.every())
            }
            Err(status) => {
                // What runs goes on: a server's grant outlives a scheduler that is away.
                tracing::debug!(%status, "grants not renewed");
                Next::After(AFTER_FAILURE)
            }
        }
    }

    /// Begins the end of a workload; its report says when it is gone.
    ///
    /// The answer is about the lives that the renewal named: one that was launched since then
    /// has a grant that the scheduler did not look at, and stays.
    async fn end(&self, id: &str, said: &[Arc<Life>]) {
        let Ok(workload) = id.parse::<WorkloadId>() else {
            tracing::warn!(id, "the scheduler names a workload that cannot exist");
            return;
        };
        for life in said {
            let meant = life.holder.workload == workload;
            if meant && !life.is_over() && !life.stop.is_cancelled() {
                tracing::info!(%workload, fence = life.holder.fence, "ending a workload whose grant is gone");
                self.node.ask_to_stop(life).await;
            }
        }
    }
}
