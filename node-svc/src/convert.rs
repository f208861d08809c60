//! Between messages and the node's own values, with the field at fault in every error.

use cnlab_model::{ServerName, gpu::family, id::VolumeId};
use cnlab_proto::{
    convert::{FieldError, decode_blocks, decode_duration, encode_timestamp, parse_field},
    model::v1 as model,
    node::v1 as pb,
};
use node_core::{Holder, Phase, Slice, WorkloadId};

use crate::{
    app::life::{Command, EndCause, Facts, Launch, Snapshot},
    failure::Failure,
    ports::{Exit, GpuFacts},
};

/// Longest requirement line of an image.
const REQUIREMENT: usize = 500;
/// Most slices of one grant: no machine has more GPUs than that.
const MAX_SLICES: usize = 16;

pub(crate) fn decode_workload_id(text: &str) -> Result<WorkloadId, FieldError> {
    parse_field("workload_id", text)
}

pub(crate) fn decode_volume_id(text: &str) -> Result<VolumeId, FieldError> {
    parse_field("volume_id", text)
}

pub(crate) fn decode_holder(workload_id: &str, fence: u64) -> Result<Holder, FieldError> {
    if fence == 0 {
        return Err(FieldError::new("fence", "is required"));
    }
    Ok(Holder {
        workload: decode_workload_id(workload_id)?,
        fence,
    })
}

pub(crate) fn decode_launch(
    request: pb::LaunchWorkloadRequest,
) -> Result<(Holder, Launch), FieldError> {
    let grant = request
        .grant
        .ok_or_else(|| FieldError::new("grant", "is required"))?;
    if !(1..=MAX_SLICES).contains(&grant.slices.len()) {
        let problem = format!("has 1 to {MAX_SLICES} slices");
        return Err(FieldError::new("grant.slices", problem));
    }
    if grant.fence == 0 {
        return Err(FieldError::new("grant.fence", "is required"));
    }
    let holder = Holder {
        workload: decode_workload_id(&request.workload_id)?,
        fence: grant.fence,
    };
    let image = request
        .image
        .ok_or_else(|| FieldError::new("image", "is required"))?;
    if image.name.is_empty() || image.name.len() > 200 {
        return Err(FieldError::new("image.name", "has 1 to 200 characters"));
    }
    check_requirements("image.packages", &image.packages)?;
    check_requirements("image.heavy_packages", &image.heavy_packages)?;
    if image.packages.is_empty() {
        return Err(FieldError::new("image.packages", "is empty"));
    }
    let hostname = if request.display_name.is_empty() {
        holder.workload.to_string().to_lowercase().replace('_', "-")
    } else {
        let name: ServerName = parse_field("display_name", &request.display_name)?;
        name.as_str().to_owned()
    };
    let launch = Launch {
        slices: grant
            .slices
            .into_iter()
            .map(decode_slice)
            .collect::<Result<_, _>>()?,
        image: image.name,
        packages: image.packages,
        heavy_packages: image.heavy_packages,
        install_heavy: request.install_heavy,
        volume: decode_volume_id(&request.volume_id)?,
        storage_bytes: request.storage_bytes,
        memory_bytes: request.memory_bytes,
        cpu_milli: request.cpu_milli,
        hostname,
        command: decode_command(holder.workload, request.command)?,
    };
    Ok((holder, launch))
}

fn decode_slice(slice: model::Slice) -> Result<Slice, FieldError> {
    Ok(Slice {
        blocks: decode_blocks("grant.slices.blocks", &slice.blocks)?,
        gpu: slice.gpu_uuid,
        vram_bytes: slice.vram_bytes,
    })
}

