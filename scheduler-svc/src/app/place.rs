//! Placing: a decision becomes a grant in one transaction.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use cnlab_db::Tx;
use cnlab_model::{
    Timestamp,
    id::{GrantId, VolumeId, WorkloadId},
};
use cnlab_service::trace;
use scheduler_core::{
    Decision, Placement, RejectReason, Request, decide, estimate,
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
        cell::{Cell, Waiter, Waiting},
        grant,
        job::{self, Job},
        record::{Grant, Node, Run, Server},
        starts,
    },
};

/// How often a lost race is tried again before the server waits in the queue.
pub(crate) const TRIES: usize = 3;

/// Most servers of the queue that get their slices in one turn.
const PASS: usize = 32;

/// By how much an expectation changes before it is told again.
const RETELL: Duration = Duration::from_secs(30);

/// What a start is judged by, of a server or a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    profile: &'a Profile,
    image: &'a str,
    install_heavy: bool,
}

impl<'a> From<&'a Server> for Wanted<'a> {
    fn from(server: &'a Server) -> Self {
        Self {
            profile: &server.profile,
            image: &server.image,
            install_heavy: server.install_heavy,
        }
    }
}

impl<'a> From<&'a Run> for Wanted<'a> {
    fn from(run: &'a Run) -> Self {
        Self {
            profile: &run.profile,
            image: &run.image,
            install_heavy: run.install_heavy,
        }
    }
}

/// What will be done with somebody who wants a slice.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// It gets this slice.
    Place(Slot),
    /// It waits.
    Queue {
        detail: String,
        /// Until it gets a slice.
        wait: Option<Duration>,
        /// From then until it is ready.
        start: Duration,
    },
}

impl Plan {
    /// What is said when every try to place was overtaken by others.
    pub(crate) fn overtaken() -> Self {
        Self::Queue {
            detail: "others took the free slices meanwhile".to_owned(),
            wait: None,
            start: Duration::ZERO,
        }
    }

    /// Until it is ready.
    pub(crate) fn expected(&self) -> Option<Duration> {
        match self {
            Self::Place(slot) => Some(slot.expected),
            Self::Queue { wait, start, .. } => wait.map(|wait| wait.saturating_add(*start)),
        }
    }
}

/// A free slice, as it was decided on.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    placement: Placement,
    /// The version of the GPU on which that was decided.
    gpu_version: i64,
    gpu_type: String,
    /// Until the workload is ready.
    expected: Duration,
}

impl Slot {
    /// Until the workload is ready.
    pub(crate) const fn expected(&self) -> Duration {
        self.expected
    }
}

