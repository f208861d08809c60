//! Cancelling and deleting, and how each step in the life of a run is written down.

use cnlab_db::Tx;
use cnlab_model::{Timestamp, id::VolumeId};
use cnlab_service::{Caller, trace};
use scheduler_core::run::{Event, State, step};

use super::RunView;
use crate::{
    app::{
        App,
        lifecycle::release,
        once::{self, Attempt, Once},
    },
    error::SchedulerError,
    store::{
        self,
        job::{self, Job},
        record::{Exit, Failure, Run},
    },
};

/// What a user wants of a run.
#[derive(Debug, Clone, Copy)]
enum Wish {
    Cancel,
    Delete,
}

/// What is known of the end of an attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Ending {
    pub(super) failure: Option<Failure>,
    pub(super) exit: Option<Exit>,
}

impl App {
    /// Ends a run's processes; its log and its volume stay.
    pub(crate) async fn cancel_run(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        match self.find_run(caller, wanted).await {
            Ok(found) => self.change_run(&found, Wish::Cancel, attempt).await,
            Err(error) => self.kept_answer(attempt).await?.ok_or(error),
        }
    }

    /// Ends a run and removes it together with its log and its volume.
    pub(crate) async fn delete_run(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        match self.find_run(caller, wanted).await {
            Ok(found) => self.change_run(&found, Wish::Delete, attempt).await,
            Err(error) => self.kept_answer(attempt).await?.ok_or(error),
        }
    }

    async fn change_run(
        &self,
        found: &Run,
        wish: Wish,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        let now = self.now();
        let (view, changed) = self
            .write(|tx| async move {
                let pending = match attempt.begin(&tx, now).await? {
                    Once::Again(view) => return Ok((*view, false)),
                    Once::First(pending) => pending,
                };
                let mut run = store::run::get(&tx, found.id)
                    .await?
                    .ok_or(SchedulerError::ChangedMeanwhile)?;
                let changed = self.grant_run_wish(&tx, &mut run, wish, now).await?;
                if changed {
                    store::run::update(&tx, &mut run).await?;
                }
                let (grant, node_name) = store::surroundings(&tx, run.grant, run.node).await?;
                let view = RunView::new(run, grant, node_name, now);
                once::finish(&tx, pending, &view).await?;
                Ok::<_, SchedulerError>((view, changed))
            })
            .await?;
        if changed {
            self.publish(&view.run);
        }
        Ok(view)
    }

    /// Answers whether anything changed.
    async fn grant_run_wish(
        &self,
        tx: &Tx,
        run: &mut Run,
        wish: Wish,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let before = run.state;
        let event = match wish {
            Wish::Cancel => Event::CancelRequested,
            Wish::Delete => Event::DeleteRequested,
        };
        run.state = step(before, event).map_err(SchedulerError::RunNotNow)?;
        if run.state == before {
            return Ok(false);
        }
        run.expected_at = None;
        run.phase_detail = String::new();
        if let Some(grant) = run.grant {
            let stop = Job::Stop {
                workload: run.id.into(),
                grant,
            };
            job::push(tx, &stop, run.node, trace::current_traceparent(), now).await?;
        } else if run.state == State::Deleting {
            run.ended_at = run.ended_at.or(Some(now));
            self.remove_run_volume(tx, run, now).await?;
        } else {
            run.ended_at = Some(now);
            self.metrics.run_ended(outcome(run.state));
        }
        Ok(true)
    }

    /// Goes on with a deletion when nothing runs any more.
    async fn remove_run_volume(
        &self,
        tx: &Tx,
        run: &mut Run,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        if !self.drop_volume_of(tx, run, now).await? {
            // It was never used, so there is nothing to wait for.
            run.state = step(run.state, Event::VolumeRemoved).map_err(SchedulerError::RunNotNow)?;
        }
        Ok(())
    }

    /// Has the present volume of a run removed. Answers `false` when it lies nowhere.
    async fn drop_volume_of(
        &self,
        tx: &Tx,
        run: &Run,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let Some(node) = store::volume::node_of(tx, run.volume).await? else {
            store::volume::gone(tx, run.volume, now).await?;
            return Ok(false);
        };
        let remove = Job::RemoveVolume {
            workload: run.id.into(),
            volume: run.volume,
            node,
        };
        job::push(tx, &remove, None, trace::current_traceparent(), now).await?;
        Ok(true)
    }

