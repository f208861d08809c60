//! Submitting a run.

use std::time::Duration;

use cnlab_model::{
    RunName, Timestamp,
    id::{GrantId, RunId, VolumeId},
};
use cnlab_service::{Caller, trace};
use scheduler_core::{
    deadline::{Outlook, Verdict, judge},
    estimate::PastStart,
    order::Priority,
    profile::Profile,
    run::{Kind, State},
    runtime_estimate::{self, Basis, ENOUGH, RuntimeEstimator},
};

use super::RunView;
use crate::{
    app::{
        App,
        catalog::profile_named,
        create::project_of,
        once::{self, Attempt, Once},
        place::{Plan, TRIES},
    },
    error::SchedulerError,
    store::{
        self,
        cell::{Cell, request},
        record::Run,
        starts,
    },
};

/// The volume of a run that says nothing of its size.
const STORAGE: u64 = 1_000_000_000;
/// Most bytes of a command: below what every kernel takes, with room for the environment.
const COMMAND: usize = 64 * 1024;
/// How many earlier runs of an image an estimate of length is learned from.
const RUNS: u64 = 200;

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
}

impl App {
    /// Queues a run, and starts it where a slice is free.
    pub(crate) async fn submit(
        &self,
        caller: &Caller,
        ask: NewRun,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        let mut run = match self.new_run(caller, &ask) {
            Ok(run) => run,
            // Catalogues and deadlines pass; what was answered once holds.
            Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
        };
        let past = starts::of_image(self.db.read(), &run.image).await?;
        let length = self.likely_length(&run).await?;
        let _turn = self.turn().await;
        for _ in 0..TRIES {
            let mut cell = self.cell().await?;
            cell.keep_ahead_of(run.turn());
            let plan = self
                .plan_new_run(&cell, &mut run, &ask.profile, &past)
                .and_then(|plan| {
                    self.check_deadline(&run, ask.on_late, &plan, length)?;
                    Ok(plan)
                });
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => return self.kept_answer(attempt).await?.ok_or(error),
            };
            match self.insert_run(&cell, &run, &plan, attempt).await {
                Err(SchedulerError::SliceTaken) => self.metrics.lost_race(),
                done => return done,
            }
        }
        let cell = self.cell().await?;
        let plan = Plan::overtaken();
        let view = self.insert_run(&cell, &run, &plan, attempt).await;
        self.queue.wake();
        view
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
            // Filled in by the plan, which knows the profiles of the moment.
            profile: Profile {
                name: ask.profile.clone(),
                gpu_type: String::new(),
                percent: 0,
                memory_bytes: 0,
                cpu_milli: 0,
            },
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

    fn plan_new_run(
        &self,
        cell: &Cell,
        run: &mut Run,
        profile: &str,
        past: &[PastStart],
    ) -> Result<Plan, SchedulerError> {
        let offered = cell.profiles(&self.catalogue.profiles, &self.catalogue.templates);
        run.profile = profile_named(&offered, profile)?.clone();
        let request = request(&run.profile, run.storage_bytes, None);
        self.plan(cell, &*run, &request, past)
    }

    /// How long runs like this one took; `None` when too few are known, or nobody asks.
    async fn likely_length(&self, run: &Run) -> Result<Option<Duration>, SchedulerError> {
        if run.deadline.is_none() {
            return Ok(None);
        }
        let mut estimator = RuntimeEstimator::default();
        for past in store::run::ended(self.db.read(), &run.image, RUNS).await? {
            if let (Some(began), Some(ended)) = (past.started_at, past.ended_at) {
                estimator.learn(&alike(&past), ended.since(began));
            }
        }
        Ok(estimator
            .length(&alike(run))
            .and_then(|estimate| match estimate.basis {
                Basis::History { runs, .. } if runs >= ENOUGH => Some(estimate.likely),
                // A declared longest time says when it ends at the latest, not when it can.
                Basis::History { .. } | Basis::Declared | Basis::Outlived => None,
            }))
    }

    fn check_deadline(
        &self,
        run: &Run,
        on_late: OnLate,
        plan: &Plan,
        length: Option<Duration>,
    ) -> Result<(), SchedulerError> {
        let (Some(deadline), OnLate::Refuse) = (run.deadline, on_late) else {
            return Ok(());
        };
        let (wait, start) = match plan {
            Plan::Place(slot) => (Some(Duration::ZERO), slot.expected()),
            Plan::Queue { wait, start, .. } => (*wait, *start),
        };
        let outlook = Outlook {
            wait,
            start,
            length,
        };
        let now = self.now();
        match judge(outlook, deadline, now) {
            Verdict::Possible => Ok(()),
            late @ (Verdict::BeginsTooLate { .. } | Verdict::EndsTooLate { .. }) => {
                let why = late.why_not(now).unwrap_or_default();
                Err(SchedulerError::DeadlineUnreachable { why })
            }
        }
    }

    async fn insert_run(
        &self,
        cell: &Cell,
        new: &Run,
        plan: &Plan,
        attempt: &Attempt,
    ) -> Result<RunView, SchedulerError> {
        let now = self.now();
        let grant = GrantId::from_ulid(self.runtime.ids.ulid());
        let (view, first) = self
            .db
            .write(|tx| async move {
                let pending = match attempt.begin(&tx, now).await? {
                    Once::Again(view) => return Ok((*view, false)),
                    Once::First(pending) => pending,
                };
                let mut run = new.clone();
                let grant = self.carry_out_run(&tx, &mut run, plan, grant, now).await?;
                store::run::insert(&tx, &run).await?;
                let node_name = run
                    .node
                    .and_then(|node| cell.node(node))
                    .map(|node| node.name.clone());
                let view = RunView::new(run, grant, node_name, now);
                once::finish(&tx, pending, &view).await?;
                Ok::<_, SchedulerError>((view, true))
            })
            .await?;
        if first {
            tracing::info!(cnlab.run_id = %view.run.id, name = %view.run.name, "run submitted");
            self.publish(&view.run);
        }
        Ok(view)
    }
}

/// What runs have in common that last about as long.
fn alike(run: &Run) -> runtime_estimate::Kind {
    runtime_estimate::Kind {
        team: run.team,
        image: run.image.clone(),
        profile: run.profile.name.clone(),
        max_runtime: run.max_runtime,
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