/// Who takes a slot.
#[derive(Debug)]
pub(crate) struct Taker {
    pub(crate) workload: WorkloadId,
    pub(crate) volume: VolumeId,
    pub(crate) traceparent: Option<String>,
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
    pub(crate) fn plan<'a>(
        &self,
        cell: &Cell,
        wanted: impl Into<Wanted<'a>>,
        request: &Request,
        past: &[PastStart],
    ) -> Result<Plan, SchedulerError> {
        let wanted = wanted.into();
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
                Ok(Plan::Place(Slot {
                    expected: self.start_time(cell, wanted, Some(&placement), past),
                    gpu_version: gpu.version,
                    gpu_type: gpu.family.clone(),
                    placement,
                }))
            }
            Decision::Queue { eta, reason } => Ok(Plan::Queue {
                detail: reason.to_string(),
                wait: eta,
                start: self.start_time(cell, wanted, None, past),
            }),
            Decision::Reject { reason } => Err(self.rejected(cell, wanted.profile, reason)),
        }
    }

    fn start_time(
        &self,
        cell: &Cell,
        wanted: Wanted<'_>,
        placement: Option<&Placement>,
        past: &[PastStart],
    ) -> Duration {
        let Ok(image) = self.catalogue.image(wanted.image) else {
            return Duration::ZERO;
        };
        let node = placement.and_then(|placement| cell.node(placement.node));
        let simulated = placement
            .and_then(|placement| cell.gpu(placement.node, &placement.gpu))
            .is_some_and(|gpu| gpu.simulated);
        let has_it = |node: &Node| node.ready_images.iter().any(|ready| ready == wanted.image);
        let ready = match node {
            Some(node) => has_it(node),
            None => cell.nodes.iter().any(has_it),
        };
        let defaults = image.defaults(wanted.install_heavy || !simulated);
        let node = node.map(|node| node.id);
        estimate::provisioning(past, wanted.image, node, ready, defaults)
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

    /// Carries a plan out on a server that waits.
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
        server.expected_at = plan.expected().map(|expected| now.plus(expected));
        let slot = match plan {
            Plan::Queue { detail, .. } => {
                server.phase_detail.clone_from(detail);
                return Ok(None);
            }
            Plan::Place(slot) => slot,
        };
        server.state = step(server.state, Event::SlicePlaced).map_err(SchedulerError::NotNow)?;
        let taker = Taker {
            workload: server.id.into(),
            volume: server.volume,
            traceparent: trace::current_traceparent().or_else(|| server.traceparent.clone()),
        };
        let grant = take_slot(tx, slot, taker, id, now).await?;
        server.grant = Some(id);
        server.node = Some(grant.node);
        server.queued_at = None;
        server.started_at = Some(now);
        server.ready_at = None;
        server.stopped_at = None;
        server.phase_detail = String::new();
        server.failure = None;
        server.runtime = None;
        server.sequence = 0;
        Ok(Some(grant))
    }

    /// Gives slices to those who wait, who goes first and fits first, and says to the others
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
        for Waiting { who, request, .. } in queue {
            if placed == PASS {
                // Requests that people wait for have their turn in between.
                self.queue.wake();
                break;
            }
            let past = match starts_of.entry(who.image().to_owned()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let past = starts::of_image(self.db.read(), who.image()).await?;
                    unknown.insert(past)
                }
            };
            let span = trace::span_with_parent(who.traceparent(), "scheduler.place");
            let done = async {
                match &who {
                    Waiter::Server(server) => self.place_one(&cell, server, &request, past).await,
                    Waiter::Run(run) => self.place_run(&cell, run, &request, past).await,
                }
            };
            let done = done.instrument(span).await;
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

    /// The plan for somebody who waits; `None` when it says nothing new.
    pub(super) fn plan_waiting<'a>(
        &self,
        cell: &Cell,
        wanted: impl Into<Wanted<'a>>,
        request: &Request,
        past: &[PastStart],
        told: (&str, Option<Timestamp>),
    ) -> Option<Plan> {
        let plan = match self.plan(cell, wanted, request, past) {
            Ok(plan) => plan,
            // What it waits for may come back: nodes join, and nobody is told otherwise.
            Err(error) => Plan::Queue {
                detail: error.to_string(),
                wait: None,
                start: Duration::ZERO,
            },
        };
        let now = self.now();
        if let Plan::Queue { detail, .. } = &plan
            && detail == told.0
            && about_the_same(told.1, plan.expected().map(|expected| now.plus(expected)))
        {
            return None;
        }
        Some(plan)
    }

    /// Answers the grant if the server got one.
    async fn place_one(
        &self,
        cell: &Cell,
        read: &Server,
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

/// Takes a slot: the grant with its fence, the blocks, and the messages for the node and the
/// meter.
///
/// # Errors
/// [`SchedulerError::SliceTaken`] when the GPU has changed since the slot was found.
pub(super) async fn take_slot(
    tx: &Tx,
    slot: &Slot,
    taker: Taker,
    id: GrantId,
    now: Timestamp,
) -> Result<Grant, SchedulerError> {
    let Taker {
        workload,
        volume,
        traceparent,
    } = taker;
    let placement = &slot.placement;
    let grant = Grant {
        id,
        fence: grant::next_fence(tx).await?,
        workload,
        node: placement.node,
        gpu_uuid: placement.gpu.clone(),
        gpu_type: slot.gpu_type.clone(),
        blocks: placement.blocks,
        vram_bytes: placement.vram_bytes,
        granted_at: now,
        delivered_at: None,
        released_at: None,
    };
    grant::take(tx, &grant, slot.gpu_version).await?;
    store::volume::place(tx, volume, placement.node).await?;
    let launch = Job::Launch {
        workload,
        grant: id,
    };
    job::push(tx, &launch, Some(grant.node), traceparent.clone(), now).await?;
    job::push(tx, &Job::OpenUsage { grant: id }, None, traceparent, now).await?;
    tracing::info!(
        %workload,
        cnlab.node_id = %grant.node,
        cnlab.lease_fence = grant.fence,
        gpu = grant.gpu_uuid,
        blocks = %grant.blocks,
        "slice granted"
    );
    Ok(grant)
}
