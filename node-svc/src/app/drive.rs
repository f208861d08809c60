//! Leads one life from its launch, or from where an earlier node-svc left it, to its end.

use std::{sync::Arc, time::Duration};

use node_core::{Event, Holder, Phase, step};
use node_sandbox::RuntimeLimit;
use tracing::Instrument as _;

use super::{
    Node, facts,
    last_words::{CommandEnd, command_ended, died, grant_expired, last_words},
    life::{Launch, Life, Record},
};
use crate::{
    disk::Durability,
    environment::{Environment, Found, Progress},
    failure::Failure,
    notebook::Peer,
    ports::{Attachment, Ended, Process, RunPlan},
};

/// Between two tries to end processes that survive.
const AGAIN: Duration = Duration::from_secs(2);

/// Where a driver begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// With a launch that was just accepted.
    New,
    /// With a record that an earlier node-svc left.
    Found,
}

/// How a life ends.
#[derive(Debug)]
enum End {
    /// As asked.
    Asked,
    /// By itself, or it never came up.
    Failed(Failure),
    /// As the command of a run did.
    Command(Box<CommandEnd>),
}

impl Node {
    pub(super) fn spawn_driver(self: &Arc<Self>, life: Arc<Life>, begin: Begin) {
        let node = Arc::clone(self);
        let traceparent = life.snapshot().record.traceparent;
        let span =
            cnlab_service::trace::span_with_parent(traceparent.as_deref(), "node.RunWorkload");
        let stop = self.runtime.tasks.token().clone();
        let driver = async move {
            let whole = async {
                let end = node.lead(&life, begin).await;
                node.finish(&life, end).await;
            };
            // The node stops: what still runs then is meant to live on, and is found again.
            tokio::select! {
                () = whole => {}
                () = stop.cancelled() => {}
            }
        };
        self.runtime.tasks.spawn("life", driver.instrument(span));
    }

    /// Applies an event to a life, keeps it on disk where it is a new phase, and passes it on.
    pub(super) async fn tell(
        &self,
        life: &Arc<Life>,
        event: Event,
        detail: &str,
        also: impl FnOnce(&mut Record) + Send,
    ) {
        let before = life.phase();
        let changed = life.update(self.runtime.clock.now(), |state| {
            state.record.phase = step(state.record.phase, event);
            detail.clone_into(&mut state.detail);
            also(&mut state.record);
        });
        if !changed {
            return;
        }
        let phase = life.phase();
        if phase != before {
            tracing::info!(workload = %life.holder.workload, fence = life.holder.fence, ?phase, "workload changed");
        }
        if let Err(error) = keep(life, Durability::Atomic).await {
            tracing::warn!(workload = %life.holder.workload, %error, "the state of a workload could not be kept");
        }
        self.changed(life);
    }

    async fn lead(self: &Arc<Self>, life: &Arc<Life>, begin: Begin) -> End {
        let process = match begin {
            Begin::New => self.bring_up(life).await,
            Begin::Found => self.take_up(life).await,
        };
        match process {
            Ok(process) if life.command().is_some() => {
                life.set_process(&process);
                self.watch_command(life, process.as_ref()).await
            }
            Ok(process) => self.watch(life, process.as_ref()).await,
            Err(end) => end,
        }
    }

    /// Takes up a life that an earlier node-svc left in the middle.
    async fn take_up(self: &Arc<Self>, life: &Arc<Life>) -> Result<Arc<dyn Process>, End> {
        let record = life.snapshot().record;
        if record.phase == Phase::Stopping {
            life.stop.cancel();
        }
        if record.launch.is_none() {
            return self.bring_up(life).await;
        }
        let Some(handle) = &record.handle else {
            // It may have been killed between the start and the record of it.
            self.end_lost(life.holder).await;
            if life.stop.is_cancelled() {
                return Err(End::Asked);
            }
            return self.bring_up(life).await;
        };
        let adopted = loop {
            match self.runner().adopt(handle).await {
                Ok(adopted) => break adopted,
                // Something of it survives: its blocks may not be given away.
                Err(failure) => self.survivors(life.holder, &failure).await,
            }
        };
        match adopted {
            Ok(process) => {
                tracing::info!(workload = %life.holder.workload, "process found again");
                if let Some(launch) = &record.launch
                    && let Err(error) = self.gpus().attach(life.holder, &launch.slices).await
                {
                    tracing::warn!(%error, "the slice of a running workload is not attached");
                }
                if life.command().is_some() {
                    self.tell(life, Event::CommandFound, "", |_| {}).await;
                    return Ok(process);
                }
                if let Err(failure) = self.know_peer(life, record.uid.unwrap_or(0)).await {
                    // Nobody could reach it, and its blocks may be given away only without it.
                    self.end_process(life, process.as_ref()).await;
                    return Err(End::Failed(failure));
                }
                let detail = if record.phase == Phase::Ready {
                    ""
                } else {
                    "waiting for the page"
                };
                self.tell(life, Event::ProcessFound, detail, |_| {}).await;
                Ok(process)
            }
            Err(ended) if life.command().is_some() => {
                Err(End::Command(Box::new(command_ended(life, &ended).await)))
            }
            Err(ended) => Err(End::Failed(died(life, &ended).await)),
        }
    }

