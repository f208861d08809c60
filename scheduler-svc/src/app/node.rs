//! The nodes as people see them: finding and listing them, and what is on one.
//!
//! **Invariant**: what belongs to projects that the caller may not use is counted, never named.

pub(crate) mod cordon;
mod drain;

pub(super) use drain::ended_in_order;

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::{
    Timestamp,
    id::{NodeId, WorkloadId},
};
use cnlab_service::Caller;
use scheduler_core::{near, server::State};
use serde::{Deserialize, Serialize};

use super::{
    App,
    catalog::{owned, shown},
    find::{LARGEST_PAGE, NEAR, PAGE},
};
use crate::{
    cell::silent_before,
    error::SchedulerError,
    store::{
        grant,
        occupants::Occupants,
        record::{Gpu, Grant, Node, Run, Server},
        roster,
    },
};

/// How it stands with a node, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Ready,
    Silent,
    Cordoned,
    Draining,
}

/// A server or run on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tenant {
    pub(crate) id: WorkloadId,
    pub(crate) name: String,
    pub(crate) project: String,
    pub(crate) state_text: String,
    /// None of one that rests.
    pub(crate) grant: Option<Grant>,
    /// Since when it holds its slices, or has held none.
    pub(crate) since: Timestamp,
}

/// A node with what is on it.
///
/// It is also the kept answer of a request, so that a repetition gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeView {
    pub(crate) node: Node,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) standing: Standing,
    pub(crate) answers: bool,
    pub(crate) last_seen_ago: Duration,
    /// Everybody who holds a slice there.
    pub(crate) running: usize,
    pub(crate) workloads: Vec<Tenant>,
    /// Every server that holds no slice and whose files lie there.
    pub(crate) resting: usize,
    pub(crate) resting_servers: Vec<Tenant>,
    /// What a drain waits for.
    pub(crate) drain_detail: String,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct NodePage {
    pub(crate) nodes: Vec<NodeView>,
    /// Where the next page begins; empty after the last.
    pub(crate) next: String,
}

impl App {
    /// The node that somebody means.
    async fn find_node(&self, wanted: &str) -> Result<Node, SchedulerError> {
        let db = self.db.read();
        if let Ok(id) = wanted.parse::<NodeId>() {
            return roster::node(db, id)
                .await?
                .ok_or_else(|| unknown(wanted, Vec::new()));
        }
        let mut found = roster::named(db, wanted).await?;
        match found.len() {
            1 => found.pop().ok_or_else(|| unknown(wanted, Vec::new())),
            0 => {
                let all = roster::nodes(db).await?;
                let names = all.iter().map(|node| node.name.as_str());
                Err(unknown(wanted, owned(near::matches(wanted, names, NEAR))))
            }
            _ => Err(SchedulerError::NodeAmbiguous {
                name: shown(wanted),
                of: found.iter().map(|node| node.id.to_string()).collect(),
            }),
        }
    }

    /// A node and what is on it, as far as its caller may know.
    pub(crate) async fn get_node(
        &self,
        caller: &Caller,
        wanted: &str,
    ) -> Result<NodeView, SchedulerError> {
        let node = self.find_node(wanted).await?;
        let on_it = Occupants::load(self.db.read(), node.id).await?;
        Ok(self.node_view(caller, node, on_it))
    }

    /// A page of the nodes in the order of their ids, without what is on them.
    pub(crate) async fn list_nodes(
        &self,
        page_size: u32,
        page_token: &str,
    ) -> Result<NodePage, SchedulerError> {
        let size = match page_size {
            0 => PAGE,
            1..=LARGEST_PAGE => page_size,
            _ => return Err(SchedulerError::PageSize),
        };
        let after = match page_token {
            "" => None,
            token => Some(token.parse().map_err(|_| SchedulerError::PageToken)?),
        };
        let db = self.db.read();
        // One more than a page tells whether there is a next one.
        let mut rows = roster::page(db, after, u64::from(size) + 1).await?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let more = rows.len() > size;
        rows.truncate(size);
        let next = match rows.last() {
            Some(last) if more => last.id.to_string(),
            Some(_) | None => String::new(),
        };
        let ids: Vec<NodeId> = rows.iter().map(|node| node.id).collect();
        // Before the GPUs: of a node that holds nothing any more, no block is taken.
        let mut held: BTreeMap<NodeId, Vec<Grant>> = BTreeMap::new();
        for grant in grant::held_on(db, &ids).await? {
            held.entry(grant.node).or_default().push(grant);
        }
        let mut gpus: BTreeMap<NodeId, Vec<Gpu>> = BTreeMap::new();
        for gpu in roster::gpus_on(db, &ids).await? {
            gpus.entry(gpu.node).or_default().push(gpu);
        }
        let views = rows.into_iter().map(|node| {
            let gpus = gpus.remove(&node.id).unwrap_or_default();
            let held = held.remove(&node.id).unwrap_or_default();
            self.plain_view(node, gpus, &held)
        });
        Ok(NodePage {
            nodes: views.collect(),
            next,
        })
    }

