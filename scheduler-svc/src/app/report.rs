//! What nodes say of workloads, taken into the servers.
//!
//! Reports come at least once and by three ways (a report, a renewal, the answer to a launch
//! or stop). The fence tells to which grant a report belongs, the sequence which is newer;
//! what is old is dropped.

use cnlab_model::id::{GrantId, NodeId, ServerId};
use scheduler_core::server::{Event, State};

use super::App;
use crate::{
    error::{CallError, SchedulerError},
    ports::{Workload, WorkloadState},
    store::{
        self, grant,
        record::{Failure, RuntimeFacts, Server},
    },
};

impl App {
    /// Takes a report in.
    pub(crate) async fn take_in(
        &self,
        node: NodeId,
        workload: &Workload,
    ) -> Result<(), SchedulerError> {
        // Most reports of a renewal say nothing new, and need no transaction.
        let known = store::server::get(self.db.read(), workload.server).await?;
        if !known.is_some_and(|server| is_news(&server, workload)) {
            return Ok(());
        }
        let now = self.now();
        let changed = self
            .db
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, workload.server).await? else {
                    return Ok(None);
                };
                let Some(grant) = current_grant(&tx, &server, node, workload.fence).await? else {
                    return Ok(None);
                };
                if !is_news(&server, workload) {
                    return Ok(None);
                }
                grant::delivered(&tx, grant.id, now).await?;
                server.sequence = workload.sequence.saturating_add(1);
                let was = server.state;
                let (event, failure) = event_of(&workload.state);
                self.advance(&tx, &mut server, event, failure, now).await?;
                if let State::Provisioning { .. } = server.state {
                    server.phase_detail.clone_from(&workload.detail);
                }
                if workload.facts != RuntimeFacts::default() {
                    server.runtime = Some(workload.facts.clone());
                }
                if server.state == State::Ready && was != State::Ready {
                    let ready = workload.environment_was_ready;
                    self.learn(&tx, &server, &grant, ready, now).await?;
                }
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some(server))
            })
            .await?;
        self.after(changed);
        Ok(())
    }

    /// Takes in that a workload is gone, from somebody who knows but has no report of it.
    pub(crate) async fn gone(
        &self,
        server: ServerId,
        grant: GrantId,
        failure: Option<&Failure>,
    ) -> Result<(), SchedulerError> {
        let now = self.now();
        let changed = self
            .db
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, server).await? else {
                    return Ok(None);
                };
                if server.grant != Some(grant) {
                    return Ok(None);
                }
                let event = match failure {
                    Some(_) => Event::WorkloadFailed,
                    None => Event::WorkloadEnded,
                };
                self.advance(&tx, &mut server, event, failure.cloned(), now)
                    .await?;
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some(server))
            })
            .await?;
        self.after(changed);
        Ok(())
    }

    /// Says to watchers what a server waits for, when that is something else than before.
    pub(crate) async fn note(&self, server: ServerId, detail: &str) -> Result<(), SchedulerError> {
        let changed = self
            .db
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, server).await? else {
                    return Ok(None);
                };
                if !server.state.may_run() || server.phase_detail == detail {
                    return Ok(None);
                }
                detail.clone_into(&mut server.phase_detail);
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some(server))
            })
            .await?;
        self.after(changed);
        Ok(())
    }

    /// Takes in that a volume is gone.
    pub(crate) async fn volume_removed(&self, server: ServerId) -> Result<(), SchedulerError> {
        let now = self.now();
        let changed = self
            .db
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, server).await? else {
                    return Ok(None);
                };
                if server.state != State::Deleting {
                    return Ok(None);
                }
                self.advance(&tx, &mut server, Event::VolumeRemoved, None, now)
                    .await?;
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some(server))
            })
            .await?;
        self.after(changed);
        Ok(())
    }

    fn after(&self, changed: Option<Server>) {
        if let Some(server) = changed {
            self.publish(&server);
            if server.grant.is_none() {
                self.queue.wake();
            }
        }
    }
}

fn is_news(server: &Server, workload: &Workload) -> bool {
    server.grant.is_some() && workload.sequence >= server.sequence
}

async fn current_grant(
    tx: &cnlab_db::Tx,
    server: &Server,
    node: NodeId,
    fence: u64,
) -> Result<Option<store::record::Grant>, SchedulerError> {
    let Some(id) = server.grant else {
        return Ok(None);
    };
    let grant = grant::get(tx, id).await?;
    Ok(grant.filter(|grant| grant.fence == fence && grant.node == node))
}

fn event_of(state: &WorkloadState) -> (Event, Option<Failure>) {
    match state {
        WorkloadState::Preparing(phase) => (Event::PhaseReached(*phase), None),
        WorkloadState::Ready => (Event::PageAnswered, None),
        WorkloadState::Stopping => (Event::EndingBegun, None),
        WorkloadState::Stopped => (Event::WorkloadEnded, None),
        WorkloadState::Failed(failure) => (Event::WorkloadFailed, Some(failure.clone())),
    }
}

/// A refusal of a node as the failure of the server.
pub(crate) fn failure_of(refused: &CallError) -> Failure {
    let error = &refused.error;
    Failure {
        reason: error.reason.clone(),
        message: format!("the node refused to start the server: {}", error.message),
        cause: error.cause.clone().unwrap_or_default(),
        try_this: error
            .try_this
            .clone()
            .unwrap_or_else(|| "see the log of the node, then `cnlab server start`".to_owned()),
    }
}

/// The failure of a server whose node does not know it any more.
pub(crate) fn lost_by_node(node: &str) -> Failure {
    Failure {
        reason: "PROCESS_ENDED".to_owned(),
        message: format!("the processes of the server on {node} are gone"),
        cause: "the node does not run it any more, which a restart of the machine does".to_owned(),
        try_this: "start it again with `cnlab server start`; its files are kept".to_owned(),
    }
}
