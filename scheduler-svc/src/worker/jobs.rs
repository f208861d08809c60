//! The jobs of the outbox: what is asked of a node or of billing, and what follows from the
//! answer.
//!
//! **Invariant**: a slice is given back only when its node cannot run anything on it: it promised
//! that a launch had no effect, or answered that nothing runs there.

use cnlab_model::{
    ErrorKind,
    id::{GrantId, NodeId, UserId, VolumeId, WorkloadId},
};
use scheduler_core::{profile::Profile, run, server};

use super::destinations::Ended;
use crate::{
    app::{
        App,
        report::{Gone, failure_of, lost_by_node},
    },
    error::{CallError, SchedulerError},
    ports::{Command, Launch, Usage},
    store::{
        self, grant,
        job::Job,
        record::{Failure, Grant, Node},
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
        Job::Launch { workload, grant } => launch(app, *workload, *grant, attempts).await,
        Job::Stop { workload, grant } => stop(app, *workload, *grant).await,
        Job::RemoveVolume {
            workload,
            volume,
            node,
        } => remove_volume(app, *workload, *volume, *node).await,
        Job::OpenUsage { grant } => open_usage(app, *grant).await,
        Job::CloseUsage { grant, ended_at } => {
            if let Some(grant) = grant::get(app.db.read(), *grant).await? {
                app.end_lease(&grant).await;
            }
            Ok(app.billing.close_usage(*grant, *ended_at).await?)
        }
    }
}

/// A workload as its row says it is, as far as nodes and the meter are told.
struct Present {
    id: WorkloadId,
    name: String,
    owner: UserId,
    project: String,
    grant: Option<GrantId>,
    /// Whether it waits for its node to begin.
    is_beginning: bool,
    profile: Profile,
    image: String,
    install_heavy: bool,
    volume: VolumeId,
    storage_bytes: u64,
    command: Option<Command>,
}

/// The workload of this id.
async fn find(app: &App, id: WorkloadId) -> Result<Option<Present>, SchedulerError> {
    let db = app.db.read();
    Ok(match id {
        WorkloadId::Server(server) => store::server::get(db, server).await?.map(|server| Present {
            id,
            name: server.name.to_string(),
            owner: server.owner,
            project: server.project.to_string(),
            grant: server.grant,
            is_beginning: matches!(server.state, server::State::Provisioning { .. }),
            profile: server.profile,
            image: server.image,
            install_heavy: server.install_heavy,
            volume: server.volume,
            storage_bytes: server.storage_bytes,
            command: None,
        }),
        WorkloadId::Run(run) => store::run::get(db, run).await?.map(|run| Present {
            id,
            name: run.name.to_string(),
            owner: run.owner,
            project: run.project.to_string(),
            grant: run.grant,
            is_beginning: matches!(run.state, run::State::Provisioning { .. }),
            profile: run.profile,
            image: run.image,
            install_heavy: run.install_heavy,
            volume: run.volume,
            storage_bytes: run.storage_bytes,
            command: Some(Command {
                argv: run.command,
                max_runtime: run.max_runtime,
            }),
        }),
    })
}

/// The workload and grant of a job, if the grant is still the workload's.
async fn present(
    app: &App,
    workload: WorkloadId,
    id: GrantId,
) -> Result<Option<(Present, Grant)>, SchedulerError> {
    let workload = find(app, workload).await?;
    let grant = grant::get(app.db.read(), id).await?;
    Ok(workload
        .zip(grant)
        .filter(|(workload, grant)| workload.grant == Some(id) && grant.released_at.is_none()))
}

async fn launch(
    app: &App,
    workload: WorkloadId,
    grant: GrantId,
    attempts: u32,
) -> Result<(), Stays> {
    let Some((workload, grant)) = present(app, workload, grant).await? else {
        return Ok(());
    };
    if !workload.is_beginning {
        // Somebody wants it to end before it began; the stop comes next.
        return Ok(());
    }
    let Some(node) = app.node(grant.node).await? else {
        let lost = lost_by_node(workload.id, &grant.node.to_string());
        app.gone(workload.id, grant.id, Gone::Lost(&lost)).await?;
        return Ok(());
    };
    let launch = match order(app, &workload, &grant, &node) {
        Ok(launch) => launch,
        Err(failure) => {
            app.gone(workload.id, grant.id, Gone::Failed(&failure))
                .await?;
            return Ok(());
        }
    };
    app.open_lease(&grant).await;
    match app.nodes.launch(&node.endpoint, launch).await {
        Ok(workload) => Ok(app.take_in(node.id, &workload).await?),
        Err(error) if error.is_without_effect() => {
            tracing::warn!(workload = %workload.id, cnlab.node_id = %node.id, %error, "the node refused a launch");
            let refused = failure_of(workload.id, &error);
            app.gone(workload.id, grant.id, Gone::Failed(&refused))
                .await?;
            Ok(())
        }
        Err(error) if error.is_final() && attempts >= LAUNCHES => {
            withdraw(app, workload.id, &grant, &node, error).await
        }
        Err(error) => {
            app.note(workload.id, &no_answer(&node, &error)).await?;
            Err(Stays::Away(error))
        }
    }
}