    async fn bring_up(self: &Arc<Self>, life: &Arc<Life>) -> Result<Arc<dyn Process>, End> {
        let Some(launch) = life.snapshot().record.launch else {
            // A stop that overtook its launch: it is carried out when nothing earlier runs.
            self.end_earlier(life.holder).await;
            return Err(End::Asked);
        };
        self.clear_the_way(life).await?;
        let (recipe, left_out) = facts::recipe(&launch, !self.is_simulated(&launch));
        let (environment, was_ready) = self.environment(life, &recipe).await?;
        let starting = match launch.command {
            Some(_) => "starting the command",
            None => "starting JupyterLab",
        };
        self.tell(life, Event::StartBegan, starting, |record| {
            record.environment_was_ready = was_ready;
        })
        .await;
        let attachment = self
            .gpus()
            .attach(life.holder, &launch.slices)
            .await
            .map_err(|error| {
                End::Failed(
                    Failure::new("GPU_NOT_AVAILABLE", "the slice cannot be used")
                        .caused_by(cnlab_service::status::chain(&error)),
                )
            })?;
        let boundaries = self.runner().boundaries();
        let said = facts::facts(
            &launch,
            self.is_simulated(&launch),
            &environment,
            left_out,
            boundaries,
            &attachment,
        );
        let mut plan = self
            .plan(life, &launch, environment, attachment)
            .await
            .map_err(End::Failed)?;
        let uid = plan.uid;
        self.tell(life, Event::StartBegan, starting, |record| {
            record.facts = said;
            record.uid = Some(uid);
        })
        .await;
        if life.expires() {
            plan.lease = Some(self.lease_to_start(life).await.ok_or(End::Asked)?);
        }
        if life.stop.is_cancelled() {
            return Err(End::Asked);
        }
        let process = self.runner().start(&plan).await.map_err(End::Failed)?;
        // From here on there is a process: no way out of this life leaves it running.
        let (handle, unenforced) = (process.handle(), process.unenforced());
        let now = self.runtime.clock.now();
        let (event, detail) = match launch.command {
            Some(_) => (Event::CommandFound, ""),
            None => {
                life.set_peer(Peer::new(&life.folder, uid, &plan.token));
                (Event::ProcessFound, "waiting for the page")
            }
        };
        self.tell(life, event, detail, |record| {
            record.handle = Some(handle);
            record.started_at = Some(now);
            record.facts.not_enforced.extend(unenforced);
        })
        .await;
        if let Err(error) = keep(life, Durability::Synced).await {
            // Without its handle on disk a later node-svc could not find the process.
            self.end_process(life, process.as_ref()).await;
            return Err(End::Failed(Failure::disk(
                "keeping the record of the process",
                &error,
            )));
        }
        Ok(process)
    }

    /// Ends every life that a newer fence displaced in favour of this one, and sees it gone.
    async fn clear_the_way(self: &Arc<Self>, life: &Arc<Life>) -> Result<(), End> {
        // A run that began anew elsewhere may come back before its earlier life is over, on
        // other blocks. To the end, whoever asks: a stop answers for the earlier ones, too.
        self.end_earlier(life.holder).await;
        for other in self.in_the_way(life.holder) {
            let known = self.lives().get(&other).map(Arc::clone);
            match known {
                Some(older) => {
                    self.ask_to_stop(&older).await;
                    tokio::select! {
                        () = older.over() => {}
                        () = life.stop.cancelled() => return Err(End::Asked),
                    }
                }
                None => self.end_lost(other).await,
            }
            self.free_claim(other).await;
        }
        Ok(())
    }

