//! Between the wire and the words of this service.

pub(crate) mod nodes;
pub(crate) mod queue;
pub(crate) mod run;

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use cnlab_model::{
    Blocks,
    gpu::family,
    id::{NodeId, WorkloadId},
};
use cnlab_proto::{
    convert::{FieldError, encode_blocks, encode_duration, encode_timestamp, parse_field},
    model::v1 as model,
    node::v1 as node,
    scheduler::v1 as pb,
};
use scheduler_core::server::{Phase, State};
use tokio_stream::Stream;

use crate::{
    app::{
        catalog::{Availability, Image, ProfileStatus},
        create::NewServer,
        open::Opened,
        roster::Route,
        view::View,
    },
    config::NotebookConfig,
    ports::{EndCause, Launch, Recipe, Workload, WorkloadState},
    store::record::{Exit, Failure, Gpu, Grant, Node, RuntimeFacts, Slice},
};

// --- out

fn isolation(blocks: u8) -> model::IsolationClass {
    if blocks == cnlab_model::BLOCKS_PER_GPU {
        model::IsolationClass::Hard
    } else {
        model::IsolationClass::Soft
    }
}

pub(crate) fn encode_slices(gpu_type: &str, slices: &[Slice]) -> Vec<model::Slice> {
    let encode = |slice: &Slice| model::Slice {
        gpu_uuid: slice.gpu_uuid.clone(),
        gpu_type: gpu_type.to_owned(),
        blocks: encode_blocks(slice.blocks),
        vram_bytes: slice.vram_bytes,
        isolation: isolation(slice.blocks.count()).into(),
    };
    slices.iter().map(encode).collect()
}

fn encode_grant(grant: &Grant) -> model::Grant {
    model::Grant {
        id: grant.id.to_string(),
        fence: grant.fence,
        slices: encode_slices(&grant.gpu_type, &grant.slices),
    }
}

fn encode_failure(failure: Failure) -> model::Failure {
    model::Failure {
        reason: failure.reason,
        message: failure.message,
        cause: failure.cause,
        try_this: failure.try_this,
    }
}

const fn encode_state(state: State) -> pb::ServerState {
    match state {
        State::Queued => pb::ServerState::Queued,
        State::Provisioning { .. } => pb::ServerState::Provisioning,
        State::Ready => pb::ServerState::Ready,
        State::Stopping => pb::ServerState::Stopping,
        State::Stopped => pb::ServerState::Stopped,
        State::Failed => pb::ServerState::Failed,
        State::Deleting => pb::ServerState::Deleting,
        State::Deleted => pb::ServerState::Deleted,
    }
}

const fn encode_phase(state: State) -> pb::ServerPhase {
    match state {
        State::Queued => pb::ServerPhase::WaitingForSlice,
        State::Provisioning { phase } => match phase {
            Phase::SendingToNode => pb::ServerPhase::SendingToNode,
            Phase::BuildingEnvironment => pb::ServerPhase::BuildingEnvironment,
            Phase::Starting => pb::ServerPhase::Starting,
            Phase::WaitingForPage => pb::ServerPhase::WaitingForPage,
        },
        State::Ready
        | State::Stopping
        | State::Stopped
        | State::Failed
        | State::Deleting
        | State::Deleted => pb::ServerPhase::Unspecified,
    }
}

fn encode_runtime(facts: RuntimeFacts) -> pb::RuntimeFacts {
    pb::RuntimeFacts {
        simulated_gpu: facts.simulated_gpu,
        installed: facts.installed,
        not_installed: facts.not_installed,
        enforced: facts.enforced,
        not_enforced: facts.not_enforced,
        python_version: facts.python_version,
    }
}

