//! Finding servers: by id, by name, by project and name; and only one's own.

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

const PAGE: u32 = 100;
const LARGEST_PAGE: u32 = 1000;
const NEAR: usize = 3;

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
        let (projects, name) = match wanted.rsplit_once('/') {
            Some((project, name)) => {
                let own = caller.projects.iter().filter(|own| own.as_str() == project);
                (own.cloned().collect(), name)
            }
            None => (caller.projects.clone(), wanted),
        };
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
            token => Some(
                token
                    .parse::<ServerId>()
                    .map_err(|_| SchedulerError::PageToken)?,
            ),
        };
        // One more than asked for tells whether there is a next page.
        let limit = u64::from(size) + 1;
        let mut rows = store::server::list(self.db.read(), &projects, before, limit).await?;
        let more = rows.len() > usize::try_from(size).unwrap_or(usize::MAX);
        if more {
            rows.pop();
        }
        let next = match rows.last() {
            Some(last) if more => last.id.to_string(),
            _ => String::new(),
        };
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
