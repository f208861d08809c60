//! Submitting a run.

use std::time::Duration;

use cnlab_model::{
    RunName, Timestamp,
    id::{RunId, VolumeId},
};
use cnlab_service::{Caller, trace};
use scheduler_core::{
    order::Priority,
    profile::Profile,
    run::{Kind, State},
};

use super::RunView;
use crate::{
    app::{
        App,
        create::{gpus_of, project_of},
        once::Attempt,
    },
    cell::{Placed, Who, Wish},
    error::SchedulerError,
    store::record::Run,
};

/// The volume of a run that says nothing of its size.
const STORAGE: u64 = 1_000_000_000;
/// Most bytes of a command: below what every kernel takes, with room for the environment.
const COMMAND: usize = 64 * 1024;

/// What becomes of a run that cannot be expected to meet its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLate {
    Refuse,
    Accept,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct NewRun {
    /// Empty: one is made.
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) profile: String,
    pub(crate) command: Vec<String>,
    /// 0: a small one.
    pub(crate) storage_bytes: u64,
    /// Empty: the caller's default project.
    pub(crate) project: String,
    pub(crate) priority: Priority,
    pub(crate) kind: Kind,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) on_late: OnLate,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) install_heavy: bool,
    /// How many slices; one where nothing is said.
    pub(crate) gpus: Option<u32>,
}

impl App {
    /// Queues a run, and starts it where a slice is free.
    pub(crate) async fn submit(
        &self,
        caller: &Caller,
        ask: NewRun,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        let run = match self.new_run(caller, &ask) {
            Ok(run) => run,
            // Catalogues and deadlines pass; what was answered once holds.
            Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
        };
        let traceparent = run.traceparent.clone();
        let wish = Wish::New {
            who: Who::Run(Box::new(run)),
            profile: ask.profile,
            on_late: ask.on_late,
        };
        match self.cell.want(wish, attempt, traceparent).await? {
            Placed::Run(view) => Ok(*view),
            Placed::Server(_) => Err(SchedulerError::ChangedMeanwhile),
        }
    }

    fn new_run(&self, caller: &Caller, ask: &NewRun) -> Result<Run, SchedulerError> {
        let id = RunId::from_ulid(self.runtime.ids.ulid());
        let name = if ask.name.is_empty() {
            RunName::of(id)
        } else {
            ask.name.parse().map_err(SchedulerError::RunNameInvalid)?
        };
        let project = project_of(caller, &ask.project)?;
        check_command(&ask.command)?;
        let image = self.catalogue.image(&ask.image)?;
        let now = self.now();
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(SchedulerError::DeadlinePast);
        }
        if ask.max_runtime.is_some_and(|longest| longest.is_zero()) {
            return Err(SchedulerError::MaxRuntimeZero);
        }
        Ok(Run {
            id,
            name,
            project,
            owner: caller.user_id,
            team: caller.team_id,
            // Filled in by who places, who knows the profiles of the moment.
            profile: Profile {
                name: ask.profile.clone(),
                gpu_type: String::new(),
                percent: 0,
                memory_bytes: 0,
                cpu_milli: 0,
            },
            gpus: gpus_of(ask.gpus)?,
            image: image.recipe.name.clone(),
            image_reference: image.recipe.reference.clone(),
            install_heavy: ask.install_heavy,
            command: ask.command.clone(),
            storage_bytes: match ask.storage_bytes {
                0 => STORAGE,
                bytes => bytes,
            },
            volume: VolumeId::from_ulid(self.runtime.ids.ulid()),
            priority: ask.priority,
            kind: ask.kind,
            deadline: ask.deadline,
            max_runtime: ask.max_runtime,
            state: State::Queued,
            phase_detail: String::new(),
            grant: None,
            node: None,
            created_at: now,
            placed_at: None,
            started_at: None,
            ended_at: None,
            expected_at: None,
            exit: None,
            failure: None,
            runtime: None,
            attempt: 1,
            losses: 0,
            requeued_because: String::new(),
            sequence: 0,
            traceparent: trace::current_traceparent(),
            version: 1,
        })
    }
}

/// What no kernel could execute is refused before it waits for a slice.
fn check_command(command: &[String]) -> Result<(), SchedulerError> {
    let wrong = |problem: &str| {
        Err(SchedulerError::CommandInvalid {
            problem: problem.to_owned(),
        })
    };
    if command
        .first()
        .is_none_or(|program| program.trim().is_empty())
    {
        return wrong("names no program");
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return wrong("holds a zero byte");
    }
    if command
        .iter()
        .map(|argument| argument.len() + 1)
        .sum::<usize>()
        > COMMAND
    {
        return wrong("is longer than 64 KiB");
    }
    Ok(())
}