    /// What the rows of a node and its grants say.
    fn plain_view(&self, node: Node, gpus: Vec<Gpu>, held: &[Grant]) -> NodeView {
        let now = self.now();
        let answers = node.last_seen_at >= silent_before(now, self.grants.ttl.0);
        let is_draining = node.cordon.as_ref().is_some_and(|cordon| cordon.drain);
        let drain_detail = if is_draining {
            drain::waits_for(&node.name, answers, held)
        } else {
            String::new()
        };
        NodeView {
            standing: match (&node.cordon, answers) {
                (Some(_), _) if !drain_detail.is_empty() => Standing::Draining,
                (Some(_), _) => Standing::Cordoned,
                (None, true) => Standing::Ready,
                (None, false) => Standing::Silent,
            },
            answers,
            last_seen_ago: now.since(node.last_seen_at),
            running: held.len(),
            workloads: Vec::new(),
            resting: 0,
            resting_servers: Vec::new(),
            drain_detail,
            node,
            gpus,
        }
    }

    /// The same with what is on it, as far as a caller may know.
    fn node_view(&self, caller: &Caller, node: Node, on_it: Occupants) -> NodeView {
        let Occupants {
            gpus,
            held,
            servers,
            runs,
        } = on_it;
        let mut view = self.plain_view(node, gpus, &held);
        for grant in held {
            let tenant = match grant.workload {
                WorkloadId::Server(id) => servers
                    .iter()
                    .find(|server| server.id == id && caller.may_use(&server.project))
                    .map(|server| of_server(server, Some(grant))),
                WorkloadId::Run(id) => runs
                    .iter()
                    .find(|run| run.id == id && caller.may_use(&run.project))
                    .map(|run| of_run(run, grant)),
            };
            view.workloads.extend(tenant);
        }
        for server in servers.iter().filter(|server| rests(server)) {
            view.resting += 1;
            if caller.may_use(&server.project) {
                view.resting_servers.push(of_server(server, None));
            }
        }
        view
    }
}

/// Whether a server is there and has nothing that runs.
fn rests(server: &Server) -> bool {
    server.grant.is_none()
        && match server.state {
            State::Queued | State::Stopped | State::Failed => true,
            State::Provisioning { .. }
            | State::Ready
            | State::Stopping
            | State::Deleting
            | State::Deleted => false,
        }
}

fn of_server(server: &Server, grant: Option<Grant>) -> Tenant {
    let since = match &grant {
        Some(grant) => grant.granted_at,
        None => server
            .stopped_at
            .or(server.queued_at)
            .unwrap_or(server.created_at),
    };
    Tenant {
        id: server.id.into(),
        name: server.name.to_string(),
        project: server.project.to_string(),
        state_text: match &server.failure {
            Some(failure) => format!("{} ({})", server.state, failure.reason),
            None => server.state.to_string(),
        },
        grant,
        since,
    }
}

fn of_run(run: &Run, grant: Grant) -> Tenant {
    Tenant {
        id: run.id.into(),
        name: run.name.to_string(),
        project: run.project.to_string(),
        state_text: run.state.to_string(),
        since: grant.granted_at,
        grant: Some(grant),
    }
}

fn unknown(wanted: &str, near: Vec<String>) -> SchedulerError {
    SchedulerError::NoSuchNode {
        wanted: shown(wanted),
        near,
    }
}
