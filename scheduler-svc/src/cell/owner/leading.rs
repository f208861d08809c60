//! Who leads the cell.

use std::sync::Arc;

use cnlab_db::Backend;

use super::{Alone, LEAD_AGAIN, LEAD_FOR, Owner, SETTLES, State};
use crate::{
    cell::{Command, Role},
    error::SchedulerError,
    store::lead,
};

impl Owner {
    /// Takes the lead or keeps it. Answers `false` while somebody else leads.
    pub(super) async fn lead(&self, state: &mut State) -> Result<bool, SchedulerError> {
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

    pub(super) fn refuse_all(&self, state: &mut State, error: &Arc<SchedulerError>) {
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
