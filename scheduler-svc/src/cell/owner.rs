//! The task that owns the image.

mod crowd;
mod decide;
mod leading;
mod wishes;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cnlab_db::outbox;
use cnlab_model::{
    Timestamp,
    id::{NodeId, WorkloadId},
};
use cnlab_service::Next;
use scheduler_core::plan::Unmet;
use tokio::sync::{Mutex, mpsc};

use super::{Command, Image, Placed, Want, Who, Wish, image::Seen};
use crate::{
    app::App,
    error::SchedulerError,
    store::{self, load, roster, starts, volume},
    worker::dispatch,
};
use leading::Watched;

/// Most commands that are handled together: so many rows still make one short transaction.
const TOGETHER: usize = 256;
/// For how long the lead is taken. A leader that was killed is missed for so long.
const LEAD_FOR: Duration = Duration::from_secs(4);
/// How often it is taken anew.
const LEAD_AGAIN: Duration = Duration::from_secs(1);
/// How often those who wait are told of expectations that have changed.
const NEWS_EVERY: Duration = Duration::from_secs(10);
/// After what time somebody is told who came back into the queue.
const NEWS_SOON: Duration = Duration::from_secs(1);
/// How many of them in one transaction.
const NEWS: usize = 200;
/// For how long whoever asks waits for the lead before it is sent away.
const SETTLES: Duration = Duration::from_secs(6);
const AFTER_ERROR: Duration = Duration::from_millis(500);
/// By less than this a clock goes back without anybody having set it.
const SET_BACK: Duration = Duration::from_secs(1);

/// Owns the image of the cell, and grants slices while this process leads.
#[derive(Debug)]
pub(crate) struct Owner {
    app: Arc<App>,
    /// No other process has this name, nor another life of this one.
    me: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    outlet: Option<mpsc::Receiver<Command>>,
    /// Taken out for a tick: one that is not put back is made anew.
    image: Option<Image>,
    term: Option<u64>,
    /// Until when nobody else can lead.
    leads_until: Timestamp,
    lead_again: Timestamp,
    news_at: Timestamp,
    /// Wishes that could not be handled together with others.
    carried: VecDeque<Alone>,
    /// Whose rows are to be looked at, since what was heard of them fits nothing.
    doubtful: BTreeSet<WorkloadId>,
    /// Since when somebody else leads.
    stands_by: Option<Timestamp>,
    /// Who that is.
    others: Option<Watched>,
    /// The latest that the clock showed since the last tick began.
    showed: Timestamp,
}

#[derive(Debug)]
struct Alone {
    want: Want,
    /// Whether nothing else may be in its transaction: one of those together with which it was
    /// tried before cannot be written.
    alone: bool,
}

/// A wish on its way through a batch.
struct Asked {
    want: Want,
    /// Whom it is about; `None` where it is answered already.
    who: Option<WorkloadId>,
    answer: Option<Result<Placed, SchedulerError>>,
    /// Whether the answer is kept under its key.
    keep: bool,
}

impl Asked {
    fn refuse(&mut self, error: SchedulerError) {
        self.who = None;
        self.answer = Some(Err(error));
        self.keep = false;
    }
}