    /// Takes an event into a run: its state, its times, and with the end of its processes its
    /// slice. Answers `false` when the event has no place in its state.
    pub(super) async fn advance_run(
        &self,
        tx: &Tx,
        run: &mut Run,
        event: Event,
        ending: Ending,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let before = run.state;
        run.state = match step(before, event) {
            Ok(next) => next,
            Err(refused) => {
                tracing::debug!(cnlab.run_id = %run.id, %refused, "event dropped");
                return Ok(false);
            }
        };
        if run.state != before {
            tracing::info!(cnlab.run_id = %run.id, from = %before, to = %run.state, "run changed");
            run.expected_at = match run.state {
                State::Provisioning { .. } => run.expected_at,
                State::Queued
                | State::Running
                | State::Cancelling
                | State::Succeeded
                | State::Failed
                | State::Cancelled
                | State::TimedOut
                | State::Deleting
                | State::Deleted => None,
            };
            run.phase_detail = String::new();
            if run.state == State::Running {
                run.started_at = Some(now);
            }
        }
        let is_end = match event {
            Event::CommandSucceeded | Event::CommandFailed | Event::TimeOver | Event::Requeued => {
                true
            }
            Event::SlicePlaced
            | Event::PhaseReached(_)
            | Event::CommandStarted
            | Event::EndingBegun
            | Event::CancelRequested
            | Event::DeleteRequested
            | Event::VolumeRemoved => false,
        };
        // Whether its processes were not known to be gone before.
        if is_end && let Some(grant) = run.grant.take() {
            release(tx, grant, now).await?;
            self.end_attempt(tx, run, ending, now).await?;
        }
        Ok(true)
    }

    /// What follows when the processes of an attempt are gone.
    async fn end_attempt(
        &self,
        tx: &Tx,
        run: &mut Run,
        ending: Ending,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        run.node = None;
        self.metrics.run_ended(outcome(run.state));
        match run.state {
            State::Queued => return self.begin_anew(tx, run, ending, now).await,
            State::Deleting => {
                run.ended_at = Some(now);
                return self.remove_run_volume(tx, run, now).await;
            }
            State::Failed | State::TimedOut => run.failure = ending.failure,
            State::Succeeded
            | State::Cancelled
            | State::Provisioning { .. }
            | State::Running
            | State::Cancelling
            | State::Deleted => {}
        }
        run.ended_at = Some(now);
        run.exit = ending.exit;
        if run.exit.is_some() {
            // It was over before anybody heard that it began.
            run.started_at = run.started_at.or(Some(now));
        }
        Ok(())
    }

    /// Puts a run back into the queue at its old place. What it left is removed: every attempt
    /// begins with an empty volume, wherever it goes.
    async fn begin_anew(
        &self,
        tx: &Tx,
        run: &mut Run,
        ending: Ending,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        self.drop_volume_of(tx, run, now).await?;
        run.volume = VolumeId::from_ulid(self.runtime.ids.ulid());
        let (id, size) = (run.id.into(), run.storage_bytes);
        store::volume::insert(tx, run.volume, id, size, now, None).await?;
        run.attempt = run.attempt.saturating_add(1);
        run.placed_at = None;
        run.started_at = None;
        run.exit = None;
        run.failure = None;
        run.runtime = None;
        run.sequence = 0;
        run.requeued_because = ending
            .failure
            .map(|failure| match failure.cause.as_str() {
                "" => failure.message,
                cause => format!("{}: {cause}", failure.message),
            })
            .unwrap_or_default();
        Ok(())
    }
}

/// How an attempt ended, as a label.
const fn outcome(state: State) -> &'static str {
    match state {
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
        State::TimedOut => "timed_out",
        State::Deleting | State::Deleted => "deleted",
        State::Queued | State::Provisioning { .. } | State::Running | State::Cancelling => {
            "requeued"
        }
    }
}
