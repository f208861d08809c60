//! The scheduler of a cell as one value: who runs where, who waits, who gives way.
//!
//! It joins what the other modules decide alone: the [`Plan`] says who starts when, an
//! [`Index`] over a [`Rule`] where, [`FairShare`] in which order teams come, and [`Runs`] who
//! gives way to whom, [`Quotas`] what a team may hold at once.
//!
//! **Invariants**
//! - What runs, what gives way and what the cluster holds are the same work in the same places,
//!   after every call.
//! - Nothing starts where something else runs; a job for which others give way starts when the
//!   last of them is gone, and nobody comes between.
//! - A team never holds more than its quota by what starts here, however many start together;
//!   nobody waits for a place, and nobody gives way, on behalf of a job that its quota keeps out.
//! - A job that gave way keeps its place in the queue, and does not give way again before it
//!   ran for the minimum run time.
//! - The same calls give the same answers.
//!
//! ```text
//! submit ─▶ Admission        turn(now) ─▶ Start | Stop | Overran | DeadlineLost
//! Stop ─▶ (checkpoint, stop) ─▶ gave_way ─▶ turn ─▶ Start of the newcomer
//! ended, saved, set_eligible … ─▶ turn            wake_at: the next turn that time alone asks for
//! ```

mod quota;
mod reclaim;

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::{Timestamp, id::TeamId};

use crate::{
    cluster::{Cluster, Demand, Kind, Node, NodeIx, Place, Refused},
    fairshare::{self, FairShare},
    index::Index,
    placement::Rule,
    plan::{self, Admission, Job, JobId, Plan, Standing, TeamIx, Unmet},
    preempt::{Environment, Running, Runs, Victim, WorkKind},
    quota::{Hold, Quotas},
    timeline::Window,
};
use quota::Gate;
use reclaim::Reclaims;

/// What to run, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// What it needs. Its `team` is given by the engine.
    pub job: Job,
    /// Who pays.
    pub team: TeamId,
    /// What kind of work it is.
    pub kind: WorkKind,
    /// For whom it is done.
    pub environment: Environment,
    /// Whether it must not be stopped for others once it runs.
    pub fixed: bool,
}

/// What has to happen now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// This job starts, and counts as running.
    Start {
        /// Which.
        job: JobId,
        /// A place per task.
        places: Vec<Place>,
    },
    /// This job gives way: save its state, stop it, then say [`Engine::gave_way`].
    Stop {
        /// Who, and why.
        victim: Victim,
        /// For whom.
        newcomer: JobId,
    },
    /// This job runs longer than was expected.
    Overran {
        /// Which.
        job: JobId,
        /// When it is expected to end now.
        until: Timestamp,
    },
    /// This job will not meet the deadline that it was promised.
    DeadlineLost {
        /// Which.
        job: JobId,
        /// When it will end, where that can be told.
        expected_end: Option<Timestamp>,
    },
}

/// How the engine decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Of the plan.
    pub plan: plan::Settings,
    /// Work that began less than this ago does not give way.
    pub min_run: Duration,
    /// Nobody gives way for work that starts within this time anyway.
    pub patience: Duration,
    /// For how many of the queue's first the engine looks for work that gives way, per turn.
    pub reclaims: usize,
    /// How often the order of teams is taken from their shares.
    pub rerank: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            plan: plan::Settings::default(),
            min_run: Duration::from_secs(10 * 60),
            patience: Duration::from_secs(60),
            reclaims: 8,
            rerank: Duration::from_secs(60),
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Engine<R> {
    settings: Settings,
    index: Index<R>,
    plan: Plan,
    runs: Runs,
    reclaims: Reclaims,
    shares: FairShare,
    /// Memory of one GPU of a kind, in MiB.
    vram: BTreeMap<Kind, u64>,
    works: BTreeMap<JobId, Work>,
    teams: BTreeMap<TeamId, TeamIx>,
    ranked_at: Option<Timestamp>,
    /// Whether somebody arrived or became old enough since the engine last looked for work
    /// that gives way.
    look: bool,
    quotas: Quotas,
    gate: Gate,
}