pub(crate) fn encode_server(view: View, notebook: &NotebookConfig) -> pb::Server {
    let server = view.server;
    pb::Server {
        url: notebook.url(server.id),
        id: server.id.to_string(),
        name: server.name.to_string(),
        project: server.project.to_string(),
        owner_id: server.owner.to_string(),
        profile: server.profile.name,
        image: server.image,
        image_reference: server.image_reference,
        storage_bytes: server.storage_bytes,
        volume_id: server.volume.to_string(),
        state: encode_state(server.state).into(),
        phase: encode_phase(server.state).into(),
        phase_detail: server.phase_detail,
        eta: view.eta.map(encode_duration),
        node_id: server.node.map(String::from).unwrap_or_default(),
        node_name: view.node_name.unwrap_or_default(),
        grant: view.grant.as_ref().map(encode_grant),
        created_at: Some(encode_timestamp(server.created_at)),
        started_at: server.started_at.map(encode_timestamp),
        ready_at: server.ready_at.map(encode_timestamp),
        stopped_at: server.stopped_at.map(encode_timestamp),
        failure: server.failure.map(encode_failure),
        runtime: server.runtime.map(encode_runtime),
        version: server.version,
        install_heavy: server.install_heavy,
        gpus: server.gpus.into(),
    }
}

pub(crate) fn encode_opened(opened: Opened) -> pb::OpenServerResponse {
    pb::OpenServerResponse {
        link: opened.link,
        url: opened.url,
        expires_at: Some(encode_timestamp(opened.expires_at)),
    }
}

pub(crate) fn encode_profile(status: ProfileStatus) -> pb::Profile {
    let (available_now, wait, unavailable_reason) = match status.availability {
        Availability::Now => (true, None, String::new()),
        Availability::Later(wait) => (false, wait.map(encode_duration), String::new()),
        Availability::Never(why) => (false, None, why),
    };
    let profile = status.profile;
    pb::Profile {
        name: profile.name,
        gpu_type: profile.gpu_type,
        slice_percent: profile.percent.into(),
        isolation: isolation(profile.percent).into(),
        available_now,
        wait,
        unavailable_reason,
        vram_bytes: status.vram_bytes,
        memory_bytes: profile.memory_bytes,
        cpu_milli: profile.cpu_milli,
        simulated: status.simulated,
    }
}

pub(crate) fn encode_image(image: &Image) -> pb::Image {
    pb::Image {
        name: image.recipe.name.clone(),
        reference: image.recipe.reference.clone(),
        description: image.description.clone(),
        packages: image.recipe.packages.clone(),
        heavy_packages: image.recipe.heavy_packages.clone(),
    }
}

pub(crate) fn encode_route(route: Route) -> pb::Route {
    let (node_endpoint, fence) = route.place.unwrap_or_default();
    pb::Route {
        server_id: route.server.to_string(),
        server_name: route.name.to_string(),
        owner_id: route.owner.to_string(),
        project: route.project.to_string(),
        node_endpoint,
        fence,
        ready: route.ready,
        state_text: route.state_text,
    }
}

fn encode_recipe(image: Recipe) -> node::ImageRecipe {
    node::ImageRecipe {
        name: image.name,
        reference: image.reference,
        packages: image.packages,
        heavy_packages: image.heavy_packages,
    }
}

pub(crate) fn encode_launch(launch: Launch) -> node::LaunchWorkloadRequest {
    node::LaunchWorkloadRequest {
        workload_id: launch.workload.to_string(),
        grant: Some(model::Grant {
            id: launch.grant.to_string(),
            fence: launch.fence,
            slices: encode_slices(&launch.gpu_type, &launch.slices),
        }),
        image: Some(encode_recipe(launch.image)),
        install_heavy: launch.install_heavy,
        volume_id: launch.volume.to_string(),
        storage_bytes: launch.storage_bytes,
        memory_bytes: launch.memory_bytes,
        cpu_milli: launch.cpu_milli,
        display_name: launch.display_name,
        command: launch.command.map(|command| node::Command {
            argv: command.argv,
            max_runtime: command.max_runtime.map(encode_duration),
        }),
    }
}

// --- in

pub(crate) fn decode_new_server(request: pb::CreateServerRequest) -> NewServer {
    NewServer {
        name: request.name,
        image: request.image,
        profile: request.profile,
        storage_bytes: request.storage_bytes,
        project: request.project,
        install_heavy: request.install_heavy,
        gpus: request.gpus,
    }
}

