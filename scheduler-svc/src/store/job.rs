//! What other services are to be told, as messages of the outbox.
//!
//! A message names rows and carries no copy of them: who delivers it reads what holds then,
//! so that a launch whose grant has ended meanwhile is dropped.

use cnlab_db::{
    Tx,
    outbox::{self, Message, NewMessage},
};
use cnlab_model::{
    Timestamp,
    id::{GrantId, NodeId, VolumeId, WorkloadId},
};
use serde::{Deserialize, Serialize};

use crate::error::SchedulerError;

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Job {
    /// The node shall run the workload under this grant. The other name of the field is older
    /// than runs, and may still wait in a database.
    Launch {
        #[serde(alias = "server")]
        workload: WorkloadId,
        grant: GrantId,
    },
    /// The node shall end it.
    Stop {
        #[serde(alias = "server")]
        workload: WorkloadId,
        grant: GrantId,
    },
    /// The node shall remove the volume.
    RemoveVolume {
        #[serde(alias = "server")]
        workload: WorkloadId,
        volume: VolumeId,
        node: NodeId,
    },
    /// Somebody begins to use a slice.
    OpenUsage { grant: GrantId },
    /// And ends.
    CloseUsage { grant: GrantId, ended_at: Timestamp },
}

impl Job {
    fn topic(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "node.launch",
            Self::Stop { .. } => "node.stop",
            Self::RemoveVolume { .. } => "node.remove_volume",
            Self::OpenUsage { .. } => "billing.open_usage",
            Self::CloseUsage { .. } => "billing.close_usage",
        }
    }

    /// Jobs of one aggregate are delivered in order; nodes and billing do not wait for each
    /// other, nor does a run that begins anew wait for the node that it was lost with.
    fn aggregate(&self) -> String {
        match self {
            Self::Launch {
                workload: run @ WorkloadId::Run(_),
                grant,
            }
            | Self::Stop {
                workload: run @ WorkloadId::Run(_),
                grant,
            } => format!("{run}/{grant}"),
            Self::RemoveVolume {
                workload: WorkloadId::Run(_),
                volume,
                ..
            } => volume.to_string(),
            Self::Launch { workload, .. }
            | Self::Stop { workload, .. }
            | Self::RemoveVolume { workload, .. } => workload.to_string(),
            Self::OpenUsage { grant } | Self::CloseUsage { grant, .. } => grant.to_string(),
        }
    }

    /// Who is told; one that does not answer holds up nobody else.
    fn destination(&self, node: Option<NodeId>) -> String {
        match self {
            Self::Launch { .. } | Self::Stop { .. } => node.map_or_else(String::new, String::from),
            Self::RemoveVolume { node, .. } => node.to_string(),
            Self::OpenUsage { .. } | Self::CloseUsage { .. } => "billing-svc".to_owned(),
        }
    }

    /// The name of the span in which the job is done.
    pub(crate) fn span_name(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "scheduler.dispatch node.launch",
            Self::Stop { .. } => "scheduler.dispatch node.stop",
            Self::RemoveVolume { .. } => "scheduler.dispatch node.remove_volume",
            Self::OpenUsage { .. } => "scheduler.dispatch billing.open_usage",
            Self::CloseUsage { .. } => "scheduler.dispatch billing.close_usage",
        }
    }

    /// The job of a message.
    pub(crate) fn read(message: &Message) -> Result<Self, SchedulerError> {
        serde_json::from_value(message.payload.clone()).map_err(|error| SchedulerError::Row {
            table: "outbox",
            id: message.id.to_string(),
            problem: error.to_string(),
        })
    }
}

/// A job that is to be written down.
#[derive(Debug, Clone)]
pub(crate) struct NewJob {
    pub(crate) job: Job,
    /// The node of a launch or a stop, which their names do not say.
    pub(crate) node: Option<NodeId>,
    pub(crate) traceparent: Option<String>,
}

impl NewJob {
    fn message(self, now: Timestamp) -> NewMessage {
        NewMessage {
            topic: self.job.topic().to_owned(),
            aggregate: self.job.aggregate(),
            destination: self.job.destination(self.node),
            payload: serde_json::to_value(&self.job).unwrap_or_default(),
            traceparent: self.traceparent,
            now,
        }
    }
}

/// Writes jobs down, in this order; they are done after the transaction has committed.
pub(crate) async fn push_all(
    tx: &Tx,
    jobs: Vec<NewJob>,
    now: Timestamp,
) -> Result<(), SchedulerError> {
    let messages = jobs.into_iter().map(|job| job.message(now)).collect();
    outbox::push_all(tx, messages).await?;
    Ok(())
}

/// Writes a job down; it is done after the transaction has committed. `node` is the node of a
/// launch or a stop, which their names do not say.
pub(crate) async fn push(
    tx: &Tx,
    job: &Job,
    node: Option<NodeId>,
    traceparent: Option<String>,
    now: Timestamp,
) -> Result<(), SchedulerError> {
    let new = NewJob {
        job: job.clone(),
        node,
        traceparent,
    };
    outbox::push(tx, new.message(now)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::{RunId, ServerId, Ulid};

    use super::*;

    #[test]
    fn messages_from_before_there_were_runs_are_understood() {
        let (server, grant) = (ServerId::from_ulid(Ulid(1)), GrantId::from_ulid(Ulid(2)));
        let old = format!(r#"{{"job":"launch","server":"{server}","grant":"{grant}"}}"#);
        let job: Job = serde_json::from_str(&old).unwrap();
        let workload = WorkloadId::Server(server);
        assert_eq!(job, Job::Launch { workload, grant });
        assert_eq!(job.aggregate(), server.to_string());
        let more = old.replace("server\"", "host\"");
        assert!(serde_json::from_str::<Job>(&more).is_err());
    }

    #[test]
    fn a_run_that_begins_anew_waits_for_nothing_of_its_past() {
        let workload = WorkloadId::Run(RunId::from_ulid(Ulid(1)));
        let of = |n| GrantId::from_ulid(Ulid(n));
        let launch = |n| {
            Job::Launch {
                workload,
                grant: of(n),
            }
            .aggregate()
        };
        let stop = |n| {
            Job::Stop {
                workload,
                grant: of(n),
            }
            .aggregate()
        };
        assert_eq!(launch(1), stop(1));
        assert_ne!(launch(1), launch(2));
        let remove = Job::RemoveVolume {
            workload,
            volume: VolumeId::from_ulid(Ulid(3)),
            node: NodeId::from_ulid(Ulid(4)),
        };
        assert_ne!(remove.aggregate(), launch(1));
    }
}
