//! Finding the runs of a caller, and what their commands wrote.

use std::sync::Arc;

use cnlab_model::{ProjectName, id::RunId};
use cnlab_service::Caller;
use scheduler_core::{near, run::State};

use super::RunView;
use crate::{
    app::{
        App,
        catalog::{owned, shown},
        find::{Ask, LARGEST_PAGE, NEAR, places},
        watch::Views,
    },
    error::SchedulerError,
    ports::Logs,
    store::{self, record::Run, roster},
};

/// One page of a list.
#[derive(Debug)]
pub(crate) struct RunPage {
    pub(crate) runs: Vec<RunView>,
    /// Where the next page begins; empty after the last.
    pub(crate) next: String,
}

impl App {
    /// The run that a caller means. What belongs to others does not exist for it.
    pub(in crate::app) async fn find_run(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Run, SchedulerError> {
        let db = self.db.read();
        if let Ok(id) = wanted.parse::<RunId>() {
            return store::run::get(db, id)
                .await?
                .filter(|run| run.state != State::Deleted && caller.may_use(&run.project))
                .ok_or_else(|| unknown(wanted, Vec::new()));
        }
        let (projects, name) = places(caller, wanted);
        let mut found = store::run::named(db, &projects, name).await?;
        match found.len() {
            1 => found.pop().ok_or_else(|| unknown(wanted, Vec::new())),
            0 => Err(unknown(wanted, self.near_runs(&projects, name).await?)),
            _ => Err(SchedulerError::RunAmbiguous {
                name: shown(name),
                of: found
                    .iter()
                    .map(|run| format!("{}/{}", run.project, run.name))
                    .collect(),
            }),
        }
    }

    async fn near_runs(
        &self,
        projects: &[ProjectName],
        name: &str,
    ) -> Result<Vec<String>, SchedulerError> {
        let own = store::run::list(self.db.read(), projects, None, LARGEST_PAGE.into()).await?;
        let names = own.iter().map(|run| run.name.as_str());
        Ok(owned(near::matches(name, names, NEAR)))
    }

    /// A run as its caller sees it.
    pub(crate) async fn get_run(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<RunView, SchedulerError> {
        let run = self.find_run(caller, wanted).await?;
        self.run_view(run).await
    }

    /// A page of the caller's runs, newest first.
    pub(crate) async fn list_runs(
        &self,
        caller: &Caller,
        project: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<RunPage, SchedulerError> {
        let ask = Ask::<RunId>::read(caller, project, page_size, page_token)?;
        let rows = store::run::list(self.db.read(), &ask.projects, ask.before, ask.limit);
        let (rows, next) = ask.cut(rows.await?, |run| run.id);
        let mut runs = Vec::with_capacity(rows.len());
        for row in rows {
            runs.push(self.run_view(row).await?);
        }
        Ok(RunPage { runs, next })
    }

    /// Starts to watch the run that a caller means.
    pub(crate) async fn watch_run(
        self: &Arc<Self>,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Views<Run>, SchedulerError> {
        // Before the read, so that no change falls in between.
        let changes = self.changes();
        let run = self.find_run(caller, wanted).await?;
        Ok(self.send_changes_of(run, changes))
    }

    /// What the command of a run wrote in its present or latest attempt, also after it ended.
    pub(crate) async fn run_logs(
        &self,
        caller: &Caller,
        wanted: &str,
        follow: bool,
        tail_lines: u32,
    ) -> Result<Logs, SchedulerError> {
        let run = self.find_run(caller, wanted).await?;
        let node = match run.node {
            Some(node) => Some(node),
            None => store::volume::node_of(self.db.read(), run.volume).await?,
        };
        let node = match node {
            Some(id) => roster::node(self.db.read(), id).await?,
            None => None,
        };
        let node = node.ok_or(SchedulerError::RunNeverRan)?;
        self.nodes
            .logs(&node.endpoint, run.id.into(), follow, tail_lines)
            .await
            .map_err(SchedulerError::Upstream)
    }
}

fn unknown(wanted: &str, near: Vec<String>) -> SchedulerError {
    SchedulerError::RunUnknown {
        wanted: shown(wanted),
        near,
    }
}