/// A node and its GPUs as it registers.
pub(crate) fn decode_node(
    request: pb::RegisterNodeRequest,
    now: cnlab_model::Timestamp,
) -> Result<(Node, Vec<Gpu>), FieldError> {
    let id: NodeId = parse_field("node_id", &request.node_id)?;
    if request.name.is_empty() {
        return Err(FieldError::new("name", "must not be empty"));
    }
    let uri: Result<http::Uri, _> = request.endpoint.parse();
    if uri.map_or(true, |uri| uri.scheme().is_none() || uri.host().is_none()) {
        return Err(FieldError::new(
            "endpoint",
            "is no URL such as http://127.0.0.1:4711",
        ));
    }
    let mut gpus: Vec<Gpu> = Vec::with_capacity(request.gpus.len());
    for (index, gpu) in request.gpus.into_iter().enumerate() {
        let field = |name: &str| format!("gpus[{index}].{name}");
        if gpu.uuid.is_empty() || gpus.iter().any(|other| other.uuid == gpu.uuid) {
            return Err(FieldError::new(
                field("uuid"),
                "is empty or stands there twice",
            ));
        }
        if gpu.memory_bytes == 0 {
            return Err(FieldError::new(field("memory_bytes"), "must be above 0"));
        }
        gpus.push(Gpu {
            node: id,
            uuid: gpu.uuid,
            family: if gpu.gpu_type.is_empty() {
                family(&gpu.name)
            } else {
                gpu.gpu_type
            },
            name: gpu.name,
            memory_bytes: gpu.memory_bytes,
            simulated: gpu.simulated,
            driver_version: gpu.driver_version,
            taken: Blocks::EMPTY,
            present: true,
            version: 1,
        });
    }
    let node = Node {
        id,
        name: request.name,
        endpoint: request.endpoint,
        cpu_milli: request.cpu_milli,
        memory_bytes: request.memory_bytes,
        disk_bytes: request.disk_bytes,
        disk_free_bytes: request.disk_free_bytes,
        not_enforced: request.not_enforced,
        ready_images: request.ready_images,
        registered_at: now,
        last_seen_at: now,
        cordon: None,
    };
    Ok((node, gpus))
}

fn decode_failure(id: WorkloadId, failure: Option<model::Failure>) -> Failure {
    let (what, try_this) = match id {
        WorkloadId::Server(_) => (
            "server",
            "see `cnlab server logs`, then `cnlab server start`",
        ),
        WorkloadId::Run(_) => ("run", "see `cnlab run logs`, then `cnlab run submit`"),
    };
    match failure {
        Some(failure) if !failure.reason.is_empty() => Failure {
            reason: failure.reason,
            message: failure.message,
            cause: failure.cause,
            try_this: failure.try_this,
        },
        Some(_) | None => Failure {
            reason: "PROCESS_ENDED".to_owned(),
            message: format!("the processes of the {what} ended by themselves"),
            cause: String::new(),
            try_this: try_this.to_owned(),
        },
    }
}

pub(crate) fn decode_workload(
    field: &str,
    workload: node::Workload,
) -> Result<Workload, FieldError> {
    let at = |name: &str| format!("{field}.{name}");
    let id: WorkloadId = parse_field(&at("workload_id"), &workload.workload_id)?;
    let state = match workload.state() {
        node::WorkloadState::Unspecified => {
            return Err(FieldError::new(at("state"), "is unknown"));
        }
        node::WorkloadState::Accepted => WorkloadState::Preparing(Phase::SendingToNode),
        node::WorkloadState::BuildingEnvironment => {
            WorkloadState::Preparing(Phase::BuildingEnvironment)
        }
        node::WorkloadState::Starting => WorkloadState::Preparing(Phase::Starting),
        node::WorkloadState::WaitingForPage => WorkloadState::Preparing(Phase::WaitingForPage),
        state @ (node::WorkloadState::Running | node::WorkloadState::Succeeded)
            if matches!(id, WorkloadId::Server(_)) =>
        {
            let problem = format!("{} is a state of runs", state.as_str_name());
            return Err(FieldError::new(at("state"), problem));
        }
        node::WorkloadState::Running => WorkloadState::Running,
        node::WorkloadState::Succeeded => WorkloadState::Succeeded,
        node::WorkloadState::Ready => WorkloadState::Ready,
        node::WorkloadState::Stopping => WorkloadState::Stopping,
        node::WorkloadState::Stopped => WorkloadState::Stopped,
        node::WorkloadState::Failed => {
            WorkloadState::Failed(decode_failure(id, workload.failure.clone()))
        }
    };
    let cause = match workload.end_cause() {
        node::EndCause::Unspecified => None,
        node::EndCause::MaxRuntime => Some(EndCause::MaxRuntime),
        node::EndCause::GrantExpired => Some(EndCause::GrantExpired),
        node::EndCause::Lost => Some(EndCause::Lost),
    };
    let exit = match (workload.exit_code, workload.signal) {
        (Some(code), _) => Some(Exit::Code(code)),
        (None, Some(signal)) => Some(Exit::Signal(signal)),
        (None, None) => None,
    };
    Ok(Workload {
        id,
        fence: workload.fence,
        state,
        detail: workload.detail,
        facts: RuntimeFacts {
            simulated_gpu: workload.simulated_gpu,
            installed: workload.installed,
            not_installed: workload.not_installed,
            enforced: workload.enforced,
            not_enforced: workload.not_enforced,
            python_version: workload.python_version,
        },
        sequence: workload.sequence,
        environment_was_ready: workload.environment_was_ready,
        exit,
        cause,
    })
}