impl<R: Rule> Engine<R> {
    /// An engine for the nodes of a cluster, on which nothing runs. `vram` is the memory of one
    /// GPU of each kind, in MiB.
    #[must_use]
    pub fn new(
        cluster: Cluster,
        rule: R,
        vram: BTreeMap<Kind, u64>,
        settings: Settings,
        now: Timestamp,
    ) -> Self {
        let plan = Plan::new(&cluster, settings.plan, now);
        let mut engine = Self {
            settings,
            index: Index::new(cluster, rule),
            plan,
            runs: Runs::new(settings.min_run),
            reclaims: Reclaims::default(),
            shares: FairShare::new(fairshare::Amount::default()),
            vram,
            works: BTreeMap::new(),
            teams: BTreeMap::new(),
            ranked_at: None,
            look: false,
            quotas: Quotas::default(),
            gate: Gate::default(),
        };
        engine.recount();
        engine
    }

    /// What is free now.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        self.index.cluster()
    }

    /// Who waits and who runs until when.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Who runs where.
    #[must_use]
    pub const fn runs(&self) -> &Runs {
        &self.runs
    }

    /// What the teams used.
    #[must_use]
    pub const fn shares(&self) -> &FairShare {
        &self.shares
    }

    /// For the weights of teams.
    pub const fn shares_mut(&mut self) -> &mut FairShare {
        &mut self.shares
    }

    /// The work of a job, while it waits or runs.
    #[must_use]
    pub fn work(&self, id: JobId) -> Option<&Work> {
        self.works.get(&id)
    }

    /// When the next turn is due if nothing happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.plan.wake_at()
    }

    /// Ranks places by another rule from now on. What was decided stays.
    pub fn set_rule(&mut self, rule: R) {
        self.index.set_rule(rule);
    }

    /// Says how much memory one GPU of a kind has, in MiB, before nodes of that kind join.
    pub fn set_vram(&mut self, kind: Kind, mib: u64) {
        self.vram.insert(kind, mib);
    }

    /// A node has joined.
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn add_node(&mut self, node: Node, now: Timestamp) -> Result<NodeIx, Refused> {
        let ix = self.index.add(node)?;
        self.plan.set_node(ix, Some(&node), now);
        self.recount();
        self.gate.stir_all();
        self.look = true;
        Ok(ix)
    }

    /// A node may get new work, or may not: it is silent, or cordoned. What runs on it stays.
    ///
    /// # Errors
    /// [`Refused::NoNode`].
    pub fn set_eligible(
        &mut self,
        ix: NodeIx,
        eligible: bool,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.index.set_eligible(ix, eligible)?;
        let node = self.index.cluster().node(ix).copied();
        self.plan.set_node(ix, node.as_ref(), now);
        self.gate.stir_all();
        self.look = true;
        Ok(())
    }

    /// Takes in work that wants to run, and says what becomes of it. Work with a number that is
    /// known already is what it was, and is not taken in again.
    pub fn submit(&mut self, mut work: Work, now: Timestamp) -> Admission {
        let id = work.job.id;
        if let Some(standing) = self.plan.standing(id) {
            return Admission::Queued {
                start: match standing {
                    Standing::Reserved { start, .. } => Some(start),
                    Standing::Running { .. } => Some(now),
                    Standing::Waiting => None,
                },
            };
        }
        work.job.team = self.team(work.team);
        self.rank(now);
        let admission = self.line_up(&work, now);
        match admission {
            Admission::Refused { .. } | Admission::Impossible => {}
            Admission::Queued { .. }
            | Admission::Accepted { .. }
            | Admission::AcceptedLate { .. } => {
                self.works.insert(id, work);
                self.look |= !self.plan.is_withheld(id);
            }
        }
        admission
    }

    /// Takes in work that runs already, as the rows say when a scheduler begins.
    ///
    /// # Errors
    /// What is short at its places; nothing is changed then.
    pub fn adopt(
        &mut self,
        mut work: Work,
        places: Vec<Place>,
        since: Timestamp,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Refused> {
        work.job.team = self.team(work.team);
        self.take(&places, &work.job.ask.demand)?;
        if let Err(refused) = self.plan.adopt(work.job, places.clone(), since, until) {
            self.give(&places, &work.job.ask.demand);
            return Err(refused);
        }
        self.works.insert(work.job.id, work);
        self.note_running(&work, places, since, now);
        Ok(())
    }

    /// Work has ended, failed, or was cancelled, wherever it stood.
    pub fn ended(&mut self, id: JobId, now: Timestamp) {
        // Who was never taken in leaves no room.
        self.look |= self.works.contains_key(&id) && !self.plan.is_withheld(id);
        self.leave(id, now);
        self.works.remove(&id);
        self.reclaims.forget_newcomer(id);
    }

    /// The state of running work was saved.
    pub fn saved(&mut self, id: JobId, at: Timestamp) {
        self.runs.saved(id, at);
    }

    /// Work that was told to give way is gone from its places. It waits again, in its old
    /// place of the queue, for what is left of it after its last saved state.
    pub fn gave_way(&mut self, id: JobId, now: Timestamp) -> Option<Admission> {
        let running = self.runs.get(id)?;
        let done = running
            .checkpoint
            .map_or(Duration::ZERO, |saved| saved.since(running.since));
        self.leave(id, now);
        let work = self.works.get_mut(&id)?;
        work.job.length = work.job.length.saturating_sub(done);
        if let Some(deadline) = &mut work.job.deadline {
            // It was taken in once; it is not refused for having been helpful.
            deadline.unmet = Unmet::AcceptLate;
        }
        let work = *work;
        Some(self.line_up(&work, now))
    }

    /// Lets time pass until `now`, and says what has to happen.
    pub fn turn(&mut self, now: Timestamp) -> Vec<Effect> {
        self.rank(now);
        let mut effects = Vec::new();
        for newcomer in self.reclaims.ready() {
            effects.extend(self.start_after_others(newcomer, now));
        }
        self.carry_out(now, &mut effects);
        if std::mem::take(&mut self.look) {
            self.look_for_room(now, &mut effects);
            if self.settle(now) {
                self.carry_out(now, &mut effects);
            }
        }
        effects
    }

    /// Carries out a start of the plan, at the best place that it leaves free.
    fn start(&mut self, id: JobId, planned: Vec<Place>, now: Timestamp) -> Option<Effect> {
        let work = *self.works.get(&id)?;
        let places = self.better(&work.job, &planned).unwrap_or(planned);
        if self.take(&places, &work.job.ask.demand).is_err() {
            // The plan and the books disagree: never start on top of others.
            self.plan.finish(id, now);
            self.plan.submit(work.job, now);
            return None;
        }
        self.note_running(&work, places.clone(), now, now);
        Some(Effect::Start { job: id, places })
    }

    /// A node with room for a job now, by the rule and for as long as the job runs: it spares
    /// the plan a look at every node.
    fn room_now(&mut self, job: &Job, now: Timestamp) -> Option<NodeIx> {
        if job.ask.tasks != 1 || job.ask.only.is_some() {
            return None;
        }
        let timeline = self.plan.timeline();
        let window = Window::at(now.max(timeline.now()));
        let free = |ix: NodeIx, _: &Node| {
            timeline
                .earliest_among(&job.ask, job.length, window, Some(&[ix]))
                .is_some()
        };
        let choice = self.index.place_where(&job.ask.demand, free)?;
        Some(choice.place.node)
    }

    /// The best place by the rule, where the plan leaves it free for as long as the job runs.
    fn better(&mut self, job: &Job, planned: &[Place]) -> Option<Vec<Place>> {
        if job.ask.tasks != 1 || job.ask.only.is_some() {
            return None;
        }
        let demand = job.ask.demand;
        let best = self.index.place(&demand)?.place;
        if planned == [best] {
            return None;
        }
        if self.plan.move_start(job.id, vec![best]).is_ok() {
            return Some(vec![best]);
        }
        // Something is reserved there: the best among those that are free for long enough.
        let (timeline, window) = (self.plan.timeline(), Window::at(self.plan.timeline().now()));
        let free = |ix: NodeIx, _: &Node| {
            timeline
                .earliest_among(&job.ask, job.length, window, Some(&[ix]))
                .is_some()
        };
        let best = self.index.place_where(&demand, free)?.place;
        self.plan.move_start(job.id, vec![best]).ok()?;
        Some(vec![best])
    }

    fn note_running(&mut self, work: &Work, places: Vec<Place>, since: Timestamp, now: Timestamp) {
        let amount = self.amount(&work.job, &places);
        // What a cell has fits into the account many times.
        let _counted = self.shares.hold(work.team, amount, now);
        self.count(work, Hold::Held);
        self.runs.insert(Running {
            job: work.job,
            kind: work.kind,
            environment: work.environment,
            places,
            since,
            checkpoint: None,
            fixed: work.fixed,
        });
    }

    /// Takes a job out of the plan, and what it held out of the books.
    fn leave(&mut self, id: JobId, now: Timestamp) {
        self.plan.finish(id, now);
        self.reclaims.gone(id);
        self.count_no_more(id);
        let Some(running) = self.runs.remove(id) else {
            return;
        };
        self.give(&running.places, &running.job.ask.demand);
        if let Some(work) = self.works.get(&id) {
            let amount = self.amount(&running.job, &running.places);
            let _counted = self.shares.release(work.team, amount, now);
        }
    }

    /// Takes every place or none.
    fn take(&mut self, places: &[Place], demand: &Demand) -> Result<(), Refused> {
        for (at, place) in places.iter().enumerate() {
            if let Err(refused) = self.index.take(*place, demand) {
                self.give(places.get(..at).unwrap_or_default(), demand);
                return Err(refused);
            }
        }
        Ok(())
    }

    fn give(&mut self, places: &[Place], demand: &Demand) {
        for place in places {
            // It was taken: only a node that is gone refuses.
            let _gone = self.index.give(*place, demand);
        }
    }

    fn amount(&self, job: &Job, places: &[Place]) -> fairshare::Amount {
        let demand = &job.ask.demand;
        let tasks = u64::from(job.ask.tasks);
        let blocks = u64::from(demand.total_blocks());
        let per_gpu = places
            .first()
            .and_then(|place| self.index.cluster().node(place.node))
            .and_then(|node| self.vram.get(&node.kind()))
            .copied()
            .unwrap_or(0);
        fairshare::Amount {
            blocks: blocks.saturating_mul(tasks),
            vram_mib: blocks
                .saturating_mul(per_gpu)
                .saturating_mul(tasks)
                .div_euclid(cnlab_model::BLOCKS_PER_GPU.into()),
            cpu_milli: u64::from(demand.cpu_milli()).saturating_mul(tasks),
            memory_mib: u64::from(demand.memory_mib()).saturating_mul(tasks),
        }
    }

    fn team(&mut self, team: TeamId) -> TeamIx {
        let next = TeamIx(u32::try_from(self.teams.len()).unwrap_or(u32::MAX));
        *self.teams.entry(team).or_insert(next)
    }

    /// Takes the order of teams from their shares, now and then: it changes slowly, and every
    /// change may move reservations.
    fn rank(&mut self, now: Timestamp) {
        let due = self
            .ranked_at
            .is_none_or(|at| now >= at.plus(self.settings.rerank) || now < at);
        if !due {
            return;
        }
        self.ranked_at = Some(now);
        let order = self.shares.order(now);
        let ranks = (1_u32..).zip(order).filter_map(|(rank, (team, _))| {
            // Teams that used nothing at all share the first rank.
            Some((*self.teams.get(&team)?, rank))
        });
        self.plan.set_ranks(ranks);
    }

    /// What the cell has, for the shares.
    fn recount(&mut self) {
        let mut capacity = fairshare::Amount::default();
        for (_, node) in self.index.cluster().nodes() {
            let total = node.total();
            let gpus = u64::from(node.gpus());
            let vram = self.vram.get(&node.kind()).copied().unwrap_or(0);
            capacity.blocks = capacity.blocks.saturating_add(total.blocks);
            capacity.vram_mib = capacity.vram_mib.saturating_add(vram.saturating_mul(gpus));
            capacity.cpu_milli = capacity.cpu_milli.saturating_add(total.cpu_milli);
            capacity.memory_mib = capacity.memory_mib.saturating_add(total.memory_mib);
        }
        self.shares.set_capacity(capacity);
    }
}

#[cfg(test)]
mod tests;
