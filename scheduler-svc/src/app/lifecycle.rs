//! Starting, stopping and deleting: what users ask of a server, and how each step is written
//! down.

use std::time::Duration;

use cnlab_db::Tx;
use cnlab_model::{Timestamp, id::GrantId};
use cnlab_service::{Caller, trace};
use scheduler_core::{
    estimate::PastStart,
    server::{Event, State, step},
};

use super::{
    App,
    once::{self, Attempt, Once},
    view::View,
};
use crate::{
    cell::Wish,
    error::SchedulerError,
    store::{
        self, grant,
        job::{self, Job},
        record::{Failure, Grant, Server},
        starts,
    },
};

impl App {
    /// Starts a stopped or failed server on a slice of its profile; one that runs runs on.
    pub(crate) async fn start(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        let found = match self.find(caller, wanted).await {
            Ok(found) => found,
            Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
        };
        let traceparent = trace::current_traceparent();
        let wish = Wish::Start(found.id);
        self.want_server(wish, attempt, traceparent).await
    }

    /// Ends a server's processes; its volume stays.
    pub(crate) async fn stop(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        match self.find(caller, wanted).await {
            Ok(found) => self.change(&found, Ending::Stop, attempt).await,
            Err(error) => self.kept_answer(attempt).await?.ok_or(error),
        }
    }

    /// Ends a server and removes it together with its volume.
    pub(crate) async fn delete(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        match self.find(caller, wanted).await {
            Ok(found) => self.change(&found, Ending::Delete, attempt).await,
            Err(error) => self.kept_answer(attempt).await?.ok_or(error),
        }
    }

    async fn change(
        &self,
        found: &Server,
        wish: Ending,
        attempt: &Attempt,
    ) -> Result<View, SchedulerError> {
        let now = self.now();
        let (view, changed) = self
            .write(|tx| async move {
                let pending = match attempt.begin(&tx, now).await? {
                    Once::Again(view) => return Ok((*view, false)),
                    Once::First(pending) => pending,
                };
                let mut server = store::server::get(&tx, found.id)
                    .await?
                    .ok_or(SchedulerError::ChangedMeanwhile)?;
                let changed = self.grant_wish(&tx, &mut server, wish, now).await?;
                if changed {
                    store::server::update(&tx, &mut server).await?;
                }
                let (grant, node_name) =
                    store::surroundings(&tx, server.grant, server.node).await?;
                let view = View::new(server, grant, node_name, now);
                once::finish(&tx, pending, &view).await?;
                Ok::<_, SchedulerError>((view, changed))
            })
            .await?;
        if changed {
            self.publish(&view.server);
        }
        Ok(view)
    }

    /// Answers whether anything changed.
    async fn grant_wish(
        &self,
        tx: &Tx,
        server: &mut Server,
        wish: Ending,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let before = server.state;
        let event = match wish {
            Ending::Stop => Event::StopRequested,
            Ending::Delete => Event::DeleteRequested,
        };
        server.state = step(before, event).map_err(SchedulerError::NotNow)?;
        if server.state == before {
            return Ok(false);
        }
        server.expected_at = None;
        server.queued_at = None;
        server.phase_detail = String::new();
        if let Some(grant) = server.grant {
            let stop = Job::Stop {
                workload: server.id.into(),
                grant,
            };
            let traceparent = trace::current_traceparent();
            job::push(tx, &stop, server.node, traceparent, now).await?;
        } else if server.state == State::Deleting {
            self.remove_volume(tx, server, now).await?;
        } else {
            server.stopped_at = Some(now);
        }
        Ok(true)
    }

    /// Goes on with a deletion when nothing runs any more.
    async fn remove_volume(
        &self,
        tx: &Tx,
        server: &mut Server,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        match store::volume::node_of(tx, server.volume).await? {
            Some(node) => {
                let remove = Job::RemoveVolume {
                    workload: server.id.into(),
                    volume: server.volume,
                    node,
                };
                job::push(tx, &remove, None, trace::current_traceparent(), now).await
            }
            // It was never used, so there is nothing to remove.
            None => self
                .advance(tx, server, Event::VolumeRemoved, None, now)
                .await
                .map(drop),
        }
    }

    /// Takes an event into a server: its state, its times, and with the end of its processes
    /// its slice. Answers `false` when the event has no place in its state.
    pub(crate) async fn advance(
        &self,
        tx: &Tx,
        server: &mut Server,
        event: Event,
        failure: Option<Failure>,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let before = server.state;
        server.state = match step(before, event) {
            Ok(next) => next,
            Err(refused) => {
                tracing::debug!(cnlab.server_id = %server.id, %refused, "event dropped");
                return Ok(false);
            }
        };
        if server.state != before {
            match server.state {
                State::Ready => {
                    server.ready_at = Some(now);
                    server.expected_at = None;
                    server.phase_detail = String::new();
                }
                State::Stopped | State::Failed => {
                    server.stopped_at = Some(now);
                    server.expected_at = None;
                    server.phase_detail = String::new();
                    // Of one that a drain stopped, the drain is why.
                    server.failure = server.failure.take().or(failure);
                }
                State::Stopping | State::Deleting => {
                    server.expected_at = None;
                    server.phase_detail = String::new();
                }
                State::Deleted => {
                    store::volume::gone(tx, server.volume, now).await?;
                    server.stopped_at = server.stopped_at.or(Some(now));
                    server.phase_detail = String::new();
                }
                State::Queued | State::Provisioning { .. } => {}
            }
            tracing::info!(cnlab.server_id = %server.id, from = %before, to = %server.state, "server changed");
        }
        match event {
            Event::WorkloadEnded | Event::WorkloadFailed => self.give_back(tx, server, now).await?,
            Event::SlicePlaced
            | Event::PhaseReached(_)
            | Event::PageAnswered
            | Event::EndingBegun
            | Event::StartRequested
            | Event::StopRequested
            | Event::DeleteRequested
            | Event::VolumeRemoved => {}
        }
        Ok(true)
    }

    /// Releases the slice of a server whose processes are gone.
    async fn give_back(
        &self,
        tx: &Tx,
        server: &mut Server,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        let Some(id) = server.grant.take() else {
            return Ok(());
        };
        server.node = None;
        release(tx, id, now).await?;
        if server.state == State::Deleting {
            Box::pin(self.remove_volume(tx, server, now)).await?;
        }
        Ok(())
    }

    /// Remembers how long a start took.
    pub(crate) async fn learn(
        &self,
        tx: &Tx,
        server: &Server,
        grant: &Grant,
        environment_ready: bool,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        let took: Duration = now.since(grant.granted_at);
        self.metrics.started(took, environment_ready);
        let past = PastStart {
            image: server.image.clone(),
            node: grant.node,
            environment_ready,
            took,
        };
        starts::add(tx, &past, now).await?;
        store::roster::image_ready(tx, grant.node, &server.image).await
    }
}

/// Gives the blocks of a grant back and ends its usage, once.
pub(super) async fn release(tx: &Tx, id: GrantId, now: Timestamp) -> Result<(), SchedulerError> {
    if grant::release(tx, id, now).await? {
        let close = Job::CloseUsage {
            grant: id,
            ended_at: now,
        };
        job::push(tx, &close, None, trace::current_traceparent(), now).await?;
    }
    Ok(())
}

/// What a user wants of a server, beside its start.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Stop,
    Delete,
}