/// Bytes as text, although pieces may end in the middle of a character; what is no UTF-8 is
/// shown as replacement characters.
pub(crate) struct TextPieces<S> {
    bytes: S,
    rest: Vec<u8>,
}

impl<S> TextPieces<S> {
    pub(crate) const fn new(bytes: S) -> Self {
        Self {
            bytes,
            rest: Vec::new(),
        }
    }

    /// The text so far, keeping back the beginning of a character.
    fn text(&mut self, more: &[u8]) -> String {
        self.rest.extend_from_slice(more);
        let keep = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Ok(_) | Err(_) => incomplete_tail(&self.rest),
        };
        let kept = self.rest.split_off(keep);
        let whole = std::mem::replace(&mut self.rest, kept);
        String::from_utf8_lossy(&whole).into_owned()
    }
}

/// Where the last character begins if it is not complete, else the end.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    (from..bytes.len())
        .find(|start| {
            bytes.get(*start..).is_some_and(|tail| {
                std::str::from_utf8(tail)
                    .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
            })
        })
        .unwrap_or(bytes.len())
}

impl<S, E> Stream for TextPieces<S>
where
    S: Stream<Item = Result<Vec<u8>, E>> + Unpin,
{
    type Item = Result<String, E>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match std::task::ready!(Pin::new(&mut self.bytes).poll_next(context)) {
            Some(Ok(more)) => Poll::Ready(Some(Ok(self.text(&more)))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None if self.rest.is_empty() => Poll::Ready(None),
            None => {
                let rest = std::mem::take(&mut self.rest);
                Poll::Ready(Some(Ok(String::from_utf8_lossy(&rest).into_owned())))
            }
        }
    }
}

impl<S> Unpin for TextPieces<S> {}

#[cfg(test)]
mod tests {
    use cnlab_proto::convert::decode_blocks;
    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn characters_that_are_cut_in_two_come_out_whole() {
        let text = "größe ✓ 𝄞 end";
        for cut in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            let pieces = tokio_stream::iter([Ok::<_, ()>(a.to_vec()), Ok(b.to_vec())]);
            let all: String = TextPieces::new(pieces).map(Result::unwrap).collect().await;
            assert_eq!(all, text);
        }
    }

    #[tokio::test]
    async fn what_is_no_text_is_replaced_and_nothing_is_kept_for_ever() {
        let pieces = tokio_stream::iter([Ok::<_, ()>(b"a\xffb\xe2\x82".to_vec())]);
        let all: String = TextPieces::new(pieces).map(Result::unwrap).collect().await;
        assert_eq!(all, "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn slices_keep_their_blocks() {
        let slice = Slice {
            gpu_uuid: "GPU-1".to_owned(),
            blocks: "3-7,50".parse().unwrap(),
            vram_bytes: 1,
        };
        let wire = encode_slices("H100", std::slice::from_ref(&slice));
        let [wire] = wire.as_slice() else {
            panic!("{wire:?}");
        };
        assert_eq!(decode_blocks("blocks", &wire.blocks), Ok(slice.blocks));
        assert_eq!(wire.gpu_type, "H100");
        assert_eq!(wire.isolation(), model::IsolationClass::Soft);
    }
}
