//! Placing: a decision becomes a grant in one transaction.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use cnlab_db::Tx;
use cnlab_model::{Timestamp, id::GrantId};
use cnlab_service::trace;
use scheduler_core::{
    Decision, Placement, QueueReason, RejectReason, Request, decide, estimate,
    estimate::PastStart,
    profile::Profile,
    server::{Event, State, step},
};
use tokio::sync::SemaphorePermit;
use tracing::Instrument as _;

use super::{App, catalog};
use crate::{
    error::SchedulerError,
    metrics::Outcome,
    store::{
        self,
        cell::Cell,
        grant,
        job::{self, Job},
        record::{Grant, Server},
        starts,
    },
};

/// How often a lost race is tried again before the server waits in the queue.
pub(crate) const TRIES: usize = 3;

/// Most servers of the queue that get their slices in one turn.
const PASS: usize = 32;

/// By how much an expectation changes before it is told again.
const RETELL: Duration = Duration::from_secs(30);

/// What will be done with a server that wants a slice.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// It gets this slice.
    Place {
        placement: Placement,
        /// The version of the GPU on which that was decided.
        gpu_version: i64,
        gpu_type: String,
        /// Until it is ready.
        expected: Duration,
    },
    /// It waits.
    Queue {
        detail: String,
        /// Until it is ready.
        expected: Option<Duration>,
    },
}

