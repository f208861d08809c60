//! The task that owns the image.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cnlab_db::{Backend, idempotency};
use cnlab_model::{
    Timestamp,
    id::{GrantId, ServerId, WorkloadId},
};
use cnlab_service::Next;
use scheduler_core::{RejectReason, deadline::Verdict, plan::Unmet};
use tokio::sync::{Mutex, mpsc};

use super::{
    Command, Image, Placed, Role, Want, Who, Wish,
    image::{Act, Seen, Slot, Taken},
    lines,
};
use crate::{
    app::{
        App,
        catalog::{nearest, profile_named},
        run::{OnLate, RunView},
        view::View,
    },
    error::SchedulerError,
    metrics::Outcome,
    store::{
        self,
        batch::{self, Line, Written},
        job::{Job, NewJob},
        lead, load,
        record::Grant,
        starts, volume,
    },
};

/// Most commands that are handled together: so many rows still make one short transaction.
const TOGETHER: usize = 256;
/// For how long the lead is taken. A leader that was killed is missed for so long.
const LEAD_FOR: Duration = Duration::from_secs(4);
/// How often it is taken anew.
const LEAD_AGAIN: Duration = Duration::from_secs(1);
/// How often those who wait are told of expectations that have changed.
const NEWS_EVERY: Duration = Duration::from_secs(10);
/// How many of them in one transaction.
const NEWS: usize = 200;
/// For how long whoever asks waits for the lead before it is sent away.
const SETTLES: Duration = Duration::from_secs(6);
const AFTER_ERROR: Duration = Duration::from_millis(500);

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
    lead_again: Timestamp,
    news_at: Timestamp,
    /// Wishes that could not be handled together with others.
    carried: VecDeque<Alone>,
    /// Whose rows are to be looked at, since what was heard of them fits nothing.
    doubtful: BTreeSet<WorkloadId>,
    /// Since when somebody else leads.
    stands_by: Option<Timestamp>,
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
                lead_again: Timestamp(i64::MIN),
                news_at: Timestamp(i64::MIN),
                carried: VecDeque::new(),
                doubtful: BTreeSet::new(),
                stands_by: None,
            }),
        }
    }

    /// Handles what there is, or waits for it.
    pub(crate) async fn tick(&self) -> Next {
        let mut state = self.state.lock().await;
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

    // --- the lead

    /// Takes the lead or keeps it. Answers `false` while somebody else leads.
    async fn lead(&self, state: &mut State) -> Result<bool, SchedulerError> {
        let now = self.app.runtime.clock.now();
        if state.term.is_some() && now < state.lead_again {
            return Ok(true);
        }
        let alone = self.app.db.backend() == Backend::Sqlite;
        let term = self
            .app
            .db
            .write(
                |tx| async move { lead::take(&tx, &self.me, alone, now.plus(LEAD_FOR), now).await },
            )
            .await?;
        let Some(term) = term else {
            state.term = None;
            state.image = None;
            return Ok(false);
        };
        if state.term != Some(term) {
            tracing::info!(term, "leads the cell");
            state.image = None;
            state.stands_by = None;
        }
        self.app.cell.turn_to(Role::Leads);
        state.term = Some(term);
        state.lead_again = now.plus(LEAD_AGAIN);
        Ok(true)
    }

    /// Refuses what is asked for until it is worth asking for the lead again.
    async fn stand_by(&self, state: &mut State) {
        let now = self.app.runtime.clock.now();
        if state.stands_by.is_none() {
            tracing::info!("stands by: another scheduler leads the cell");
        }
        let since = *state.stands_by.get_or_insert(now);
        let stopped = self.app.runtime.tasks.token().cancelled();
        if now.since(since) < SETTLES {
            // The former leader may be this very service before its restart.
            self.app.cell.turn_to(Role::Unsettled);
            tokio::select! {
                () = stopped => {}
                () = tokio::time::sleep(LEAD_AGAIN / 4) => {}
            }
            return;
        }
        self.app.cell.turn_to(Role::StandsBy);
        let Some(outlet) = &mut state.outlet else {
            return;
        };
        let refuse = async {
            while let Some(command) = outlet.recv().await {
                if let Command::Want(want) = command {
                    let _ = want.reply.send(Err(SchedulerError::NotLeading));
                }
            }
        };
        tokio::select! {
            () = stopped => {}
            () = tokio::time::sleep(LEAD_AGAIN) => {}
            () = refuse => {}
        }
    }

    fn refuse_all(&self, state: &mut State, error: &Arc<SchedulerError>) {
        for Alone { want, .. } in state.carried.drain(..) {
            let _ = want
                .reply
                .send(Err(SchedulerError::Shared(Arc::clone(error))));
        }
        if let Some(outlet) = &mut state.outlet {
            while let Ok(command) = outlet.try_recv() {
                if let Command::Want(want) = command {
                    let _ = want
                        .reply
                        .send(Err(SchedulerError::Shared(Arc::clone(error))));
                }
            }
        }
    }

    async fn step_down(&self, state: &mut State) {
        state.image = None;
        self.app.cell.turn_to(Role::StandsBy);
        if state.term.take().is_none() {
            return;
        }
        let given = self
            .app
            .db
            .write(|tx| async move { lead::give_back(&tx, &self.me).await })
            .await;
        if let Err(error) = given {
            tracing::debug!(%error, "the lead runs out by itself");
        }
    }

    // --- the image

    async fn read(&self) -> Result<Image, SchedulerError> {
        let now = self.app.runtime.clock.now();
        let catalogue = &self.app.catalogue;
        let images = catalogue
            .images
            .iter()
            .map(|image| image.recipe.name.clone());
        let rows = load::load(self.app.db.read(), images.collect(), now).await?;
        let (nodes, holding, waiting) = (rows.nodes.len(), rows.holding.len(), rows.waiting.len());
        let image = Image::of(rows, Arc::clone(catalogue), self.app.grants.ttl.0, now);
        tracing::info!(nodes, holding, waiting, "the cell was read");
        self.app.metrics.read();
        Ok(image)
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
            tokio::select! {
                () = self.app.runtime.tasks.token().cancelled() => return commands,
                () = tokio::time::sleep(next.since(now)) => {}
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
        let mut wrong = false;
        for command in commands {
            match command {
                Command::Want(want) => fresh.push(Alone {
                    want: *want,
                    alone: false,
                }),
                Command::Changed(who) => match image.changed(who.clone(), now) {
                    Seen::Done => {
                        state.doubtful.remove(&who.id());
                    }
                    Seen::Doubtful => {
                        state.doubtful.insert(who.id());
                    }
                    Seen::Wrong => wrong = true,
                },
                Command::Registered(node, gpus) => wrong |= !image.registered(*node, &gpus, now),
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
        for name in started {
            let past = starts::of_image(self.app.db.read(), &name).await?;
            image.starts.insert(name, past);
        }
        if wrong {
            *image = self.read().await?;
        }
        let done = self.decide(state, image, wants, now).await;
        for question in questions {
            question(image, now);
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

    // --- decisions

    async fn decide(
        &self,
        state: &mut State,
        image: &mut Image,
        wants: Vec<Want>,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        let Some(term) = state.term else {
            return Err(SchedulerError::NotLeading);
        };
        let mut asked: Vec<Asked> = wants
            .into_iter()
            .map(|want| Asked {
                want,
                who: None,
                answer: None,
                keep: true,
            })
            .collect();
        let mut drafts: BTreeMap<WorkloadId, Draft> = BTreeMap::new();
        if let Err(error) = self.prepare(image, &mut asked, &mut drafts, now).await {
            let error = Arc::new(error);
            for one in asked {
                let shared = SchedulerError::Shared(Arc::clone(&error));
                let _ = one.want.reply.send(Err(shared));
            }
            return Err(SchedulerError::Shared(error));
        }
        let acts = image.turn(now);
        let mut batch = self.lines(state, image, &mut drafts, acts, now);
        if now >= state.news_at {
            state.news_at = now.plus(NEWS_EVERY);
            for (who, detail, ready) in image.news(now).into_iter().take(NEWS) {
                if !batch.lines.iter().any(|line| line.who.id() == who.id()) {
                    batch.lines.push(lines::waits(&who, false, detail, ready));
                }
            }
        }
        let kept = asked
            .iter()
            .any(|one| one.keep && one.want.attempt.key.is_some());
        if batch.lines.is_empty() && batch.jobs.is_empty() && !kept {
            for mut one in asked {
                let answer = one
                    .answer
                    .take()
                    .unwrap_or(Err(SchedulerError::ChangedMeanwhile));
                let _ = one.want.reply.send(answer);
            }
            return Ok(());
        }
        let written = self
            .app
            .db
            .write(|tx| {
                let (asked, batch) = (&asked, &batch);
                async move {
                    let answers = |written: &Written| answers(asked, batch, written, now);
                    let lines = batch::write(&tx, term, &batch.lines, answers, now).await?;
                    store::job::push_all(&tx, batch.jobs.clone(), now).await?;
                    Ok::<_, SchedulerError>(lines)
                }
            })
            .await;
        match written {
            Ok(written) => {
                self.follow(state, image, asked, batch, &written, now);
                Ok(())
            }
            Err(error) => {
                if asked.len() > 1 && !matches!(error, SchedulerError::NotLeading) {
                    let alone = asked.into_iter().map(|one| Alone {
                        want: one.want,
                        alone: true,
                    });
                    state.carried = alone.chain(std::mem::take(&mut state.carried)).collect();
                    return Err(error);
                }
                let error = Arc::new(error);
                for one in asked {
                    let shared = SchedulerError::Shared(Arc::clone(&error));
                    let _ = one.want.reply.send(Err(shared));
                }
                Err(match Arc::into_inner(error) {
                    Some(error) => error,
                    None => SchedulerError::ChangedMeanwhile,
                })
            }
        }
    }

    /// Answers what was answered before or must be refused, and takes the others in.
    async fn prepare(
        &self,
        image: &mut Image,
        asked: &mut [Asked],
        drafts: &mut BTreeMap<WorkloadId, Draft>,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        if asked.is_empty() {
            return Ok(());
        }
        self.kept(asked, now).await?;
        let mut names = (Vec::new(), Vec::new());
        for one in asked.iter().filter(|one| one.answer.is_none()) {
            if let Wish::New { who, .. } = &one.want.wish {
                let list = if who.is_server() {
                    &mut names.0
                } else {
                    &mut names.1
                };
                list.push(who.live_name());
            }
        }
        let db = self.app.db.read();
        let taken = (
            store::server::names_taken(db, &names.0).await?,
            store::run::names_taken(db, &names.1).await?,
        );
        for one in asked.iter_mut().filter(|one| one.answer.is_none()) {
            let draft = match &one.want.wish {
                Wish::New {
                    who,
                    profile,
                    on_late,
                } => {
                    let taken = if who.is_server() { &taken.0 } else { &taken.1 };
                    if taken.contains(&who.live_name()) {
                        Err(name_taken(who))
                    } else {
                        self.arrive(image, who, profile, *on_late, now)
                    }
                }
                Wish::Start(id) => match self.restart(image, *id, one, now).await? {
                    Started::Draft(draft) => Ok(draft),
                    Started::Runs(view) => {
                        one.answer = Some(Ok(Placed::Server(view)));
                        continue;
                    }
                    Started::Refused(error) => Err(error),
                },
            };
            match draft {
                Ok(draft) => {
                    let id = draft.who.id();
                    one.who = Some(id);
                    drafts.insert(id, draft);
                }
                Err(error) => one.refuse(error),
            }
        }
        Ok(())
    }

    async fn kept(&self, asked: &mut [Asked], now: Timestamp) -> Result<(), SchedulerError> {
        let keyed: Vec<(usize, idempotency::Keyed<'_>)> = asked
            .iter()
            .enumerate()
            .filter_map(|(at, one)| Some((at, one.want.attempt.keyed()?)))
            .collect();
        let requests: Vec<idempotency::Keyed<'_>> =
            keyed.iter().map(|(_, keyed)| keyed.clone()).collect();
        let kept = idempotency::kept(self.app.db.read(), &requests, now).await?;
        let found: Vec<(usize, Result<Placed, SchedulerError>)> = keyed
            .iter()
            .zip(kept)
            .filter_map(|((at, _), kept)| match kept {
                Ok(None) => None,
                Ok(Some(response)) => {
                    let one = asked.get(*at)?;
                    Some((*at, replayed(&one.want, &response)))
                }
                Err(error) => Some((*at, Err(error.into()))),
            })
            .collect();
        for (at, answer) in found {
            if let Some(one) = asked.get_mut(at) {
                one.answer = Some(answer);
                one.keep = false;
            }
        }
        Ok(())
    }

    fn arrive(
        &self,
        image: &mut Image,
        who: &Who,
        profile: &str,
        on_late: OnLate,
        now: Timestamp,
    ) -> Result<Draft, SchedulerError> {
        let profile = profile_named(image.offered(), profile)?.clone();
        let who = who.clone().with_profile(profile);
        if let Some(reason) = image.refusal(&who, None) {
            self.app.metrics.decided(Outcome::Reject);
            return Err(rejected(image, &who, reason));
        }
        let unmet = match on_late {
            OnLate::Refuse => Unmet::Refuse,
            OnLate::Accept => Unmet::AcceptLate,
        };
        match image.enter(who.clone(), None, unmet, now) {
            Taken::In => {
                image.count_arrival(who.id());
                Ok(Draft { who, new: true })
            }
            Taken::TooLate { begins, ends } => {
                self.app.metrics.decided(Outcome::Reject);
                Err(too_late(&who, begins, ends, now))
            }
        }
    }

    async fn restart(
        &self,
        image: &mut Image,
        id: ServerId,
        one: &Asked,
        now: Timestamp,
    ) -> Result<Started, SchedulerError> {
        let db = self.app.db.read();
        let Some(found) = store::server::get(db, id).await? else {
            return Ok(Started::Refused(SchedulerError::ChangedMeanwhile));
        };
        let server = match lines::start(&found, one.want.traceparent.clone(), now) {
            Ok(Some(server)) => server,
            Ok(None) => {
                let (grant, node) = store::surroundings(db, found.grant, found.node).await?;
                let view = View::new(found, grant, node, now);
                return Ok(Started::Runs(Box::new(view)));
            }
            Err(error) => return Ok(Started::Refused(error)),
        };
        let volume_on = volume::node_of(db, server.volume).await?;
        let who = Who::Server(Box::new(server));
        if let Some(reason) = image.refusal(&who, volume_on) {
            self.app.metrics.decided(Outcome::Reject);
            return Ok(Started::Refused(rejected(image, &who, reason)));
        }
        image.enter(who.clone(), volume_on, Unmet::AcceptLate, now);
        image.count_arrival(who.id());
        Ok(Started::Draft(Draft { who, new: false }))
    }

    /// What is to be written.
    fn lines(
        &self,
        state: &mut State,
        image: &mut Image,
        drafts: &mut BTreeMap<WorkloadId, Draft>,
        acts: Vec<Act>,
        now: Timestamp,
    ) -> Batch {
        let mut batch = Batch::default();
        for act in acts {
            match act {
                Act::Grant(slot) => {
                    let id = slot.workload;
                    let (who, new) = match drafts.remove(&id) {
                        Some(draft) => (draft.who, draft.new),
                        None => match image.who(id) {
                            Some(who) => (who.clone(), false),
                            None => continue,
                        },
                    };
                    self.app.metrics.decided(Outcome::Place);
                    let grant = GrantId::from_ulid(self.app.runtime.ids.ulid());
                    match lines::granted(&who, new, &slot, grant, now) {
                        Ok(line) => {
                            batch.lines.push(line);
                            batch.slots.insert(id, slot);
                        }
                        Err(error) => {
                            tracing::error!(workload = %id, %error, "somebody who does not wait got a slice");
                            image.not_granted(&slot, now);
                            state.doubtful.insert(id);
                        }
                    }
                }
                Act::Evict {
                    workload,
                    grant,
                    node,
                    newcomer,
                } => {
                    tracing::info!(%workload, %newcomer, "gives way");
                    let who = image.who(workload);
                    batch.jobs.push(NewJob {
                        job: Job::Stop { workload, grant },
                        node: Some(node),
                        traceparent: who.and_then(Who::traceparent).map(str::to_owned),
                    });
                }
            }
        }
        for (id, draft) in std::mem::take(drafts) {
            self.app.metrics.decided(Outcome::Queue);
            let begins = image.begins_at(id);
            let ready = begins.map(|at| at.max(now).plus(image.start_time(&draft.who, None)));
            let detail = image.reason(&draft.who);
            batch
                .lines
                .push(lines::waits(&draft.who, draft.new, detail, ready));
        }
        batch
    }

    /// What follows from a commit.
    fn follow(
        &self,
        state: &mut State,
        image: &mut Image,
        asked: Vec<Asked>,
        batch: Batch,
        written: &Written,
        now: Timestamp,
    ) {
        let placed = placed(&batch, written, now);
        let grants = written.grants(&batch.lines);
        for line in batch.lines {
            let id = line.who.id();
            if written.lost.contains(&id) {
                self.app.metrics.lost_race();
                match batch.slots.get(&id) {
                    Some(slot) => image.not_granted(slot, now),
                    None => image.leave(id, now),
                }
                state.doubtful.insert(id);
                continue;
            }
            self.app.announce(&line.who);
            match grants.get(&id) {
                Some(grant) => {
                    tracing::debug!(workload = %id, cnlab.lease_fence = grant.fence, "slice granted");
                    image.granted(line.who, grant);
                }
                None => image.noted(line.who),
            }
        }
        if !grants.is_empty() || !batch.jobs.is_empty() {
            self.app.outbox.wake();
        }
        for one in asked {
            let answer = one.answer.unwrap_or_else(|| {
                let done = one.who.and_then(|id| placed.get(&id).cloned());
                done.ok_or(SchedulerError::ChangedMeanwhile)
            });
            // Who asked may have gone.
            let _ = one.want.reply.send(answer);
        }
    }
}

/// Somebody whose line is still to be written.
struct Draft {
    who: Who,
    new: bool,
}

enum Started {
    Draft(Draft),
    /// It runs already.
    Runs(Box<View>),
    Refused(SchedulerError),
}

/// What one transaction writes.
#[derive(Debug, Default)]
struct Batch {
    lines: Vec<Line>,
    slots: BTreeMap<WorkloadId, Slot>,
    /// Beside those of the lines.
    jobs: Vec<NewJob>,
}

/// What each line is answered with.
fn placed(batch: &Batch, written: &Written, now: Timestamp) -> BTreeMap<WorkloadId, Placed> {
    let grants = written.grants(&batch.lines);
    let lines = batch
        .lines
        .iter()
        .filter(|line| !written.lost.contains(&line.who.id()));
    lines
        .map(|line| {
            let id = line.who.id();
            let grant: Option<Grant> = grants.get(&id).cloned();
            let node = batch.slots.get(&id).map(|slot| slot.node_name.clone());
            let placed = match &line.who {
                Who::Server(server) => {
                    Placed::Server(Box::new(View::new((**server).clone(), grant, node, now)))
                }
                Who::Run(run) => {
                    Placed::Run(Box::new(RunView::new((**run).clone(), grant, node, now)))
                }
            };
            (id, placed)
        })
        .collect()
}

/// The answers that are kept under their keys.
fn answers<'a>(
    asked: &'a [Asked],
    batch: &Batch,
    written: &Written,
    now: Timestamp,
) -> Vec<batch::Answer<'a>> {
    let placed = placed(batch, written, now);
    asked
        .iter()
        .filter(|one| one.keep && one.want.attempt.key.is_some())
        .filter_map(|one| {
            let answer = match (&one.answer, one.who) {
                (Some(Ok(placed)), _) => placed,
                (Some(Err(_)), _) => return None,
                (None, Some(id)) => placed.get(&id)?,
                (None, None) => return None,
            };
            let response = match answer {
                Placed::Server(view) => serde_json::to_vec(view),
                Placed::Run(view) => serde_json::to_vec(view),
            };
            Some(batch::Answer {
                attempt: &one.want.attempt,
                // A view of plain records cannot fail.
                response: response.unwrap_or_default(),
            })
        })
        .collect()
}

fn replayed(want: &Want, response: &[u8]) -> Result<Placed, SchedulerError> {
    let of_server = match &want.wish {
        Wish::New { who, .. } => who.is_server(),
        Wish::Start(_) => true,
    };
    let placed = if of_server {
        serde_json::from_slice(response).map(|view| Placed::Server(Box::new(view)))
    } else {
        serde_json::from_slice(response).map(|view| Placed::Run(Box::new(view)))
    };
    placed.map_err(|error| want.attempt.unreadable(&error))
}

fn name_taken(who: &Who) -> SchedulerError {
    match who {
        Who::Server(server) => SchedulerError::NameTaken {
            name: server.name.to_string(),
            project: server.project.to_string(),
        },
        Who::Run(run) => SchedulerError::RunNameTaken {
            name: run.name.to_string(),
            project: run.project.to_string(),
        },
    }
}

fn rejected(image: &Image, who: &Who, reason: RejectReason) -> SchedulerError {
    match reason {
        RejectReason::StorageTooLarge { wanted, largest } => {
            SchedulerError::StorageTooLarge { wanted, largest }
        }
        RejectReason::VolumeElsewhere { node, .. } => SchedulerError::VolumeElsewhere { node },
        why @ (RejectReason::BadSlice { .. }
        | RejectReason::NoNodes
        | RejectReason::NoSuchGpu { .. }) => SchedulerError::ProfileUnavailable {
            profile: who.profile().name.clone(),
            why: why.to_string(),
            nearest: nearest(image, who.profile()),
        },
    }
}

fn too_late(
    who: &Who,
    begins: Option<Timestamp>,
    ends: Option<Timestamp>,
    now: Timestamp,
) -> SchedulerError {
    let deadline = match who {
        Who::Run(run) => run.deadline,
        Who::Server(_) => None,
    };
    let verdict = match (begins, ends) {
        (Some(begins), _) if deadline.is_some_and(|deadline| begins >= deadline) => {
            Verdict::BeginsTooLate { begins }
        }
        (_, Some(ends)) => Verdict::EndsTooLate { ends },
        (_, None) => Verdict::Possible,
    };
    let why = verdict
        .why_not(now)
        .unwrap_or_else(|| "nobody can say when it would begin".to_owned());
    SchedulerError::DeadlineUnreachable { why }
}
