//! Placing runs.

use cnlab_db::Tx;
use cnlab_model::{Timestamp, id::GrantId};
use cnlab_service::trace;
use scheduler_core::{
    Request,
    estimate::PastStart,
    run::{Event, State, step},
};

use crate::{
    app::{
        App,
        place::{Plan, Taker, take_slot},
    },
    error::SchedulerError,
    store::{
        self,
        cell::Cell,
        record::{Grant, Run},
    },
};

impl App {
    /// Carries a plan out on a run that waits.
    ///
    /// # Errors
    /// [`SchedulerError::SliceTaken`] when the GPU has changed since the plan was made.
    pub(super) async fn carry_out_run(
        &self,
        tx: &Tx,
        run: &mut Run,
        plan: &Plan,
        id: GrantId,
        now: Timestamp,
    ) -> Result<Option<Grant>, SchedulerError> {
        run.expected_at = plan.expected().map(|expected| now.plus(expected));
        let slot = match plan {
            Plan::Queue { detail, .. } => {
                run.phase_detail.clone_from(detail);
                return Ok(None);
            }
            Plan::Place(slot) => slot,
        };
        run.state = step(run.state, Event::SlicePlaced).map_err(SchedulerError::RunNotNow)?;
        let taker = Taker {
            workload: run.id.into(),
            volume: run.volume,
            traceparent: trace::current_traceparent().or_else(|| run.traceparent.clone()),
        };
        let grant = take_slot(tx, slot, taker, id, now).await?;
        run.grant = Some(id);
        run.node = Some(grant.node);
        run.placed_at = Some(now);
        run.phase_detail = String::new();
        run.sequence = 0;
        Ok(Some(grant))
    }

    /// Answers the grant if the run got one.
    pub(in crate::app) async fn place_run(
        &self,
        cell: &Cell,
        read: &Run,
        request: &Request,
        past: &[PastStart],
    ) -> Result<Option<Grant>, SchedulerError> {
        let told = (read.phase_detail.as_str(), read.expected_at);
        let Some(plan) = self.plan_waiting(cell, read, request, past, told) else {
            return Ok(None);
        };
        let now = self.now();
        let id = GrantId::from_ulid(self.runtime.ids.ulid());
        let plan = &plan;
        let changed = self
            .db
            .write(|tx| async move {
                let mut run = store::run::get(&tx, read.id)
                    .await?
                    .filter(|now| now.version == read.version && now.state == State::Queued)
                    .ok_or(SchedulerError::ChangedMeanwhile)?;
                let grant = self.carry_out_run(&tx, &mut run, plan, id, now).await?;
                store::run::update(&tx, &mut run).await?;
                Ok::<_, SchedulerError>((run, grant))
            })
            .await?;
        self.publish(&changed.0);
        Ok(changed.1)
    }
}
