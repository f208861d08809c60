//! Finding servers: by id, by name, by project and name; and only one's own.

use std::{fmt::Display, str::FromStr};

use cnlab_model::{ProjectName, id::ServerId};
use cnlab_service::Caller;
use scheduler_core::{near, server::State};

use super::{
    App,
    catalog::{owned, shown},
    create::project_of,
    view::View,
};
use crate::{
    error::SchedulerError,
    store::{self, record::Server},
};

pub(super) const PAGE: u32 = 100;
pub(super) const LARGEST_PAGE: u32 = 1000;
pub(super) const NEAR: usize = 3;

/// The projects in which a name is looked for, and the name: `name` or `owner/slug/name`.
pub(super) fn places<'a>(caller: &Caller, wanted: &'a str) -> (Vec<ProjectName>, &'a str) {
    match wanted.rsplit_once('/') {
        Some((project, name)) => {
            let own = caller.projects.iter().filter(|own| own.as_str() == project);
            (own.cloned().collect(), name)
        }
        None => (caller.projects.clone(), wanted),
    }
}

/// What part of a list is asked for.
pub(super) struct Ask<Id> {
    pub(super) projects: Vec<ProjectName>,
    /// Only what is older than this.
    pub(super) before: Option<Id>,
    /// One more than a page tells whether there is a next one.
    pub(super) limit: u64,
    size: usize,
}

impl<Id: FromStr + Display> Ask<Id> {
    /// Reads a request for a page.
    ///
    /// # Errors
    /// When the project is not the caller's, or size or token make no sense.
    pub(super) fn read(
        caller: &Caller,
        project: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<Self, SchedulerError> {
        let projects = if project.is_empty() {
            caller.projects.clone()
        } else {
            vec![project_of(caller, project)?]
        };
        let size = match page_size {
            0 => PAGE,
            1..=LARGEST_PAGE => page_size,
            _ => return Err(SchedulerError::PageSize),
        };
        let before = match page_token {
            "" => None,
            token => Some(token.parse().map_err(|_| SchedulerError::PageToken)?),
        };
        Ok(Self {
            projects,
            before,
            limit: u64::from(size) + 1,
            size: usize::try_from(size).unwrap_or(usize::MAX),
        })
    }

    /// The page of the rows that were found, and where the next one begins.
    pub(super) fn cut<T>(&self, mut rows: Vec<T>, id: impl Fn(&T) -> Id) -> (Vec<T>, String) {
        let more = rows.len() > self.size;
        rows.truncate(self.size);
        let next = match rows.last() {
            Some(last) if more => id(last).to_string(),
            _ => String::new(),
        };
        (rows, next)
    }
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) servers: Vec<View>,
    /// Where the next page begins; empty after the last.
    pub(crate) next: String,
}

impl App {
    /// The server that a caller means. What belongs to others does not exist for it.
    pub(crate) async fn find(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<Server, SchedulerError> {
        let db = self.db.read();
        if let Ok(id) = wanted.parse::<ServerId>() {
            return store::server::get(db, id)
                .await?
                .filter(|server| server.state != State::Deleted && caller.may_use(&server.project))
                .ok_or_else(|| unknown(wanted, Vec::new()));
        }
        let (projects, name) = places(caller, wanted);
        let mut found = store::server::named(db, &projects, name).await?;
        match found.len() {
            1 => found.pop().ok_or_else(|| unknown(wanted, Vec::new())),
            0 => Err(unknown(wanted, self.near_names(&projects, name).await?)),
            _ => Err(SchedulerError::ServerAmbiguous {
                name: shown(name),
                of: found
                    .iter()
                    .map(|server| format!("{}/{}", server.project, server.name))
                    .collect(),
            }),
        }
    }

    async fn near_names(
        &self,
        projects: &[ProjectName],
        name: &str,
    ) -> Result<Vec<String>, SchedulerError> {
        let own = store::server::list(self.db.read(), projects, None, LARGEST_PAGE.into()).await?;
        let names = own.iter().map(|server| server.name.as_str());
        Ok(owned(near::matches(name, names, NEAR)))
    }

    /// A server as its caller sees it.
    pub(crate) async fn get(&self, caller: &Caller, wanted: &str) -> Result<View, SchedulerError> {
        let server = self.find(caller, wanted).await?;
        self.view(server).await
    }

    /// A page of the caller's servers, newest first.
    pub(crate) async fn list(
        &self,
        caller: &Caller,
        project: &str,
        page_size: u32,
        page_token: &str,
    ) -> Result<Page, SchedulerError> {
        let ask = Ask::<ServerId>::read(caller, project, page_size, page_token)?;
        let rows = store::server::list(self.db.read(), &ask.projects, ask.before, ask.limit);
        let (rows, next) = ask.cut(rows.await?, |server| server.id);
        let mut servers = Vec::with_capacity(rows.len());
        for row in rows {
            servers.push(self.view(row).await?);
        }
        Ok(Page { servers, next })
    }
}

fn unknown(wanted: &str, near: Vec<String>) -> SchedulerError {
    SchedulerError::ServerUnknown {
        wanted: shown(wanted),
        near,
    }
}