/// A run has a command, a server has none.
fn decode_command(
    id: WorkloadId,
    command: Option<pb::Command>,
) -> Result<Option<Command>, FieldError> {
    let command = match (id, command) {
        (WorkloadId::Server(_), None) => return Ok(None),
        (WorkloadId::Server(_), Some(_)) => {
            return Err(FieldError::new("command", "is for runs only"));
        }
        (WorkloadId::Run(_), None) => return Err(FieldError::new("command", "is required")),
        (WorkloadId::Run(_), Some(command)) => command,
    };
    if command.argv.first().is_none_or(String::is_empty) {
        return Err(FieldError::new("command.argv", "names no program"));
    }
    if command.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(FieldError::new("command.argv", "holds a zero byte"));
    }
    let max_runtime = command.max_runtime.as_ref().map(decode_duration);
    if max_runtime.is_some_and(|longest| longest.is_zero()) {
        return Err(FieldError::new(
            "command.max_runtime",
            "must be longer than nothing",
        ));
    }
    Ok(Some(Command {
        argv: command.argv,
        max_runtime,
    }))
}

/// A requirement that begins with a dash would be an option of pip.
fn check_requirements(field: &str, lines: &[String]) -> Result<(), FieldError> {
    for (index, line) in lines.iter().enumerate() {
        let good = !line.trim().is_empty()
            && !line.trim_start().starts_with('-')
            && line.len() <= REQUIREMENT
            && !line.chars().any(char::is_control);
        if !good {
            return Err(FieldError::new(
                format!("{field}[{index}]"),
                "is no requirement such as jupyterlab==4.6.6",
            ));
        }
    }
    Ok(())
}

