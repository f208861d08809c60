//! The jobs of the outbox: what is asked of a node or of billing, and what follows from the
//! answer.
//!
//! **Invariant**: a slice is given back only when its node cannot run anything on it: it promised
//! that a launch had no effect, or answered that nothing runs there.

use cnlab_model::{
    ErrorKind,
    id::{GrantId, NodeId, ServerId, VolumeId},
};
use scheduler_core::server::State;

use super::destinations::Ended;
use crate::{
    app::{
        App,
        report::{failure_of, lost_by_node},
    },
    error::{CallError, SchedulerError},
    ports::{Launch, Slice, Usage},
    store::{
        self, grant,
        job::Job,
        record::{Failure, Grant, Node, Server},
    },
};

/// How often a launch is sent before one whose outcome is not known is withdrawn.
const LAUNCHES: u32 = 4;

/// Why a message stays.
pub(super) enum Stays {
    /// The other side is away.
    Away(CallError),
    /// The other side does not want it.
    Refused(CallError),
    /// It is our side that failed.
    Ours(SchedulerError),
}

impl Stays {
    /// What it says of the other side.
    pub(super) fn ended(&self) -> Ended {
        match self {
            Self::Away(error) if error.error.kind == ErrorKind::Deadline => Ended::TimedOut,
            Self::Away(_) | Self::Refused(_) => Ended::Answered,
            Self::Ours(_) => Ended::Unknown,
        }
    }
}

impl From<SchedulerError> for Stays {
    fn from(error: SchedulerError) -> Self {
        Self::Ours(error)
    }
}

impl From<CallError> for Stays {
    fn from(error: CallError) -> Self {
        if error.is_final() {
            Self::Refused(error)
        } else {
            Self::Away(error)
        }
    }
}

/// Tells what a job says; `attempts` counts this time, too.
pub(super) async fn perform(app: &App, job: &Job, attempts: u32) -> Result<(), Stays> {
    match job {
        Job::Launch { server, grant } => launch(app, *server, *grant, attempts).await,
        Job::Stop { server, grant } => stop(app, *server, *grant).await,
        Job::RemoveVolume {
            server,
            volume,
            node,
        } => remove_volume(app, *server, *volume, *node).await,
        Job::OpenUsage { grant } => open_usage(app, *grant).await,
        Job::CloseUsage { grant, ended_at } => {
            if let Some(grant) = grant::get(app.db.read(), *grant).await? {
                app.end_lease(&grant).await;
            }
            Ok(app.billing.close_usage(*grant, *ended_at).await?)
        }
    }
}

/// The server and grant of a job, if the grant is still the server's.
async fn present(
    app: &App,
    server: ServerId,
    id: GrantId,
) -> Result<Option<(Server, Grant)>, SchedulerError> {
    let db = app.db.read();
    let server = store::server::get(db, server).await?;
    let grant = grant::get(db, id).await?;
    Ok(server
        .zip(grant)
        .filter(|(server, grant)| server.grant == Some(id) && grant.released_at.is_none()))
}

async fn launch(app: &App, server: ServerId, grant: GrantId, attempts: u32) -> Result<(), Stays> {
    let Some((server, grant)) = present(app, server, grant).await? else {
        return Ok(());
    };
    let State::Provisioning { .. } = server.state else {
        // Somebody wants it to end before it began; the stop comes next.
        return Ok(());
    };
    let Some(node) = app.node(grant.node).await? else {
        let lost = lost_by_node(&grant.node.to_string());
        app.gone(server.id, grant.id, Some(&lost)).await?;
        return Ok(());
    };
    let launch = match order(app, &server, &grant, &node) {
        Ok(launch) => launch,
        Err(failure) => {
            app.gone(server.id, grant.id, Some(&failure)).await?;
            return Ok(());
        }
    };
    app.open_lease(&grant).await;
    match app.nodes.launch(&node.endpoint, launch).await {
        Ok(workload) => Ok(app.take_in(node.id, &workload).await?),
        Err(error) if error.is_without_effect() => {
            tracing::warn!(cnlab.server_id = %server.id, cnlab.node_id = %node.id, %error, "the node refused a launch");
            app.gone(server.id, grant.id, Some(&failure_of(&error)))
                .await?;
            Ok(())
        }
        Err(error) if error.is_final() && attempts >= LAUNCHES => {
            withdraw(app, &server, &grant, &node, error).await
        }
        Err(error) => {
            app.note(server.id, &no_answer(&node, &error)).await?;
            Err(Stays::Away(error))
        }
    }
}