impl Owner {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let outlet = app.cell.outlet();
        Self {
            me: app.runtime.ids.ulid().to_string(),
            app,
            state: Mutex::new(State {
                outlet,
                image: None,
                term: None,
                leads_until: Timestamp(i64::MIN),
                lead_again: Timestamp(i64::MIN),
                news_at: Timestamp(i64::MIN),
                carried: VecDeque::new(),
                doubtful: BTreeSet::new(),
                stands_by: None,
                others: None,
                showed: Timestamp(i64::MIN),
            }),
        }
    }

    /// Handles what there is, or waits for it.
    pub(crate) async fn tick(&self) -> Next {
        let mut state = self.state.lock().await;
        self.notice_clock(&mut state);
        match self.lead(&mut state).await {
            Ok(true) => {}
            Ok(false) => {
                self.stand_by(&mut state).await;
                return Next::Now;
            }
            Err(error) => {
                tracing::warn!(%error, "the lead of the cell could not be taken");
                self.refuse_all(&mut state, &Arc::new(error));
                return Next::After(AFTER_ERROR);
            }
        }
        let mut image = match state.image.take() {
            Some(image) if !self.app.cell.missed.swap(false, Ordering::AcqRel) => image,
            Some(_) | None => match self.read().await {
                Ok(image) => {
                    state.doubtful.clear();
                    image
                }
                Err(error) => {
                    tracing::warn!(%error, "the cell could not be read");
                    self.refuse_all(&mut state, &Arc::new(error));
                    return Next::After(AFTER_ERROR);
                }
            },
        };
        let commands = self.collect(&mut state, &image).await;
        state.showed = state.showed.max(self.app.runtime.clock.now());
        if self.app.runtime.tasks.token().is_cancelled() {
            self.step_down(&mut state).await;
            return Next::WhenWoken;
        }
        match self.handle(&mut state, &mut image, commands).await {
            Ok(()) => state.image = Some(image),
            Err(error) => {
                tracing::warn!(%error, "the image of the cell is made anew");
                if matches!(error, SchedulerError::NotLeading) {
                    state.term = None;
                }
                return if matches!(error, SchedulerError::Database(_)) {
                    Next::After(AFTER_ERROR)
                } else {
                    Next::Now
                };
            }
        }
        Next::Now
    }

    async fn read(&self) -> Result<Image, SchedulerError> {
        let now = self.app.runtime.clock.now();
        self.correct(now).await?;
        let catalogue = &self.app.catalogue;
        let images = catalogue
            .images
            .iter()
            .map(|image| image.recipe.name.clone());
        let rows = load::load(self.app.db.read(), images.collect(), now).await?;
        let (nodes, holding, waiting) = (rows.nodes.len(), rows.holding.len(), rows.waiting.len());
        let teams = Arc::clone(&self.app.teams);
        let image = Image::of(
            rows,
            Arc::clone(catalogue),
            teams,
            self.app.grants.ttl.0,
            now,
        );
        tracing::info!(nodes, holding, waiting, "the cell was read");
        for gpu_type in self.app.teams.types() {
            let mut families = image.gpus().map(|gpu| &gpu.family).peekable();
            if families.peek().is_some()
                && !families.any(|family| family.eq_ignore_ascii_case(gpu_type))
            {
                tracing::warn!(gpu_type, "a quota names a type of GPU that no node has");
            }
        }
        self.app.metrics.read();
        Ok(image)
    }

    /// Puts right what was written by a clock that was ahead: by this one, a node would count as
    /// heard of, and a message as not yet due, until this one shows the same.
    async fn correct(&self, now: Timestamp) -> Result<(), SchedulerError> {
        self.app
            .write(|tx| async move { roster::heard_by(&tx, now).await })
            .await?;
        let retried = outbox::due_by(&self.app.db, now, dispatch::LATEST).await?;
        if retried > 0 {
            self.app.outbox.wake();
        }
        Ok(())
    }

    async fn collect(&self, state: &mut State, image: &Image) -> Vec<Command> {
        let mut commands = Vec::new();
        let Some(outlet) = &mut state.outlet else {
            return commands;
        };
        if state.carried.is_empty() && state.doubtful.is_empty() {
            let now = self.app.runtime.clock.now();
            let next = [Some(state.lead_again), Some(state.news_at), image.wake_at()];
            let next = next.into_iter().flatten().min().unwrap_or(state.lead_again);
            // By a clock that is set back meanwhile it would sleep through its lead.
            let wait = next.since(now).min(LEAD_AGAIN);
            tokio::select! {
                () = self.app.runtime.tasks.token().cancelled() => return commands,
                () = tokio::time::sleep(wait) => {}
                command = outlet.recv() => commands.extend(command),
            }
        }
        while commands.len() < TOGETHER
            && let Ok(command) = outlet.try_recv()
        {
            commands.push(command);
        }
        commands
    }

    async fn handle(
        &self,
        state: &mut State,
        image: &mut Image,
        commands: Vec<Command>,
    ) -> Result<(), SchedulerError> {
        let now = self.app.runtime.clock.now();
        if image.pass(now) {
            // Those who wait are told what they wait for.
            state.news_at = now;
        }
        let mut questions = Vec::new();
        let mut fresh = Vec::new();
        let mut started: BTreeSet<String> = BTreeSet::new();
        let mut marked: BTreeSet<NodeId> = BTreeSet::new();
        let mut wrong = false;
        for command in commands {
            match command {
                Command::Want(want) => fresh.push(Alone {
                    want: *want,
                    alone: false,
                }),
                Command::Changed(who) => {
                    if who.waits() && who.told().0.is_empty() {
                        // It is in the queue again, and nobody has said yet why it waits.
                        state.news_at = state.news_at.min(now.plus(NEWS_SOON));
                    }
                    match image.changed(who.clone(), now) {
                        Seen::Done => {
                            state.doubtful.remove(&who.id());
                        }
                        Seen::Doubtful => {
                            state.doubtful.insert(who.id());
                        }
                        Seen::Wrong => wrong = true,
                    }
                }
                Command::Registered(node, gpus) => wrong |= !image.registered(*node, &gpus, now),
                Command::Marked(node) => {
                    marked.insert(node);
                }
                Command::Heard {
                    node,
                    disk_free_bytes,
                    at,
                } => wrong |= !image.heard_of(node, disk_free_bytes, at, now),
                Command::Started { node, image: name } => {
                    image.image_ready(node, &name);
                    started.insert(name);
                }
                Command::Ask(question) => questions.push(question),
            }
        }
        let wants = self.choose(state, fresh);
        for id in std::mem::take(&mut state.doubtful) {
            wrong |= !self.look(image, id, now).await?;
        }
        for id in marked {
            let node = roster::node(self.app.db.read(), id).await?;
            wrong |= !image.marked(id, node.and_then(|node| node.cordon), now);
            // Those who wait are told what they wait for.
            state.news_at = now;
        }
        for name in started {
            let past = starts::of_image(self.app.db.read(), &name).await?;
            image.starts.insert(name, past);
        }
        if wrong {
            *image = self.read().await?;
        }
        let done = self.decide(state, image, wants, now).await;
        for question in questions {
            question(Ok(image), now);
        }
        done
    }

    /// Takes the row of somebody in as it is now. Answers `false` when the image is wrong.
    async fn look(
        &self,
        image: &mut Image,
        id: WorkloadId,
        now: Timestamp,
    ) -> Result<bool, SchedulerError> {
        let db = self.app.db.read();
        let who = match id {
            WorkloadId::Server(id) => store::server::get(db, id)
                .await?
                .map(|server| Who::Server(Box::new(server))),
            WorkloadId::Run(id) => store::run::get(db, id)
                .await?
                .map(|run| Who::Run(Box::new(run))),
        };
        match who {
            Some(who) if who.grant().is_some() => Ok(image.holds(id, who.grant())),
            Some(who) if who.waits() => {
                let on = volume::node_of(db, who.volume()).await?;
                image.enter(who, on, Unmet::AcceptLate, now);
                Ok(true)
            }
            Some(_) | None => {
                image.leave(id, now);
                Ok(true)
            }
        }
    }

    /// The wishes of this turn: those that can be handled together, or one alone.
    fn choose(&self, state: &mut State, fresh: Vec<Alone>) -> Vec<Want> {
        state.carried.extend(fresh);
        if state.carried.front().is_some_and(|first| first.alone) {
            return state
                .carried
                .pop_front()
                .map(|one| one.want)
                .into_iter()
                .collect();
        }
        let mut names = BTreeSet::new();
        let mut keys = BTreeSet::new();
        let mut chosen = Vec::new();
        let mut later = VecDeque::new();
        while let Some(one) = state.carried.pop_front() {
            let name = match &one.want.wish {
                Wish::New { who, .. } => (who.is_server(), who.live_name()),
                Wish::Start(id) => (true, id.to_string()),
            };
            let attempt = &one.want.attempt;
            let key = attempt
                .key
                .clone()
                .map(|key| (attempt.tenant, attempt.method, key));
            let distinct =
                !names.contains(&name) && key.as_ref().is_none_or(|key| !keys.contains(key));
            if one.alone || chosen.len() == TOGETHER || !distinct {
                later.push_back(one);
                continue;
            }
            names.insert(name);
            keys.extend(key);
            chosen.push(one.want);
        }
        state.carried = later;
        chosen
    }
}
