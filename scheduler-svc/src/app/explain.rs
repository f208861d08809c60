//! Why a server or run waits, where it runs, and who else waits.
//!
//! Everything is asked of the cell in memory, by whoever leads it. What belongs to a project
//! that the caller may not use has neither name nor id here.

use std::time::Duration;

use cnlab_model::{
    ProjectName, Timestamp,
    id::{NodeId, WorkloadId},
};
use cnlab_service::Caller;
use scheduler_core::{explain::Ahead, plan::Priority};

use super::{App, catalog::profile_named, find::LARGEST_PAGE};
use crate::{cell::Who, error::SchedulerError};

const PAGE: u32 = 100;
/// How many of the caller's own on a page of the queue are explained in full: each costs as
/// much as the queue is long.
const EXPLAINED: usize = 20;

/// Where work stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Waiting,
    /// Others are being stopped for it.
    MakingRoom,
    /// No node that would do takes new work.
    NoNode,
    Running,
    Over,
}

/// What an expected start rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    MakingRoom,
    Guaranteed,
    Reserved,
    Expected,
}

/// When work gets its slice, or got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Start {
    pub(crate) at: Option<Timestamp>,
    pub(crate) latest: Option<Timestamp>,
    pub(crate) ready: Option<Timestamp>,
    pub(crate) origin: Option<Origin>,
}

/// The six terms of a decision.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) ahead: Ahead,
    /// 0 of what is not in the queue.
    pub(crate) position: usize,
    pub(crate) queued: usize,
    pub(crate) priority: Priority,
    pub(crate) priority_text: String,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) guaranteed: bool,
    pub(crate) expected_end: Option<Timestamp>,
    pub(crate) deadline_text: String,
    /// Place of the team, and how many teams there are.
    pub(crate) share: (usize, usize),
    pub(crate) share_text: String,
    pub(crate) gpus: Gpus,
    pub(crate) gpu_text: String,
    pub(crate) data: Data,
    pub(crate) queue_text: String,
}

/// How it stands with the GPUs of a type, on nodes that take new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Gpus {
    pub(crate) all: usize,
    /// Entirely free.
    pub(crate) free: usize,
    /// The most free blocks of one.
    pub(crate) widest: u8,
}

/// What the place of data says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Data {
    /// Where its volume ties it to.
    pub(crate) volume_node: Option<String>,
    /// Nodes with such GPUs that take new work.
    pub(crate) nodes: usize,
    /// Those of them that have the environment of its image.
    pub(crate) with_image: usize,
    pub(crate) text: String,
}

/// What keeps work from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocker {
    Reserved,
    Scattered,
    Processors,
    Busy,
    NoNode,
    TooLarge,
    MakingRoom,
    Quota,
}

/// What could be asked for instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    SmallerSlice(String),
    FewerGpus(u8),
    OtherGpu(String),
    Shorter(Duration),
    Priority(Priority),
    AnyNode,
}

/// A change that would start work sooner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sooner {
    pub(crate) change: Change,
    pub(crate) start: Timestamp,
    pub(crate) text: String,
}

/// A GPU of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node_name: String,
    pub(crate) gpu_uuid: String,
    pub(crate) free: u8,
    pub(crate) image_ready: bool,
    pub(crate) fits: bool,
    pub(crate) text: String,
}

/// What a planned length comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LengthOrigin {
    History(usize),
    Declared,
    Unknown,
}

/// For how long work is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Length {
    pub(crate) length: Duration,
    pub(crate) origin: LengthOrigin,
    pub(crate) text: String,
}

/// Where work has a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) node: NodeId,
    pub(crate) node_name: String,
    pub(crate) gpu_uuids: Vec<String>,
    pub(crate) since: Timestamp,
    pub(crate) until: Option<Timestamp>,
    pub(crate) why: String,
}

/// Whether work may be stopped for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preemption {
    pub(crate) possible: bool,
    pub(crate) from: Option<Timestamp>,
    pub(crate) gives_way: bool,
    pub(crate) text: String,
}

/// Why work stands where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Explained {
    pub(crate) id: WorkloadId,
    pub(crate) name: String,
    pub(crate) project: ProjectName,
    pub(crate) profile: String,
    pub(crate) gpu_type: String,
    pub(crate) percent: u8,
    /// How many slices of the profile.
    pub(crate) gpus: u8,
    pub(crate) image: String,
    pub(crate) standing: Standing,
    pub(crate) text: String,
    pub(crate) as_of: Timestamp,
    pub(crate) start: Start,
    pub(crate) terms: Option<Terms>,
    pub(crate) blocker: Option<(Blocker, String)>,
    pub(crate) sooner: Vec<Sooner>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) length: Option<Length>,
    pub(crate) placement: Option<Placement>,
    pub(crate) preemption: Option<Preemption>,
}

