//! Runs: a real command in the same sandbox, with its exit and its longest time.
//!
//! Needs root, cgroups, python3 with venv, and a Python index.

use std::{path::Path, time::Duration};

use cnlab_model::id::RunId;
use cnlab_proto::{
    convert::encode_duration,
    model::v1 as model,
    node::v1::{self as pb, EndCause, Workload, WorkloadState},
};
use cnlab_testkit::{GENEROUS, wait_for, wait_until};

use crate::support::{
    InProcess, Leftovers, Machine, NodeClient, Scheduler, config, launch_request, supervisors,
    ulid, until,
};

/// A launch of a command on the first quarter of a GPU.
pub(crate) fn command(gpu: &model::Gpu, fence: u64, argv: &[&str]) -> pb::LaunchWorkloadRequest {
    pb::LaunchWorkloadRequest {
        workload_id: RunId::from_ulid(ulid()).to_string(),
        display_name: "first-run".to_owned(),
        command: Some(pb::Command {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            max_runtime: None,
        }),
        ..launch_request(gpu, fence)
    }
}

/// A shell that waits until a file appears in its volume, and then goes on.
pub(crate) fn gated(gpu: &model::Gpu, fence: u64, then: &str) -> pb::LaunchWorkloadRequest {
    let script = format!("while [ ! -e go ]; do sleep 0.05; done; {then}");
    command(gpu, fence, &["sh", "-c", &script])
}

pub(crate) fn open_gate(data: &Path, request: &pb::LaunchWorkloadRequest) {
    std::fs::write(data.join("volumes").join(&request.volume_id).join("go"), "").unwrap();
}

pub(crate) async fn launch(client: &NodeClient, request: &pb::LaunchWorkloadRequest) {
    client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
}

/// The end of a run, whatever it is.
pub(crate) async fn end(client: &NodeClient, id: &str) -> Workload {
    wait_for(GENEROUS * 5, &format!("{id} to be over"), async || {
        let request = pb::GetWorkloadRequest {
            workload_id: id.to_owned(),
        };
        let workload = client.clone().get_workload(request).await.unwrap();
        let workload = workload.into_inner();
        let over = [
            WorkloadState::Stopped,
            WorkloadState::Failed,
            WorkloadState::Succeeded,
        ];
        over.contains(&workload.state()).then_some(workload)
    })
    .await
    .unwrap()
}

