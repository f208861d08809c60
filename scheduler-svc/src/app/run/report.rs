//! What nodes say of runs.

use cnlab_model::{
    Timestamp,
    id::{GrantId, NodeId, RunId, VolumeId},
};
use scheduler_core::run::{Event, State, after_loss};

use super::lifecycle::Ending;
use crate::{
    app::{
        App,
        node::ended_in_order,
        report::{Gone, current_grant},
    },
    error::SchedulerError,
    ports::{EndCause, Workload, WorkloadState},
    store::{
        self, grant,
        record::{Failure, Grant, Node, Run, RuntimeFacts},
        roster,
    },
};

impl App {
    pub(in crate::app) async fn take_in_run(
        &self,
        id: RunId,
        node: NodeId,
        workload: &Workload,
    ) -> Result<(), SchedulerError> {
        // Most reports of a renewal say nothing new, and need no transaction.
        let known = store::run::get(self.db.read(), id).await?;
        if !known.is_some_and(|run| is_news(&run, workload)) {
            return Ok(());
        }
        let now = self.now();
        let changed = self
            .write(|tx| async move {
                let Some(mut run) = store::run::get(&tx, id).await? else {
                    return Ok(None);
                };
                let grant = current_grant(&tx, run.grant, node, workload.fence).await?;
                let Some(grant) = grant.filter(|_| is_news(&run, workload)) else {
                    return Ok(None);
                };
                grant::delivered(&tx, grant.id, now).await?;
                run.sequence = workload.sequence.saturating_add(1);
                let was = run.state;
                if workload.facts != RuntimeFacts::default() {
                    run.runtime = Some(workload.facts.clone());
                }
                let (event, mut ending) = event_of(&mut run, workload, &grant);
                if event == Event::Requeued && ending.failure.is_none() {
                    ending.failure = Some(ended_in_order(&tx, &grant).await?);
                }
                self.advance_run(&tx, &mut run, event, ending, now).await?;
                if let State::Provisioning { .. } = run.state {
                    run.phase_detail.clone_from(&workload.detail);
                }
                let began = run.state == State::Running && was != State::Running;
                if began {
                    roster::image_ready(&tx, grant.node, &run.image).await?;
                }
                store::run::update(&tx, &mut run).await?;
                Ok::<_, SchedulerError>(Some((run, began)))
            })
            .await?;
        if let Some((run, true)) = &changed {
            self.cell.started(node, &run.image);
        }
        self.after_run(changed.map(|(run, _)| run));
        Ok(())
    }

    pub(in crate::app) async fn run_gone(
        &self,
        id: RunId,
        grant: GrantId,
        how: Gone<'_>,
    ) -> Result<(), SchedulerError> {
        self.run_gone_if_silent(id, grant, how, None).await
    }

    /// The same, only if its node was not heard of since a time, where one is given.
    async fn run_gone_if_silent(
        &self,
        id: RunId,
        grant: GrantId,
        how: Gone<'_>,
        before: Option<Timestamp>,
    ) -> Result<(), SchedulerError> {
        let now = self.now();
        let changed = self
            .write(|tx| async move {
                let Some(mut run) = store::run::get(&tx, id).await? else {
                    return Ok(None);
                };
                let Some(grant) = grant::get(&tx, grant).await? else {
                    return Ok(None);
                };
                if run.grant != Some(grant.id) {
                    return Ok(None);
                }
                // In the transaction: a renewal at this moment comes before or after.
                if let Some(before) = before
                    && let Some(node) = roster::node(&tx, grant.node).await?
                    && node.last_seen_at >= before
                {
                    return Ok(None);
                }
                let (event, failure) = match how {
                    Gone::Asked => (Event::Requeued, ended_in_order(&tx, &grant).await?),
                    Gone::Failed(failure) => (Event::CommandFailed, failure.clone()),
                    Gone::Lost(failure) => (lose(&mut run, &grant), failure.clone()),
                };
                let ending = Ending {
                    failure: Some(failure),
                    exit: None,
                };
                self.advance_run(&tx, &mut run, event, ending, now).await?;
                store::run::update(&tx, &mut run).await?;
                Ok::<_, SchedulerError>(Some(run))
            })
            .await?;
        self.after_run(changed);
        Ok(())
    }