    async fn environment(
        self: &Arc<Self>,
        life: &Arc<Life>,
        recipe: &crate::environment::Recipe,
    ) -> Result<(Environment, bool), End> {
        let found = tokio::select! {
            found = self.environments.ensure(recipe) => found.map_err(End::Failed)?,
            () = life.stop.cancelled() => return Err(End::Asked),
        };
        let mut build = match found {
            Found::Ready(environment) => return Ok((environment, true)),
            Found::Building(build) => build,
        };
        loop {
            let progress = build.borrow_and_update().clone();
            match progress {
                Progress::Running(detail) => {
                    self.tell(life, Event::BuildBegan, &detail, |_| {}).await;
                }
                Progress::Done(done) => {
                    return match done.as_ref() {
                        Ok(environment) => Ok((environment.clone(), false)),
                        Err(failure) => Err(End::Failed(failure.clone())),
                    };
                }
            }
            tokio::select! {
                changed = build.changed() => if changed.is_err() {
                    return Err(End::Failed(Failure::new(
                        "ENVIRONMENT_BUILD_FAILED",
                        "the build of the environment ended early",
                    )));
                },
                () = life.stop.cancelled() => return Err(End::Asked),
            }
        }
    }

    async fn plan(
        self: &Arc<Self>,
        life: &Arc<Life>,
        launch: &Launch,
        environment: Environment,
        gpu: Attachment,
    ) -> Result<RunPlan, Failure> {
        let (node, this, id) = (Arc::clone(self), Arc::clone(life), launch.volume);
        let made = tokio::task::spawn_blocking(move || {
            let volume = node.volumes.ensure(id)?;
            Ok((volume, this.token()?))
        });
        let (volume, token) = made
            .await
            .map_err(|error| {
                Failure::new("INTERNAL", "internal error").caused_by(error.to_string())
            })?
            .map_err(|error: std::io::Error| Failure::disk("preparing the volume", &error))?;
        Ok(RunPlan {
            holder: life.holder,
            hostname: launch.hostname.clone(),
            environment,
            volume: volume.path,
            uid: volume.uid,
            folder: life.folder.clone(),
            token,
            command: launch.command.as_ref().map(|command| command.argv.clone()),
            // Said last, right before the start.
            lease: None,
            max_runtime: launch
                .command
                .as_ref()
                .and_then(|command| command.max_runtime)
                .map(|after| RuntimeLimit {
                    after,
                    grace: self.config.process.stop_grace.0,
                }),
            memory_bytes: launch.memory_bytes,
            cpu_milli: launch.cpu_milli,
            // Of this span, so that what the process traces hangs below it.
            traceparent: cnlab_service::trace::current_traceparent(),
            gpu,
        })
    }

    /// Reads what an earlier node-svc knew of the notebook.
    async fn know_peer(&self, life: &Arc<Life>, uid: u32) -> Result<(), Failure> {
        let this = Arc::clone(life);
        let token = tokio::task::spawn_blocking(move || this.token())
            .await
            .map_err(|error| {
                Failure::new("INTERNAL", "internal error").caused_by(error.to_string())
            })?
            .map_err(|error| Failure::disk("reading the notebook's token", &error))?;
        life.set_peer(Peer::new(&life.folder, uid, &token));
        Ok(())
    }

    /// Waits for the page, then for the end.
    async fn watch(&self, life: &Arc<Life>, process: &dyn Process) -> End {
        let ended = self.ended(life, process);
        let mut ended = std::pin::pin!(ended);
        if life.phase() != Phase::Ready {
            let answered = async {
                match life.peer() {
                    Some(peer) => peer.answers().await,
                    None => std::future::pending().await,
                }
            };
            let within = self.config.process.ready_within;
            tokio::select! {
                () = answered => {
                    self.tell(life, Event::PageAnswered, "", |_| {}).await;
                }
                ended = ended.as_mut() => return End::Failed(died(life, &ended).await),
                () = life.stop.cancelled() => {
                    self.end_process(life, process).await;
                    return End::Asked;
                }
                () = tokio::time::sleep(within.0) => {
                    let failure = Failure::new(
                        "NOTEBOOK_DOES_NOT_ANSWER",
                        format!("the page did not answer within {within}"),
                    )
                    .caused_by(last_words(life).await)
                    .try_this("look at the server's log, then start it again");
                    self.end_process(life, process).await;
                    return End::Failed(failure);
                }
            }
        }
        tokio::select! {
            ended = ended.as_mut() => End::Failed(died(life, &ended).await),
            () = life.stop.cancelled() => {
                self.end_process(life, process).await;
                End::Asked
            }
        }
    }