pub(crate) fn encode_workload(snapshot: Snapshot) -> pb::Workload {
    let Snapshot {
        record,
        detail,
        sequence,
    } = snapshot;
    let (exit_code, signal) = match record.exit {
        Some(Exit::Code(code)) => (Some(code), None),
        Some(Exit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let facts = record.facts;
    let mut not_enforced = facts.not_enforced;
    if !facts.storage.is_empty() {
        not_enforced.push(facts.storage);
    }
    pb::Workload {
        workload_id: record.holder.workload.to_string(),
        fence: record.holder.fence,
        state: encode_phase(record.phase).into(),
        detail,
        failure: record.failure.map(encode_failure),
        simulated_gpu: facts.simulated_gpu,
        installed: facts.installed,
        not_installed: facts.not_installed,
        enforced: facts.enforced,
        not_enforced,
        python_version: facts.python_version,
        changed_at: Some(encode_timestamp(record.changed_at)),
        sequence,
        environment_was_ready: record.environment_was_ready,
        exit_code,
        signal,
        end_cause: encode_cause(record.cause).into(),
    }
}

/// A state that the other side has taken in before: without the facts, which are long and which
/// it keeps where a message says none.
pub(crate) fn encode_known_workload(mut snapshot: Snapshot) -> pb::Workload {
    snapshot.record.facts = Facts::default();
    encode_workload(snapshot)
}

const fn encode_phase(phase: Phase) -> pb::WorkloadState {
    match phase {
        Phase::Accepted => pb::WorkloadState::Accepted,
        Phase::BuildingEnvironment => pb::WorkloadState::BuildingEnvironment,
        Phase::Starting => pb::WorkloadState::Starting,
        Phase::WaitingForPage => pb::WorkloadState::WaitingForPage,
        Phase::Ready => pb::WorkloadState::Ready,
        Phase::Running => pb::WorkloadState::Running,
        Phase::Succeeded => pb::WorkloadState::Succeeded,
        Phase::Stopping => pb::WorkloadState::Stopping,
        Phase::Stopped => pb::WorkloadState::Stopped,
        Phase::Failed => pb::WorkloadState::Failed,
    }
}

const fn encode_cause(cause: Option<EndCause>) -> pb::EndCause {
    match cause {
        None => pb::EndCause::Unspecified,
        Some(EndCause::MaxRuntime) => pb::EndCause::MaxRuntime,
        Some(EndCause::GrantExpired) => pb::EndCause::GrantExpired,
        Some(EndCause::Lost) => pb::EndCause::Lost,
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

pub(crate) fn encode_gpu(facts: &GpuFacts) -> model::Gpu {
    model::Gpu {
        uuid: facts.uuid.clone(),
        gpu_type: family(&facts.product),
        name: facts.product.clone(),
        memory_bytes: facts.memory_bytes,
        simulated: facts.simulated,
        driver_version: facts.driver_version.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cnlab_proto::convert::encode_duration;

    use super::*;

    fn request() -> pb::LaunchWorkloadRequest {
        pb::LaunchWorkloadRequest {
            workload_id: "srv_00000000000000000000000007".to_owned(),
            grant: Some(model::Grant {
                id: "grt_00000000000000000000000007".to_owned(),
                fence: 3,
                slices: vec![model::Slice {
                    gpu_uuid: "SIM-1".to_owned(),
                    gpu_type: "H100".to_owned(),
                    blocks: vec![model::BlockRange {
                        first: 0,
                        count: 25,
                    }],
                    vram_bytes: 20 << 30,
                    isolation: model::IsolationClass::Soft.into(),
                }],
            }),
            image: Some(pb::ImageRecipe {
                name: "pytorch:2.4-cuda12.4".to_owned(),
                reference: "registry/pytorch".to_owned(),
                packages: vec!["jupyterlab==4.6.6".to_owned()],
                heavy_packages: vec!["torch".to_owned()],
            }),
            volume_id: "vol_00000000000000000000000007".to_owned(),
            storage_bytes: 1 << 30,
            display_name: "first-experiment".to_owned(),
            ..pb::LaunchWorkloadRequest::default()
        }
    }

    #[test]
    fn a_whole_request_is_understood() {
        let (holder, launch) = decode_launch(request()).unwrap();
        assert_eq!(holder.fence, 3);
        assert_eq!(launch.slices[0].blocks.to_string(), "0-24");
        assert_eq!(launch.hostname, "first-experiment");
        let mut nameless = request();
        nameless.display_name.clear();
        let (_, launch) = decode_launch(nameless).unwrap();
        assert_eq!(launch.hostname, "srv-00000000000000000000000007");
    }

    fn of_a_run() -> pb::LaunchWorkloadRequest {
        pb::LaunchWorkloadRequest {
            workload_id: "run_00000000000000000000000007".to_owned(),
            command: Some(pb::Command {
                argv: vec!["python".to_owned(), "-V".to_owned()],
                max_runtime: Some(encode_duration(Duration::from_secs(90))),
            }),
            ..request()
        }
    }

    #[test]
    fn a_run_has_a_command_and_a_server_has_none() {
        let (_, launch) = decode_launch(of_a_run()).unwrap();
        let command = launch.command.unwrap();
        assert_eq!(command.argv, ["python", "-V"]);
        assert_eq!(command.max_runtime, Some(Duration::from_secs(90)));
        type Change = fn(&mut pb::LaunchWorkloadRequest);
        let cases: [(&str, Change); 5] = [
            ("command", |r| r.command = None),
            ("command", |r| r.workload_id = request().workload_id),
            ("command.argv", |r| r.command.as_mut().unwrap().argv.clear()),
            ("command.argv", |r| {
                r.command.as_mut().unwrap().argv[1].push('\0');
            }),
            ("command.max_runtime", |r| {
                let longest = &mut r.command.as_mut().unwrap().max_runtime;
                longest.as_mut().unwrap().seconds = -1;
            }),
        ];
        for (field, change) in cases {
            let mut wrong = of_a_run();
            change(&mut wrong);
            assert_eq!(decode_launch(wrong).unwrap_err().field, field);
        }
    }

    #[test]
    fn every_wrong_field_is_named() {
        type Change = fn(&mut pb::LaunchWorkloadRequest);
        let cases: [(&str, Change); 9] = [
            ("grant", |r| r.grant = None),
            ("grant.slices", |r| {
                r.grant.as_mut().unwrap().slices.clear();
            }),
            ("grant.fence", |r| r.grant.as_mut().unwrap().fence = 0),
            ("workload_id", |r| r.workload_id = "../../x".to_owned()),
            ("volume_id", |r| r.volume_id = "..".to_owned()),
            ("image", |r| r.image = None),
            ("image.packages", |r| {
                r.image.as_mut().unwrap().packages.clear();
            }),
            ("image.packages[0]", |r| {
                r.image.as_mut().unwrap().packages = vec!["--index-url=x".to_owned()];
            }),
            ("display_name", |r| r.display_name = "a\nb".to_owned()),
        ];
        for (field, change) in cases {
            let mut wrong = request();
            change(&mut wrong);
            assert_eq!(decode_launch(wrong).unwrap_err().field, field);
        }
    }
}