/// Ends what a launch may have begun although it was answered with an error. The slice is free
/// when the node says that nothing runs there, and not before.
async fn withdraw(
    app: &App,
    workload: WorkloadId,
    grant: &Grant,
    node: &Node,
    error: CallError,
) -> Result<(), Stays> {
    match present(app, workload, grant.id).await? {
        Some((_, grant)) if grant.delivered_at.is_none() => {}
        // The node itself has said meanwhile that it runs, or all is over.
        Some(_) | None => return Ok(()),
    }
    tracing::warn!(%workload, cnlab.node_id = %node.id, %error, "a launch whose outcome is not known is withdrawn");
    match app.nodes.stop(&node.endpoint, workload, grant.fence).await {
        Ok(Some(report)) if !report.state.is_over() => Err(Stays::Away(error)),
        Ok(_) => {
            let refused = failure_of(workload, &error);
            app.gone(workload, grant.id, Gone::Failed(&refused)).await?;
            Ok(())
        }
        Err(error) => {
            app.note(workload, &no_answer(node, &error)).await?;
            Err(Stays::Away(error))
        }
    }
}

/// What the node is asked to run.
fn order(app: &App, workload: &Present, grant: &Grant, node: &Node) -> Result<Launch, Failure> {
    let image = app
        .catalogue
        .image(&workload.image)
        .map_err(|error| Failure {
            reason: "IMAGE_NOT_FOUND".to_owned(),
            message: error.to_string(),
            cause: "the catalogue has changed since this was asked for".to_owned(),
            try_this: "take one of the images that are offered now".to_owned(),
        })?;
    let count = u64::try_from(grant.slices.len()).unwrap_or(u64::MAX);
    let of_all = |of_one: u64| of_one.saturating_mul(count);
    Ok(Launch {
        workload: workload.id,
        display_name: workload.name.clone(),
        grant: grant.id,
        fence: grant.fence,
        gpu_type: grant.gpu_type.clone(),
        slices: grant.slices.clone(),
        image: image.recipe.clone(),
        install_heavy: workload.install_heavy,
        volume: workload.volume,
        storage_bytes: workload.storage_bytes,
        // Ceilings: a machine with less gives what it has.
        memory_bytes: at_most(of_all(workload.profile.memory_bytes), node.memory_bytes),
        cpu_milli: at_most(
            u32::try_from(of_all(workload.profile.cpu_milli.into())).unwrap_or(u32::MAX),
            node.cpu_milli,
        ),
        command: workload.command.clone(),
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

async fn stop(app: &App, workload: WorkloadId, grant: GrantId) -> Result<(), Stays> {
    let Some((_, grant)) = present(app, workload, grant).await? else {
        return Ok(());
    };
    let Some(node) = app.node(grant.node).await? else {
        app.gone(workload, grant.id, Gone::Asked).await?;
        return Ok(());
    };
    match app.nodes.stop(&node.endpoint, workload, grant.fence).await {
        Ok(Some(report)) if report.state.is_over() => {
            app.take_in(node.id, &report).await?;
            // The report may have been taken in before, or be older than what was: the
            // answer itself says that it is gone.
            Ok(app.gone(workload, grant.id, Gone::Asked).await?)
        }
        Ok(Some(report)) => {
            app.take_in(node.id, &report).await?;
            Err(Stays::Ours(SchedulerError::ChangedMeanwhile))
        }
        Ok(None) => Ok(app.gone(workload, grant.id, Gone::Asked).await?),
        Err(error) => {
            app.note(workload, &no_answer(&node, &error)).await?;
            Err(error.into())
        }
    }
}

async fn remove_volume(
    app: &App,
    workload: WorkloadId,
    volume: VolumeId,
    node: NodeId,
) -> Result<(), Stays> {
    if let Some(node) = app.node(node).await?
        && let Err(error) = app.nodes.remove_volume(&node.endpoint, volume).await
    {
        // A run that began anew has nothing to do with what its earlier attempt left.
        if find(app, workload)
            .await?
            .is_some_and(|now| now.volume == volume)
        {
            app.note(workload, &no_answer(&node, &error)).await?;
        }
        return Err(error.into());
    }
    Ok(app.volume_removed(workload, volume).await?)
}

async fn open_usage(app: &App, grant: GrantId) -> Result<(), Stays> {
    let Some(grant) = grant::get(app.db.read(), grant).await? else {
        return Ok(());
    };
    let Some(workload) = find(app, grant.workload).await? else {
        return Ok(());
    };
    let usage = Usage {
        grant: grant.id,
        owner: workload.owner,
        project: workload.project,
        workload: workload.id,
        gpu_type: grant.gpu_type.clone(),
        slices: grant.slices.clone(),
        started_at: grant.granted_at,
    };
    Ok(app.billing.open_usage(usage).await?)
}