async fn log(client: &NodeClient, id: &str) -> String {
    let request = pb::StreamLogsRequest {
        workload_id: id.to_owned(),
        follow: true,
        tail_lines: 0,
    };
    let mut stream = client.clone().stream_logs(request).await.unwrap();
    let mut text = Vec::new();
    while let Some(piece) = stream.get_mut().message().await.unwrap() {
        text.extend(piece.data);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_in_its_image_and_its_exit_is_known() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let node = InProcess::start(config(data.path(), &scheduler.endpoint)).await;
    let gpu = scheduler.first_gpu().await;
    let client = &node.client;

    let look = "import os, sys; print(os.getcwd(), os.environ['CNLAB_RUN_ID'], \
                os.getuid() != 0, sys.prefix != sys.base_prefix); \
                print('to stderr', file=sys.stderr); open('out', 'w').write('kept'); \
                print('JUPYTER_RUNTIME_DIR' in os.environ, os.path.exists('/run/cnlab'))";
    let mut request = command(&gpu, 1, &["python", "-c", look]);
    request.volume_id = launch_request(&gpu, 1).volume_id;
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    launch(client, &request).await;
    let done = end(client, &request.workload_id).await;
    assert_eq!(done.state(), WorkloadState::Succeeded, "{done:?}");
    assert_eq!((done.exit_code, done.signal), (Some(0), None));
    let said = log(client, &request.workload_id).await;
    let id = &request.workload_id;
    assert!(
        said.contains(&format!("/workspace {id} True True")),
        "{said}"
    );
    assert!(
        said.contains("to stderr") && said.contains("False False"),
        "{said}"
    );
    let volume = data.path().join("volumes").join(&request.volume_id);
    assert_eq!(std::fs::read_to_string(volume.join("out")).unwrap(), "kept");
    let states = scheduler.states(id);
    assert!(
        states.contains(&WorkloadState::Running) || states.len() > 1,
        "{states:?}"
    );
    wait_until(GENEROUS, "the end to be reported", async || {
        scheduler.states(id).last() == Some(&WorkloadState::Succeeded)
    })
    .await
    .unwrap();

    for (fence, argv, reason, says, exit) in [
        (
            2,
            &["sh", "-c", "echo last words; exit 3"][..],
            "COMMAND_FAILED",
            "ended with exit code 3",
            (Some(3), None),
        ),
        (
            3,
            &["sh", "-c", "kill -KILL $$"],
            "COMMAND_FAILED",
            "ended with signal 9 (SIGKILL)",
            (None, Some(9)),
        ),
        (
            4,
            &["no-such-program", "--at-all"],
            "COMMAND_NOT_FOUND",
            "no program \"no-such-program\"",
            (None, None),
        ),
        (
            5,
            &["/etc/passwd"],
            "COMMAND_NOT_STARTED",
            "cannot be executed",
            (None, None),
        ),
    ] {
        let request = command(&gpu, fence, argv);
        launch(client, &request).await;
        let failed = end(client, &request.workload_id).await;
        let failure = failed.failure.clone().unwrap();
        assert_eq!(
            (failed.state(), failure.reason.as_str()),
            (WorkloadState::Failed, reason)
        );
        assert!(failure.message.contains(says), "{failure:?}");
        assert_eq!((failed.exit_code, failed.signal), exit);
        assert_eq!(failed.end_cause(), EndCause::Unspecified);
        if exit.0 == Some(3) {
            assert_eq!(failure.cause, "its last words: last words");
        }
    }
    node.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_ended_when_asked_and_when_its_time_is_over() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let node = InProcess::start(config(data.path(), &scheduler.endpoint)).await;
    let gpu = scheduler.first_gpu().await;
    let client = &node.client;
    let asked = gated(&gpu, 1, "exit 0");
    let mut long = command(&gpu, 2, &["sleep", "1000"]);
    long.command.as_mut().unwrap().max_runtime = Some(encode_duration(Duration::from_millis(300)));
    let _leftovers = Leftovers(vec![asked.workload_id.clone(), long.workload_id.clone()]);

    launch(client, &asked).await;
    until(client, &asked.workload_id, WorkloadState::Running).await;
    let stop = pb::StopWorkloadRequest {
        workload_id: asked.workload_id.clone(),
        fence: 1,
    };
    let stopped = client.clone().stop_workload(stop).await.unwrap();
    assert_eq!(stopped.get_ref().state(), WorkloadState::Stopped);
    assert!(supervisors(&asked.workload_id).is_empty());

    launch(client, &long).await;
    let ended = end(client, &long.workload_id).await;
    assert_eq!(ended.state(), WorkloadState::Failed);
    assert_eq!(ended.end_cause(), EndCause::MaxRuntime);
    assert_eq!(ended.failure.unwrap().reason, "MAX_RUNTIME_REACHED");
    assert!(supervisors(&long.workload_id).is_empty());

    // One that begins anew on other blocks: its earlier life is over before.
    let earlier = gated(&gpu, 3, "exit 0");
    let mut other = gpu.clone();
    other.uuid = scheduler.registrations()[0].gpus[1].uuid.clone();
    let anew = pb::LaunchWorkloadRequest {
        workload_id: earlier.workload_id.clone(),
        ..gated(&other, 4, "exit 0")
    };
    let _leftovers = Leftovers(vec![earlier.workload_id.clone()]);
    launch(client, &earlier).await;
    until(client, &earlier.workload_id, WorkloadState::Running).await;
    launch(client, &anew).await;
    let running = until(client, &anew.workload_id, WorkloadState::Running).await;
    assert_eq!(running.fence, 4);
    let of = |fence: u64| supervisors(&format!("{}-{fence}", anew.workload_id));
    assert!(of(3).is_empty() && !of(4).is_empty());
    node.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_svc_learns_how_a_command_ended() {
    let machine = Machine::with_leases(Duration::from_secs(600)).await;
    let scheduler = &machine.scheduler;
    let node = machine.node_svc().await;
    let gpu = scheduler.registrations()[0].gpus[0].clone();
    // One ends while no node-svc runs, one goes on and is adopted.
    let away = gated(&gpu, 1, "exit 7");
    let mut other = gpu.clone();
    other.uuid = scheduler.registrations()[0].gpus[1].uuid.clone();
    let adopted = gated(&other, 2, "exit 8");
    let _leftovers = Leftovers(vec![away.workload_id.clone(), adopted.workload_id.clone()]);
    for request in [&away, &adopted] {
        launch(&node.client, request).await;
        until(&node.client, &request.workload_id, WorkloadState::Running).await;
    }
    node.kill().await;
    open_gate(machine.data.path(), &away);
    wait_until(GENEROUS, "the command to end", async || {
        supervisors(&away.workload_id).is_empty()
    })
    .await
    .unwrap();

    let node = machine.node_svc().await;
    let ended = end(&node.client, &away.workload_id).await;
    assert_eq!(ended.exit_code, Some(7), "{ended:?}");
    until(&node.client, &adopted.workload_id, WorkloadState::Running).await;
    open_gate(machine.data.path(), &adopted);
    let ended = end(&node.client, &adopted.workload_id).await;
    assert_eq!(ended.exit_code, Some(8), "{ended:?}");
    assert_eq!(ended.failure.unwrap().reason, "COMMAND_FAILED");
}
