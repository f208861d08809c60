//! What nodes say of workloads, taken into the servers; see `run::report` for the runs.
//!
//! Reports come at least once and by three ways (a report, a renewal, the answer to a launch
//! or stop). The fence tells to which grant a report belongs, the sequence which is newer;
//! what is old is dropped.

use cnlab_model::id::{GrantId, NodeId, ServerId, VolumeId, WorkloadId};
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

/// How a workload is known to be gone, by somebody who has no report of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gone<'a> {
    /// It was ended, as was asked.
    Asked,
    /// It cannot run.
    Failed(&'a Failure),
    /// Its node does not have it any more, or is not there any more.
    Lost(&'a Failure),
}

impl App {
    /// Takes a report in.
    pub(crate) async fn take_in(
        &self,
        node: NodeId,
        workload: &Workload,
    ) -> Result<(), SchedulerError> {
        match workload.id {
            WorkloadId::Server(id) => self.take_in_server(id, node, workload).await,
            WorkloadId::Run(id) => self.take_in_run(id, node, workload).await,
        }
    }

    /// Takes in that a workload is gone, from somebody who knows but has no report of it.
    pub(crate) async fn gone(
        &self,
        workload: WorkloadId,
        grant: GrantId,
        how: Gone<'_>,
    ) -> Result<(), SchedulerError> {
        match workload {
            WorkloadId::Server(id) => self.server_gone(id, grant, how).await,
            WorkloadId::Run(id) => self.run_gone(id, grant, how).await,
        }
    }

    /// Says to watchers what a workload waits for, when that is something else than before.
    pub(crate) async fn note(
        &self,
        workload: WorkloadId,
        detail: &str,
    ) -> Result<(), SchedulerError> {
        match workload {
            WorkloadId::Server(id) => self.note_server(id, detail).await,
            WorkloadId::Run(id) => self.note_run(id, detail).await,
        }
    }

    /// Takes in that a volume is gone.
    pub(crate) async fn volume_removed(
        &self,
        workload: WorkloadId,
        volume: VolumeId,
    ) -> Result<(), SchedulerError> {
        match workload {
            WorkloadId::Server(id) => self.server_volume_removed(id).await,
            WorkloadId::Run(id) => self.run_volume_removed(id, volume).await,
        }
    }

    async fn take_in_server(
        &self,
        id: ServerId,
        node: NodeId,
        workload: &Workload,
    ) -> Result<(), SchedulerError> {
        // Most reports of a renewal say nothing new, and need no transaction.
        let known = store::server::get(self.db.read(), id).await?;
        if !known.is_some_and(|server| is_news(&server, workload)) {
            return Ok(());
        }
        let now = self.now();
        let changed = self
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, id).await? else {
                    return Ok(None);
                };
                let Some(grant) = current_grant(&tx, server.grant, node, workload.fence).await?
                else {
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
                let started = server.state == State::Ready && was != State::Ready;
                if started {
                    let ready = workload.environment_was_ready;
                    self.learn(&tx, &server, &grant, ready, now).await?;
                }
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some((server, started)))
            })
            .await?;
        if let Some((server, true)) = &changed {
            self.cell.started(node, &server.image);
        }
        self.after(changed.map(|(server, _)| server));
        Ok(())
    }

    async fn server_gone(
        &self,
        server: ServerId,
        grant: GrantId,
        how: Gone<'_>,
    ) -> Result<(), SchedulerError> {
        let (event, failure) = match how {
            Gone::Asked => (Event::WorkloadEnded, None),
            Gone::Failed(failure) | Gone::Lost(failure) => (Event::WorkloadFailed, Some(failure)),
        };
        let now = self.now();
        let changed = self
            .write(|tx| async move {
                let Some(mut server) = store::server::get(&tx, server).await? else {
                    return Ok(None);
                };
                if server.grant != Some(grant) {
                    return Ok(None);
                }
                self.advance(&tx, &mut server, event, failure.cloned(), now)
                    .await?;
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>(Some(server))
            })
            .await?;
        self.after(changed);
        Ok(())
    }

    async fn note_server(&self, server: ServerId, detail: &str) -> Result<(), SchedulerError> {
        let changed = self
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

    async fn server_volume_removed(&self, server: ServerId) -> Result<(), SchedulerError> {
        let now = self.now();
        let changed = self
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
        }
    }
}

fn is_news(server: &Server, workload: &Workload) -> bool {
    server.grant.is_some() && workload.sequence >= server.sequence
}

/// The grant of a workload, if a report from this node under this fence is about it.
pub(super) async fn current_grant(
    tx: &cnlab_db::Tx,
    grant: Option<GrantId>,
    node: NodeId,
    fence: u64,
) -> Result<Option<store::record::Grant>, SchedulerError> {
    let Some(id) = grant else {
        return Ok(None);
    };
    let grant = grant::get(tx, id).await?;
    Ok(grant.filter(|grant| grant.fence == fence && grant.node == node))
}

fn event_of(state: &WorkloadState) -> (Event, Option<Failure>) {
    match state {
        WorkloadState::Preparing(phase) => (Event::PhaseReached(*phase), None),
        // Those of a command are refused where messages are read.
        WorkloadState::Ready | WorkloadState::Running => (Event::PageAnswered, None),
        WorkloadState::Stopping => (Event::EndingBegun, None),
        WorkloadState::Stopped | WorkloadState::Succeeded => (Event::WorkloadEnded, None),
        WorkloadState::Failed(failure) => (Event::WorkloadFailed, Some(failure.clone())),
    }
}

/// A refusal of a node as the failure of the workload.
pub(crate) fn failure_of(workload: WorkloadId, refused: &CallError) -> Failure {
    let error = &refused.error;
    let (what, again) = match workload {
        WorkloadId::Server(_) => ("server", "cnlab server start"),
        WorkloadId::Run(_) => ("run", "cnlab run submit"),
    };
    Failure {
        reason: error.reason.clone(),
        message: format!("the node refused to start the {what}: {}", error.message),
        cause: error.cause.clone().unwrap_or_default(),
        try_this: error
            .try_this
            .clone()
            .unwrap_or_else(|| format!("see the log of the node, then `{again}`")),
    }
}

/// The failure of a workload whose node does not know it any more.
pub(crate) fn lost_by_node(workload: WorkloadId, node: &str) -> Failure {
    let (what, try_this) = match workload {
        WorkloadId::Server(_) => (
            "server",
            "start it again with `cnlab server start`; its files are kept",
        ),
        WorkloadId::Run(_) => ("run", "submit it again with `cnlab run submit`"),
    };
    Failure {
        reason: "PROCESS_ENDED".to_owned(),
        message: format!("the processes of the {what} on {node} are gone"),
        cause: "the node does not run it any more, which a restart of the machine does".to_owned(),
        try_this: try_this.to_owned(),
    }
}
