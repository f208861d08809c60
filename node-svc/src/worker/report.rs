//! Reports every change of a workload to the scheduler: at least once, the newest state last.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cnlab_model::ErrorKind;
use cnlab_proto::scheduler::v1 as pb;
use cnlab_service::{Next, status, task::Backoff, trace};
use tonic::Status;
use tracing::Instrument as _;

use super::Roster;
use crate::{
    app::{Node, life::Life},
    convert::encode_workload,
};

/// Reports one life a tick.
#[derive(Debug)]
pub(super) struct Report {
    node: Arc<Node>,
    roster: Roster,
    backoff: Mutex<Backoff>,
}

impl Report {
    pub(super) fn new(node: Arc<Node>, roster: Roster) -> Self {
        Self {
            node,
            roster,
            backoff: Mutex::new(Backoff::new(
                Duration::from_millis(50),
                Duration::from_secs(5),
            )),
        }
    }

    pub(super) async fn tick(&self) -> Next {
        let Some(life) = self.node.take_unreported() else {
            return Next::WhenWoken;
        };
        match self.report(&life).await {
            Ok(()) => {
                self.backoff().reset();
                Next::Now
            }
            Err(refusal) if is_final(&refusal) => {
                tracing::warn!(workload = %life.holder.workload, status = %refusal, "the scheduler does not take a report");
                Next::Now
            }
            Err(away) => {
                let wait = self.backoff().next_wait();
                tracing::debug!(status = %away, ?wait, "report not delivered yet");
                self.node.keep_unreported(&life);
                Next::After(wait)
            }
        }
    }

    /// Reports until there is nothing more to report.
    pub(super) async fn all(&self) {
        loop {
            match self.tick().await {
                Next::Now => {}
                Next::After(wait) => tokio::time::sleep(wait).await,
                Next::WhenWoken => return,
            }
        }
    }

    async fn report(&self, life: &Life) -> Result<(), Status> {
        let snapshot = life.snapshot();
        let sequence = snapshot.sequence;
        let span = trace::span_with_parent(snapshot.record.traceparent.as_deref(), "node.Report");
        let request = pb::ReportWorkloadRequest {
            node_id: self.node.id.to_string(),
            workload: Some(encode_workload(snapshot)),
        };
        let mut roster = self.roster.clone();
        async move { roster.report_workload(request).await.map(drop) }
            .instrument(span)
            .await?;
        life.set_taken_in(sequence);
        Ok(())
    }

    fn backoff(&self) -> std::sync::MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether repeating the report cannot help.
fn is_final(refusal: &Status) -> bool {
    matches!(
        status::kind(refusal.code()),
        ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Precondition
    )
}