    /// Takes a run away from a node that was not heard of since `before`, unless it was heard
    /// of meanwhile.
    pub(super) async fn run_expired(
        &self,
        id: RunId,
        grant: &Grant,
        node: &Node,
        before: Timestamp,
    ) -> Result<(), SchedulerError> {
        tracing::warn!(
            cnlab.run_id = %id,
            cnlab.node_id = %node.id,
            cnlab.lease_fence = grant.fence,
            "the grant of a run has expired"
        );
        let lost = Failure {
            reason: "NODE_LOST".to_owned(),
            message: format!("the node {} was lost", node.name),
            cause: format!("it was not heard of for {}", self.grants.ttl),
            try_this: "submit it again with `cnlab run submit`".to_owned(),
        };
        let how = Gone::Lost(&lost);
        self.run_gone_if_silent(id, grant.id, how, Some(before))
            .await
    }

    pub(in crate::app) async fn note_run(
        &self,
        id: RunId,
        detail: &str,
    ) -> Result<(), SchedulerError> {
        let changed = self
            .write(|tx| async move {
                let Some(mut run) = store::run::get(&tx, id).await? else {
                    return Ok(None);
                };
                if !run.state.may_run() || run.phase_detail == detail {
                    return Ok(None);
                }
                detail.clone_into(&mut run.phase_detail);
                store::run::update(&tx, &mut run).await?;
                Ok::<_, SchedulerError>(Some(run))
            })
            .await?;
        self.after_run(changed);
        Ok(())
    }

    pub(in crate::app) async fn run_volume_removed(
        &self,
        id: RunId,
        volume: VolumeId,
    ) -> Result<(), SchedulerError> {
        let now = self.now();
        let changed = self
            .write(|tx| async move {
                store::volume::gone(&tx, volume, now).await?;
                let run = store::run::get(&tx, id).await?;
                // One of an earlier attempt changes nothing.
                let Some(mut run) = run.filter(|run| run.volume == volume) else {
                    return Ok(None);
                };
                let (event, ending) = (Event::VolumeRemoved, Ending::default());
                if !self.advance_run(&tx, &mut run, event, ending, now).await? {
                    return Ok(None);
                }
                store::run::update(&tx, &mut run).await?;
                Ok::<_, SchedulerError>(Some(run))
            })
            .await?;
        self.after_run(changed);
        Ok(())
    }

    fn after_run(&self, changed: Option<Run>) {
        if let Some(run) = changed {
            self.publish(&run);
        }
    }
}

fn is_news(run: &Run, workload: &Workload) -> bool {
    run.grant.is_some() && workload.sequence >= run.sequence
}

/// What a report means. The loss of a grant is counted here.
fn event_of(run: &mut Run, workload: &Workload, grant: &Grant) -> (Event, Ending) {
    let exit = workload.exit;
    let ended = |failure: Option<Failure>| Ending { failure, exit };
    match &workload.state {
        WorkloadState::Preparing(phase) => (Event::PhaseReached(*phase), Ending::default()),
        WorkloadState::Running | WorkloadState::Ready => (Event::CommandStarted, Ending::default()),
        WorkloadState::Stopping => (Event::EndingBegun, Ending::default()),
        WorkloadState::Succeeded => (Event::CommandSucceeded, ended(None)),
        // Why is known to the node's row.
        WorkloadState::Stopped => (Event::Requeued, ended(None)),
        WorkloadState::Failed(failure) => {
            let event = match workload.cause {
                None => Event::CommandFailed,
                Some(EndCause::MaxRuntime) => Event::TimeOver,
                Some(EndCause::GrantExpired | EndCause::Lost) => lose(run, grant),
            };
            (event, ended(Some(failure.clone())))
        }
    }
}

/// Counts a loss of the node, if the node is known to have had the run.
fn lose(run: &mut Run, grant: &Grant) -> Event {
    if grant.delivered_at.is_none() {
        return Event::Requeued;
    }
    let event = after_loss(run.losses);
    run.losses = run.losses.saturating_add(1);
    event
}