    /// Waits for the end of a command; what its time is over for is its supervisor's to know.
    async fn watch_command(&self, life: &Arc<Life>, process: &dyn Process) -> End {
        tokio::select! {
            biased;
            ended = self.ended(life, process) => {
                End::Command(Box::new(command_ended(life, &ended).await))
            }
            () = life.stop.cancelled() => {
                self.end_process(life, process).await;
                End::Asked
            }
        }
    }

    /// Waits until a process is over by itself and nothing of it is left, however long that
    /// takes: its blocks may not be given away before.
    async fn ended(&self, life: &Arc<Life>, process: &dyn Process) -> Ended {
        loop {
            match process.ended().await {
                Ok(ended) => return ended,
                Err(failure) => self.still_ending(life, &failure).await,
            }
        }
    }

    /// Ends a process, however long it takes: its blocks may not be given away before.
    async fn end_process(&self, life: &Arc<Life>, process: &dyn Process) {
        let usual = self.config.process.stop_grace.0;
        let grace = life.expired().map_or(usual, |grace| grace.min(usual));
        while let Err(failure) = process.terminate(grace).await {
            self.still_ending(life, &failure).await;
        }
    }

    /// Says that a life is not over because processes of it survive, and waits before the next
    /// try to end them.
    async fn still_ending(&self, life: &Arc<Life>, failure: &Failure) {
        // How a command ended is still to be said, and it does not come up again.
        let event = match life.command() {
            Some(_) => Event::CommandFound,
            None => Event::StopAsked,
        };
        let detail = "waiting for processes that do not end";
        self.tell(life, event, detail, |_| {}).await;
        self.survivors(life.holder, failure).await;
    }

    async fn end_lost(&self, holder: Holder) {
        while let Err(failure) = self.runner().end_lost(holder).await {
            self.survivors(holder, &failure).await;
        }
    }

    /// Says that processes survive, and waits before the next try to end them.
    async fn survivors(&self, holder: Holder, failure: &Failure) {
        tracing::error!(workload = %holder.workload, fence = holder.fence, cause = %failure.cause, "processes of a workload do not end");
        tokio::time::sleep(AGAIN).await;
    }

    /// Gives everything back and says so.
    async fn finish(self: &Arc<Self>, life: &Arc<Life>, end: End) {
        if let Err(error) = self.gpus().detach(life.holder).await {
            tracing::warn!(%error, "a slice could not be detached");
        }
        self.free_claim(life.holder).await;
        let folder = life.folder.clone();
        let tidied =
            tokio::task::spawn_blocking(move || crate::adapters::run_process::tidy(&folder));
        if let Ok(Err(error)) = tidied.await {
            tracing::debug!(%error, "the runtime folder could not be removed");
        }
        let end = match (end, life.expired()) {
            (End::Asked, Some(_)) if life.phase() != Phase::Stopping => {
                End::Command(Box::new(grant_expired()))
            }
            (end, _) => end,
        };
        match end {
            End::Asked => {
                self.tell(life, Event::Gone, "", |record| record.handle = None)
                    .await;
            }
            End::Command(end) => {
                let CommandEnd {
                    event,
                    failure,
                    exit,
                    cause,
                } = *end;
                self.tell(life, event, "", |record| {
                    record.handle = None;
                    record.exit = exit;
                    if record.phase == Phase::Failed {
                        record.failure = failure;
                        record.cause = cause;
                    }
                })
                .await;
            }
            End::Failed(failure) => {
                tracing::warn!(workload = %life.holder.workload, reason = %failure.reason, cause = %failure.cause, "workload failed");
                self.tell(life, Event::Failed, "", |record| {
                    record.handle = None;
                    if record.phase == Phase::Failed {
                        record.failure = Some(failure);
                    }
                })
                .await;
            }
        }
        life.set_over();
        self.changed(life);
    }

    async fn free_claim(self: &Arc<Self>, holder: Holder) {
        let node = Arc::clone(self);
        let freed = tokio::task::spawn_blocking(move || node.free(holder)).await;
        if let Ok(Err(error)) = freed {
            tracing::warn!(%error, "the freed slice could not be kept on disk");
        }
    }

    fn is_simulated(&self, launch: &Launch) -> bool {
        self.gpus()
            .facts()
            .iter()
            .filter(|gpu| gpu.simulated)
            .any(|gpu| launch.slices.iter().any(|slice| slice.gpu == gpu.uuid))
    }
}

/// Keeps a life's record, off the async threads.
async fn keep(life: &Arc<Life>, durability: Durability) -> std::io::Result<()> {
    let life = Arc::clone(life);
    tokio::task::spawn_blocking(move || life.keep(durability))
        .await
        .map_err(std::io::Error::other)?
}
