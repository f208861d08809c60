//! Renews all grants of this node in one batch, and ends what the scheduler says must end.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cnlab_proto::{convert::decode_duration, node::v1::Workload, scheduler::v1 as pb};
use cnlab_service::Next;
use node_core::{Holder, WorkloadId};
use node_sandbox::Boottime;

use super::Roster;
use crate::{
    app::{Node, life::Life},
    convert::{encode_known_workload, encode_workload},
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

/// A life that a renewal named, and the sequence of the state that it said.
type Said = (Arc<Life>, u64);

/// What a renewal says: every life that is not over, and the end of one until it was taken in.
/// A state that was taken in is said briefly.
fn to_say(lives: Vec<Arc<Life>>) -> Vec<(Said, Workload)> {
    let mut all = Vec::new();
    for life in lives {
        let snapshot = life.snapshot();
        let sequence = snapshot.sequence;
        let workload = match (life.is_taken_in(sequence), snapshot.record.phase.is_over()) {
            (true, true) => continue,
            (true, false) => encode_known_workload(snapshot),
            (false, _) => encode_workload(snapshot),
        };
        all.push(((life, sequence), workload));
    }
    all
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
        let (said, workloads): (Vec<Said>, _) = to_say(self.node.all_lives()).into_iter().unzip();
        let request = pb::RenewGrantsRequest {
            node_id: self.node.id.to_string(),
            workloads,
            disk_free_bytes: machine::disk(self.node.data_folder()).free_bytes,
        };
        let sent = Boottime::now();
        match self.roster.clone().renew_grants(request).await {
            Ok(response) => {
                let response = response.into_inner();
                if response.register_again {
                    self.node.register.wake();
                } else {
                    let named: BTreeSet<Holder> =
                        said.iter().map(|(life, _)| life.holder).collect();
                    self.node.renewed(sent, &named, &response.end_workload_ids);
                    for (life, sequence) in &said {
                        life.set_taken_in(*sequence);
                    }
                }
                for id in response.end_workload_ids {
                    self.end(&id, &said).await;
                }
                Next::After(self.rhythm.every())
            }
            Err(status) => {
                // Servers go on: their grants outlive a scheduler that is away. Runs end in time.
                tracing::debug!(%status, "grants not renewed");
                Next::After(AFTER_FAILURE)
            }
        }
    }

    /// Begins the end of a workload; its report says when it is gone.
    ///
    /// The answer is about the lives that the renewal named: one that was launched since then
    /// has a grant that the scheduler did not look at, and stays.
    async fn end(&self, id: &str, said: &[Said]) {
        let Ok(workload) = id.parse::<WorkloadId>() else {
            tracing::warn!(id, "the scheduler names a workload that cannot exist");
            return;
        };
        for (life, _) in said {
            let meant = life.holder.workload == workload;
            if meant && !life.is_over() && !life.stop.is_cancelled() {
                tracing::info!(%workload, fence = life.holder.fence, "ending a workload whose grant is gone");
                self.node.ask_to_stop(life).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::{
        Timestamp,
        id::{ServerId, Ulid},
    };
    use node_core::{Holder, Phase};

    use super::*;
    use crate::app::life::{Facts, Record};

    fn life(n: u8) -> Arc<Life> {
        let holder = Holder {
            workload: WorkloadId::Server(ServerId::from_ulid(Ulid(n.into()))),
            fence: 1,
        };
        let mut record = Record::new(holder, None, None, Timestamp(0));
        record.facts = Facts {
            installed: vec!["six==1.17.0".to_owned()],
            ..Facts::default()
        };
        Arc::new(Life::new("none".into(), record, String::new()))
    }

    /// What is said of whom, each with the number of installed packages.
    fn said(lives: &[Arc<Life>]) -> Vec<(String, usize)> {
        to_say(lives.to_vec())
            .into_iter()
            .map(|(_, workload)| (workload.workload_id, workload.installed.len()))
            .collect()
    }

    #[test]
    fn what_was_taken_in_is_said_briefly_and_its_end_no_more() {
        let lives = [life(1), life(2)];
        let [one, two] = [1, 2].map(|n: usize| lives[n - 1].holder.workload.to_string());
        assert_eq!(said(&lives), [(one.clone(), 1), (two.clone(), 1)]);
        // The state before the present one is not enough.
        let first = lives[0].snapshot().sequence;
        lives[0].update(Timestamp(5), |state| state.record.phase = Phase::Ready);
        lives[0].set_taken_in(first);
        lives[1].set_taken_in(lives[1].snapshot().sequence);
        assert_eq!(said(&lives), [(one.clone(), 1), (two.clone(), 0)]);
        lives[0].set_taken_in(lives[0].snapshot().sequence);
        assert_eq!(said(&lives), [(one.clone(), 0), (two.clone(), 0)]);

        lives[1].update(Timestamp(9), |state| state.record.phase = Phase::Stopped);
        assert_eq!(said(&lives), [(one.clone(), 0), (two, 1)]);
        lives[1].set_taken_in(lives[1].snapshot().sequence);
        assert_eq!(said(&lives), [(one, 0)]);
    }
}