/// Ends what a launch may have begun although it was answered with an error. The slice is free
/// when the node says that nothing runs there, and not before.
async fn withdraw(
    app: &App,
    server: &Server,
    grant: &Grant,
    node: &Node,
    error: CallError,
) -> Result<(), Stays> {
    match present(app, server.id, grant.id).await? {
        Some((_, grant)) if grant.delivered_at.is_none() => {}
        // The node itself has said meanwhile that it runs, or all is over.
        Some(_) | None => return Ok(()),
    }
    tracing::warn!(cnlab.server_id = %server.id, cnlab.node_id = %node.id, %error, "a launch whose outcome is not known is withdrawn");
    match app.nodes.stop(&node.endpoint, server.id, grant.fence).await {
        Ok(Some(workload)) if !workload.state.is_over() => Err(Stays::Away(error)),
        Ok(_) => {
            app.gone(server.id, grant.id, Some(&failure_of(&error)))
                .await?;
            Ok(())
        }
        Err(error) => {
            app.note(server.id, &no_answer(node, &error)).await?;
            Err(Stays::Away(error))
        }
    }
}

/// What the node is asked to run.
fn order(app: &App, server: &Server, grant: &Grant, node: &Node) -> Result<Launch, Failure> {
    let image = app
        .catalogue
        .image(&server.image)
        .map_err(|error| Failure {
            reason: "IMAGE_NOT_FOUND".to_owned(),
            message: error.to_string(),
            cause: "the catalogue has changed since the server was created".to_owned(),
            try_this: "create a new server from one of the images that are offered".to_owned(),
        })?;
    Ok(Launch {
        server: server.id,
        display_name: server.name.to_string(),
        grant: grant.id,
        fence: grant.fence,
        slice: slice(grant),
        image: image.recipe.clone(),
        install_heavy: server.install_heavy,
        volume: server.volume,
        storage_bytes: server.storage_bytes,
        // Ceilings: a machine with less gives what it has.
        memory_bytes: at_most(server.profile.memory_bytes, node.memory_bytes),
        cpu_milli: at_most(server.profile.cpu_milli, node.cpu_milli),
    })
}

fn at_most<T: Ord + Default>(ceiling: T, there_is: T) -> T {
    // A node that does not say what it has sets no limit of its own.
    if there_is == T::default() {
        ceiling
    } else {
        ceiling.min(there_is)
    }
}

fn slice(grant: &Grant) -> Slice {
    Slice {
        gpu_uuid: grant.gpu_uuid.clone(),
        gpu_type: grant.gpu_type.clone(),
        blocks: grant.blocks,
        vram_bytes: grant.vram_bytes,
    }
}

fn no_answer(node: &Node, error: &CallError) -> String {
    let (name, message) = (&node.name, &error.error.message);
    // A status without a reason of ours is one of the connection.
    if matches!(
        error.error.reason.as_str(),
        "UNAVAILABLE" | "DEADLINE" | "INTERNAL"
    ) {
        format!("{name} does not answer, trying again ({message})")
    } else {
        format!("{name} cannot do it now, trying again ({message})")
    }
}

async fn stop(app: &App, server: ServerId, grant: GrantId) -> Result<(), Stays> {
    let Some((server, grant)) = present(app, server, grant).await? else {
        return Ok(());
    };
    let Some(node) = app.node(grant.node).await? else {
        app.gone(server.id, grant.id, None).await?;
        return Ok(());
    };
    match app.nodes.stop(&node.endpoint, server.id, grant.fence).await {
        Ok(Some(workload)) if workload.state.is_over() => {
            app.take_in(node.id, &workload).await?;
            // The report may have been taken in before, or be older than what was: the
            // answer itself says that it is gone.
            Ok(app.gone(server.id, grant.id, None).await?)
        }
        Ok(Some(workload)) => {
            app.take_in(node.id, &workload).await?;
            Err(Stays::Ours(SchedulerError::ChangedMeanwhile))
        }
        Ok(None) => Ok(app.gone(server.id, grant.id, None).await?),
        Err(error) => {
            app.note(server.id, &no_answer(&node, &error)).await?;
            Err(error.into())
        }
    }
}

async fn remove_volume(
    app: &App,
    server: ServerId,
    volume: VolumeId,
    node: NodeId,
) -> Result<(), Stays> {
    if let Some(node) = app.node(node).await?
        && let Err(error) = app.nodes.remove_volume(&node.endpoint, volume).await
    {
        app.note(server, &no_answer(&node, &error)).await?;
        return Err(error.into());
    }
    Ok(app.volume_removed(server).await?)
}

async fn open_usage(app: &App, grant: GrantId) -> Result<(), Stays> {
    let Some(grant) = grant::get(app.db.read(), grant).await? else {
        return Ok(());
    };
    let Some(server) = store::server::get(app.db.read(), grant.server).await? else {
        return Ok(());
    };
    let usage = Usage {
        grant: grant.id,
        owner: server.owner,
        project: server.project.to_string(),
        server: server.id,
        slice: slice(&grant),
        started_at: grant.granted_at,
    };
    Ok(app.billing.open_usage(usage).await?)
}