/// Whether two expectations differ by so little that nobody need be told.
fn about_the_same(told: Option<Timestamp>, now: Option<Timestamp>) -> bool {
    match (told, now) {
        (Some(told), Some(now)) => told.since(now).max(now.since(told)) < RETELL,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

impl App {
    /// Waits for the turn of this placement in this process.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed; without a permit the compare-and-set still decides.
        self.placing.acquire().await.ok()
    }

    /// Asks the core, and says how long the start will take.
    pub(crate) fn plan(
        &self,
        cell: &Cell,
        server: &Server,
        request: &Request,
        past: &[PastStart],
    ) -> Result<Plan, SchedulerError> {
        let decided = decide(&cell.snapshot, request, self.now());
        tracing::debug!(explanation = %decided.explanation, "decided");
        self.metrics.decided(match &decided.decision {
            Decision::Place(_) => Outcome::Place,
            Decision::Queue { .. } => Outcome::Queue,
            Decision::Reject { .. } => Outcome::Reject,
        });
        match decided.decision {
            Decision::Place(placement) => {
                let gpu = cell
                    .gpu(placement.node, &placement.gpu)
                    .ok_or(SchedulerError::SliceTaken)?;
                Ok(Plan::Place {
                    expected: self.start_time(cell, server, Some(&placement), past),
                    gpu_version: gpu.version,
                    gpu_type: gpu.family.clone(),
                    placement,
                })
            }
            Decision::Queue { eta, reason } => Ok(self.queued(cell, server, eta, &reason, past)),
            Decision::Reject { reason } => Err(self.rejected(cell, &server.profile, reason)),
        }
    }

    fn queued(
        &self,
        cell: &Cell,
        server: &Server,
        eta: Option<Duration>,
        reason: &QueueReason,
        past: &[PastStart],
    ) -> Plan {
        let start = self.start_time(cell, server, None, past);
        Plan::Queue {
            detail: reason.to_string(),
            expected: eta.map(|wait| wait.saturating_add(start)),
        }
    }

    fn start_time(
        &self,
        cell: &Cell,
        server: &Server,
        placement: Option<&Placement>,
        past: &[PastStart],
    ) -> Duration {
        let Ok(image) = self.catalogue.image(&server.image) else {
            return Duration::ZERO;
        };
        let node = placement.and_then(|placement| cell.node(placement.node));
        let simulated = placement
            .and_then(|placement| cell.gpu(placement.node, &placement.gpu))
            .is_some_and(|gpu| gpu.simulated);
        let ready = match node {
            Some(node) => node.ready_images.contains(&server.image),
            None => cell
                .nodes
                .iter()
                .any(|node| node.ready_images.contains(&server.image)),
        };
        let defaults = image.defaults(server.install_heavy || !simulated);
        estimate::provisioning(
            past,
            &server.image,
            node.map(|node| node.id),
            ready,
            defaults,
        )
    }

    fn rejected(&self, cell: &Cell, profile: &Profile, reason: RejectReason) -> SchedulerError {
        match reason {
            RejectReason::StorageTooLarge { wanted, largest } => {
                SchedulerError::StorageTooLarge { wanted, largest }
            }
            RejectReason::VolumeElsewhere { node, .. } => SchedulerError::VolumeElsewhere { node },
            why @ (RejectReason::BadSlice { .. }
            | RejectReason::NoNodes
            | RejectReason::NoSuchGpu { .. }) => {
                let offered = cell.profiles(&self.catalogue.profiles, &self.catalogue.templates);
                SchedulerError::ProfileUnavailable {
                    profile: profile.name.clone(),
                    why: why.to_string(),
                    nearest: catalog::nearest(cell, &offered, profile),
                }
            }
        }
    }

    /// Carries a plan out on a server that waits: the grant with its fence, the blocks, and
    /// the messages for the node and the meter.
    ///
    /// # Errors
    /// [`SchedulerError::SliceTaken`] when the GPU has changed since the plan was made.
    pub(crate) async fn carry_out(
        &self,
        tx: &Tx,
        server: &mut Server,
        plan: &Plan,
        id: GrantId,
        now: Timestamp,
    ) -> Result<Option<Grant>, SchedulerError> {
        let (placement, gpu_version, gpu_type, expected) = match plan {
            Plan::Queue { detail, expected } => {
                server.phase_detail.clone_from(detail);
                server.expected_at = expected.map(|expected| now.plus(expected));
                return Ok(None);
            }
            Plan::Place {
                placement,
                gpu_version,
                gpu_type,
                expected,
            } => (placement, *gpu_version, gpu_type, *expected),
        };
        server.state = step(server.state, Event::SlicePlaced).map_err(SchedulerError::NotNow)?;
        let grant = Grant {
            id,
            fence: grant::next_fence(tx).await?,
            server: server.id,
            node: placement.node,
            gpu_uuid: placement.gpu.clone(),
            gpu_type: gpu_type.clone(),
            blocks: placement.blocks,
            vram_bytes: placement.vram_bytes,
            granted_at: now,
            delivered_at: None,
            released_at: None,
        };
        grant::take(tx, &grant, gpu_version).await?;
        store::server::place_volume(tx, server.volume, placement.node).await?;
        server.grant = Some(id);
        server.node = Some(placement.node);
        server.queued_at = None;
        server.started_at = Some(now);
        server.ready_at = None;
        server.stopped_at = None;
        server.expected_at = Some(now.plus(expected));
        server.phase_detail = String::new();
        server.failure = None;
        server.runtime = None;
        server.sequence = 0;
        let traceparent = trace::current_traceparent().or_else(|| server.traceparent.clone());
        let launch = Job::Launch {
            server: server.id,
            grant: id,
        };
        job::push(tx, &launch, server.node, traceparent.clone(), now).await?;
        job::push(tx, &Job::OpenUsage { grant: id }, None, traceparent, now).await?;
        tracing::info!(
            cnlab.server_id = %server.id,
            cnlab.node_id = %grant.node,
            cnlab.lease_fence = grant.fence,
            gpu = grant.gpu_uuid,
            blocks = %grant.blocks,
            "slice granted"
        );
        Ok(Some(grant))
    }

    /// Gives slices to those who wait, the oldest that fits first, and says to the others
    /// what they wait for. Answers how many still wait.
    pub(crate) async fn place_queued(&self) -> Result<usize, SchedulerError> {
        let _turn = self.turn().await;
        let mut cell = self.cell().await?;
        let queue = std::mem::take(&mut cell.queue);
        let all = queue.len();
        let mut starts_of: BTreeMap<String, Vec<PastStart>> = BTreeMap::new();
        let mut placed = 0;
        // What waits before the one that is looked at.
        cell.snapshot.queue.clear();
        for (server, request) in queue {
            if placed == PASS {
                // Requests that people wait for have their turn in between.
                self.queue.wake();
                break;
            }
            let past = match starts_of.entry(server.image.clone()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let past = starts::of_image(self.db.read(), &server.image).await?;
                    unknown.insert(past)
                }
            };
            let span = trace::span_with_parent(server.traceparent.as_deref(), "scheduler.place");
            let done = self
                .place_one(&cell, server, &request, past)
                .instrument(span)
                .await;
            match done {
                Ok(Some(grant)) => {
                    placed += 1;
                    cell.take_in(&grant);
                }
                Ok(None) => cell.snapshot.queue.push(request),
                Err(SchedulerError::SliceTaken | SchedulerError::ChangedMeanwhile) => {
                    // Somebody else was faster; the next tick sees what is left.
                    self.metrics.lost_race();
                    self.queue.wake();
                    let mut waiting = std::mem::take(&mut cell.snapshot.queue);
                    waiting.push(request);
                    cell = self.cell().await?;
                    cell.snapshot.queue = waiting;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all - placed)
    }

    /// Answers the grant if the server got one.
    async fn place_one(
        &self,
        cell: &Cell,
        server: Server,
        request: &Request,
        past: &[PastStart],
    ) -> Result<Option<Grant>, SchedulerError> {
        let plan = match self.plan(cell, &server, request, past) {
            Ok(plan) => plan,
            // What it waits for may come back: nodes join, and nobody is told otherwise.
            Err(error) => Plan::Queue {
                detail: error.to_string(),
                expected: None,
            },
        };
        let now = self.now();
        if let Plan::Queue { detail, expected } = &plan
            && *detail == server.phase_detail
            && about_the_same(
                server.expected_at,
                expected.map(|expected| now.plus(expected)),
            )
        {
            return Ok(None);
        }
        let id = GrantId::from_ulid(self.runtime.ids.ulid());
        let (plan, read) = (&plan, &server);
        let changed = self
            .db
            .write(|tx| async move {
                let mut server = store::server::get(&tx, read.id)
                    .await?
                    .filter(|now| now.version == read.version && now.state == State::Queued)
                    .ok_or(SchedulerError::ChangedMeanwhile)?;
                let grant = self.carry_out(&tx, &mut server, plan, id, now).await?;
                store::server::update(&tx, &mut server).await?;
                Ok::<_, SchedulerError>((server, grant))
            })
            .await?;
        self.publish(&changed.0);
        Ok(changed.1)
    }
}
