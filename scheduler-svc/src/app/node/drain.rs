//! Draining: what runs on a cordoned node is ended in good order.
//!
//! Runs begin anew elsewhere. The files of a server lie on its node and cannot move, so that it
//! is left stopped: it begins again when somebody starts it, on this node.

use cnlab_db::Tx;
use cnlab_model::{
    Timestamp,
    id::{RunId, ServerId, WorkloadId},
};
use cnlab_service::trace;
use scheduler_core::{run, server};

use crate::{
    app::App,
    cell::Who,
    error::SchedulerError,
    store::{
        self, grant,
        job::{self, Job},
        occupants::split,
        record::{Failure, Grant, Node},
        roster,
    },
};

impl App {
    /// Has everything ended that holds a slice on a node. Answers what is changed by that now;
    /// the rest follows when the node says that it is gone.
    pub(super) async fn end_everything(
        &self,
        tx: &Tx,
        node: &Node,
        now: Timestamp,
    ) -> Result<Vec<Who>, SchedulerError> {
        let mut changes = Vec::new();
        for grant in grant::held(tx, Some(node.id)).await? {
            let change = match grant.workload {
                WorkloadId::Server(id) => end_server(tx, id, &grant, node, now).await?,
                WorkloadId::Run(id) => end_run(tx, id, &grant, node, now).await?,
            };
            changes.extend(change);
        }
        Ok(changes)
    }
}

async fn end_server(
    tx: &Tx,
    id: ServerId,
    grant: &Grant,
    node: &Node,
    now: Timestamp,
) -> Result<Option<Who>, SchedulerError> {
    let Some(mut server) = store::server::get(tx, id).await? else {
        return Ok(None);
    };
    // One that ends already does so for its own reasons.
    let runs = matches!(
        server.state,
        server::State::Provisioning { .. } | server::State::Ready
    );
    if server.grant != Some(grant.id) || !runs {
        return Ok(None);
    }
    server.state =
        server::step(server.state, server::Event::StopRequested).map_err(SchedulerError::NotNow)?;
    server.expected_at = None;
    server.phase_detail = format!("{} is drained", node.name);
    server.failure = Some(drained(node));
    tracing::info!(cnlab.server_id = %id, cnlab.node_id = %node.id, "server ended by a drain");
    push_stop(tx, grant, now).await?;
    store::server::update(tx, &mut server).await?;
    Ok(Some(Who::from(&server)))
}

/// A run stays as it is until it is gone, since it may end by itself before.
async fn end_run(
    tx: &Tx,
    id: RunId,
    grant: &Grant,
    node: &Node,
    now: Timestamp,
) -> Result<Option<Who>, SchedulerError> {
    let Some(mut run) = store::run::get(tx, id).await? else {
        return Ok(None);
    };
    let runs = matches!(
        run.state,
        run::State::Provisioning { .. } | run::State::Running
    );
    if run.grant != Some(grant.id) || !runs {
        return Ok(None);
    }
    run.phase_detail = format!("{} is drained", node.name);
    tracing::info!(cnlab.run_id = %id, cnlab.node_id = %node.id, "run ended by a drain");
    push_stop(tx, grant, now).await?;
    store::run::update(tx, &mut run).await?;
    Ok(Some(Who::from(&run)))
}

async fn push_stop(tx: &Tx, grant: &Grant, now: Timestamp) -> Result<(), SchedulerError> {
    let stop = Job::Stop {
        workload: grant.workload,
        grant: grant.id,
    };
    let traceparent = trace::current_traceparent();
    job::push(tx, &stop, Some(grant.node), traceparent, now).await
}

/// Why a server is stopped that its user did not stop.
fn drained(node: &Node) -> Failure {
    Failure {
        reason: "NODE_DRAINED".to_owned(),
        message: format!("the node {} was drained", node.name),
        cause: node
            .cordon
            .as_ref()
            .map(|cordon| cordon.reason.clone())
            .unwrap_or_default(),
        try_this: format!(
            "start it again with `cnlab server start`: it waits for {}, where its files lie",
            node.name
        ),
    }
}

/// Why a run begins anew whose processes were ended in good order, and not by its user.
pub(in crate::app) async fn ended_in_order(
    tx: &Tx,
    grant: &Grant,
) -> Result<Failure, SchedulerError> {
    let node = roster::node(tx, grant.node).await?;
    let is_drained = |node: &Node| node.cordon.as_ref().is_some_and(|cordon| cordon.drain);
    Ok(match node.filter(is_drained) {
        Some(node) => drained(&node),
        None => Failure {
            message: "its node ended it in good order".to_owned(),
            ..Failure::default()
        },
    })
}

/// What a drain of a node waits for that holds these grants; empty when it is done.
pub(super) fn waits_for(name: &str, answers: bool, held: &[Grant]) -> String {
    let (servers, runs) = split(held);
    let counted = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        many => Some(format!("{many} {what}s")),
    };
    let all: Vec<String> = [counted(servers.len(), "server"), counted(runs.len(), "run")]
        .into_iter()
        .flatten()
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let all = all.join(" and ");
    if answers {
        format!("waiting for {all} to end")
    } else {
        format!("waiting for {name} to answer again; {all} may still run there")
    }
}
