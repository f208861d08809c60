//! Says to the scheduler that this node is there, with everything that it has.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cnlab_proto::{convert::decode_duration, scheduler::v1 as pb};
use cnlab_service::{Next, task::Backoff};
use node_sandbox::Boottime;

use super::{Roster, renew::Rhythm};
use crate::{app::Node, convert::encode_gpu, machine};

/// Registers at the start, and again when the scheduler asks.
#[derive(Debug)]
pub(super) struct Register {
    node: Arc<Node>,
    roster: Roster,
    rhythm: Arc<Rhythm>,
    backoff: Mutex<Backoff>,
}

impl Register {
    pub(super) fn new(node: Arc<Node>, roster: Roster, rhythm: Arc<Rhythm>) -> Self {
        Self {
            node,
            roster,
            rhythm,
            backoff: Mutex::new(Backoff::new(
                Duration::from_millis(50),
                Duration::from_secs(5),
            )),
        }
    }

    pub(super) async fn tick(&self) -> Next {
        // Woken again when the node listens.
        let Some(endpoint) = self.node.endpoint.get() else {
            return Next::WhenWoken;
        };
        let request = self.request(endpoint.clone()).await;
        let sent = Boottime::now();
        match self.roster.clone().register_node(request).await {
            Ok(answer) => {
                self.backoff().reset();
                self.rhythm.heard(answer.get_ref());
                let ttl = answer.get_ref().lease_ttl.as_ref().map(decode_duration);
                self.node.lease.registered(sent, ttl);
                tracing::info!(node = %self.node.id, %endpoint, "registered with the scheduler");
                // Everything that runs is told at once, so that the scheduler need not guess.
                self.node.renew.wake();
                self.node.report.wake();
                Next::WhenWoken
            }
            Err(status) => {
                let wait = self.backoff().next_wait();
                tracing::debug!(%status, ?wait, "not registered yet");
                Next::After(wait)
            }
        }
    }

    async fn request(&self, endpoint: String) -> pb::RegisterNodeRequest {
        let node = &self.node;
        let disk = machine::disk(node.data_folder());
        let ready_images = node
            .environments
            .ready_images()
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "the ready environments could not be listed");
                Vec::new()
            });
        pb::RegisterNodeRequest {
            node_id: node.id.to_string(),
            name: node.config.name.clone(),
            endpoint,
            gpus: node.gpus().facts().iter().map(encode_gpu).collect(),
            cpu_milli: machine::cpu_milli(),
            memory_bytes: machine::memory_bytes(),
            disk_bytes: disk.bytes,
            disk_free_bytes: disk.free_bytes,
            not_enforced: node.runner().boundaries().not_enforced,
            ready_images,
        }
    }

    fn backoff(&self) -> std::sync::MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
