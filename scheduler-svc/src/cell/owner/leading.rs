//! Who leads the cell.

use std::sync::{Arc, atomic::Ordering};

use cnlab_db::Backend;
use tokio::time::Instant;

use super::{Alone, LEAD_AGAIN, LEAD_FOR, Owner, SET_BACK, SETTLES, State};
use crate::{
    cell::{Command, Role},
    error::SchedulerError,
    store::lead::{self, Lead, Taken},
};

/// The lead of somebody else, and since when it has not changed, in time that really passes.
#[derive(Debug)]
pub(super) struct Watched {
    lead: Lead,
    since: Instant,
}

impl Watched {
    /// A leader renews its lead so often that this one is gone, whatever its clock said.
    fn gone(&self) -> Option<&Lead> {
        (self.since.elapsed() > LEAD_FOR * 2).then_some(&self.lead)
    }
}

impl Owner {
    /// Makes what this process knows independent of a clock that was set back: what was to
    /// happen after some time would happen hours late.
    pub(super) fn notice_clock(&self, state: &mut State) {
        let now = self.app.runtime.clock.now();
        if state.showed.since(now) > SET_BACK {
            tracing::warn!(by = ?state.showed.since(now), "the clock was set back");
            state.image = None;
            state.lead_again = now;
            state.news_at = now;
        }
        state.showed = now;
    }

    /// Takes the lead or keeps it. Answers `false` while somebody else leads.
    pub(super) async fn lead(&self, state: &mut State) -> Result<bool, SchedulerError> {
        let now = self.app.runtime.clock.now();
        if state.term.is_some() && now < state.lead_again {
            return Ok(true);
        }
        let until = now.plus(LEAD_FOR);
        let alone = self.alone();
        let gone = state.others.as_ref().and_then(Watched::gone);
        let taken = self
            .app
            .db
            .write(|tx| async move { lead::take(&tx, &self.me, alone, gone, until, now).await })
            .await?;
        let term = match taken {
            Taken::Mine(term) => term,
            Taken::Theirs(lead) => {
                state.term = None;
                state.image = None;
                if state.others.as_ref().is_none_or(|seen| seen.lead != lead) {
                    state.others = Some(Watched {
                        lead,
                        since: Instant::now(),
                    });
                }
                return Ok(false);
            }
        };
        state.others = None;
        if state.term != Some(term) {
            tracing::info!(term, "leads the cell");
            state.image = None;
            state.stands_by = None;
        }
        self.app.cell.turn_to(Role::Leads(term));
        state.term = Some(term);
        state.leads_until = until;
        state.lead_again = now.plus(LEAD_AGAIN);
        Ok(true)
    }

    /// Refuses what is asked for until it is worth asking for the lead again.
    pub(super) async fn stand_by(&self, state: &mut State) {
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

    /// A database file has one scheduler: nobody else can lead.
    fn alone(&self) -> bool {
        self.app.db.backend() == Backend::Sqlite
    }

    /// Refuses every wish while nothing can be written or read. Questions are answered from
    /// the image as long as nobody else can have changed the cell.
    pub(super) fn refuse_all(&self, state: &mut State, error: &Arc<SchedulerError>) {
        let now = self.app.runtime.clock.now();
        let shared = || SchedulerError::Shared(Arc::clone(error));
        let known = self.alone() || now < state.leads_until;
        let image = state.image.as_ref().filter(|_| known);
        for Alone { want, .. } in state.carried.drain(..) {
            let _ = want.reply.send(Err(shared()));
        }
        let Some(outlet) = &mut state.outlet else {
            return;
        };
        while let Ok(command) = outlet.try_recv() {
            match command {
                Command::Want(want) => {
                    let _ = want.reply.send(Err(shared()));
                }
                Command::Ask(question) => {
                    question(image.ok_or_else(|| Arc::clone(error)), now);
                }
                Command::Changed(_)
                | Command::Registered(..)
                | Command::Marked(_)
                | Command::Heard { .. }
                | Command::Started { .. } => {
                    self.app.cell.missed.store(true, Ordering::Release);
                }
            }
        }
    }

    pub(super) async fn step_down(&self, state: &mut State) {
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
}