impl Explained {
    /// Of somebody of whom nothing more is to be said than this.
    pub(crate) fn bare(who: &Who, standing: Standing, text: String, as_of: Timestamp) -> Self {
        Self {
            id: who.id(),
            name: who.name().to_owned(),
            project: who.project().clone(),
            profile: who.profile().name.clone(),
            gpu_type: who.profile().gpu_type.clone(),
            percent: who.profile().percent,
            gpus: who.gpus(),
            image: who.image().to_owned(),
            standing,
            text,
            as_of,
            start: Start::default(),
            terms: None,
            blocker: None,
            sooner: Vec::new(),
            candidates: Vec::new(),
            length: None,
            placement: None,
            preemption: None,
        }
    }
}

/// Whose work an entry of the queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Yours,
    YourTeam,
    Others,
}

/// What only those are told who may use the project.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub(crate) id: WorkloadId,
    pub(crate) name: String,
    pub(crate) project: ProjectName,
    pub(crate) start: Start,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) guaranteed: bool,
    pub(crate) explained: Option<Box<Explained>>,
}

/// Somebody who waits.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    /// 0 of what is not in the queue.
    pub(crate) position: usize,
    pub(crate) gpu_type: String,
    pub(crate) profile: String,
    /// How many slices of the profile.
    pub(crate) gpus: u8,
    pub(crate) priority: Priority,
    pub(crate) since: Timestamp,
    pub(crate) standing: Standing,
    pub(crate) owner: Owner,
    pub(crate) own: Option<Own>,
}

/// What part of the queue is asked for.
#[derive(Debug, Clone)]
pub(crate) struct QueuePart {
    /// Only those who want this profile.
    pub(crate) profile: Option<String>,
    /// How many entries come before.
    pub(crate) from: usize,
    pub(crate) size: usize,
    /// How many of the caller's own are explained.
    pub(crate) explained: usize,
}

/// A page of the queue.
#[derive(Debug)]
pub(crate) struct QueuePage {
    pub(crate) entries: Vec<Queued>,
    /// Of all pages.
    pub(crate) total: usize,
    /// Where the next page begins; empty after the last.
    pub(crate) next: String,
    pub(crate) as_of: Timestamp,
}

impl App {
    /// Why the server that a caller means stands where it stands.
    pub(crate) async fn explain_server(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Explained, SchedulerError> {
        self.cell.lead().await?;
        let server = self.find(caller, wanted).await?;
        self.explain(caller, Who::Server(Box::new(server))).await
    }

    /// Why the run that a caller means stands where it stands.
    pub(crate) async fn explain_run(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Explained, SchedulerError> {
        self.cell.lead().await?;
        let run = self.find_run(caller, wanted).await?;
        self.explain(caller, Who::Run(Box::new(run))).await
    }

    async fn explain(&self, caller: &Caller, who: Who) -> Result<Explained, SchedulerError> {
        let (id, caller) = (who.id(), caller.clone());
        let ask = move |image: &crate::cell::Image, now| image.explain(id, &caller, now);
        match self.cell.ask(ask).await? {
            Some(explained) => Ok(explained),
            // The row is ahead of what is known in memory, by a moment.
            None if who.waits() || who.grant().is_some() => Err(SchedulerError::ChangedMeanwhile),
            None => {
                let text = format!("{}: wants no slice", who.state_text());
                let now = self.now();
                Ok(Explained::bare(&who, Standing::Over, text, now))
            }
        }
    }

    /// A page of everything that waits.
    pub(crate) async fn queue(
        &self,
        caller: &Caller,
        profile: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<QueuePage, SchedulerError> {
        let size = match page_size {
            0 => PAGE,
            1..=LARGEST_PAGE => page_size,
            _ => return Err(SchedulerError::PageSize),
        };
        let from = match page_token {
            "" => 0,
            token => token.parse().map_err(|_| SchedulerError::PageToken)?,
        };
        let part = QueuePart {
            profile: (!profile.is_empty()).then(|| profile.to_owned()),
            from,
            size: usize::try_from(size).unwrap_or(usize::MAX),
            explained: EXPLAINED,
        };
        self.cell.lead().await?;
        let caller = caller.clone();
        self.cell
            .ask(move |image, now| {
                if let Some(profile) = &part.profile {
                    profile_named(image.offered(), profile)?;
                }
                Ok(image.queue(&part, &caller, now))
            })
            .await?
    }
}
