//! Real JupyterLab servers on a node, over real gRPC and through its notebook port.
//!
//! Needs root, python3 with venv, and a Python index.

use crate::support::{
    InProcess, Kernel, Leftovers, Notebook, OwnProcess, Scheduler, config, launch_request,
    shared_environments, supervisors, until,
};
use bytes::Bytes;
use cnlab_proto::node::v1::{self as pb, WorkloadState};
use cnlab_service::status::PublicError;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

/// A node with its scheduler.
pub(crate) struct Bench {
    pub(crate) data: tempfile::TempDir,
    pub(crate) scheduler: Scheduler,
    pub(crate) node: InProcess,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let scheduler = Scheduler::start().await;
        let node = InProcess::start(config(data.path(), &scheduler.endpoint)).await;
        cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "registration", async || {
            !scheduler.registrations().is_empty()
        })
        .await
        .unwrap();
        Self {
            data,
            scheduler,
            node,
        }
    }

    pub(crate) fn request(&self, fence: u64) -> pb::LaunchWorkloadRequest {
        launch_request(&self.scheduler.registrations()[0].gpus[0], fence)
    }

    pub(crate) async fn launch(&self, request: &pb::LaunchWorkloadRequest) -> pb::Workload {
        let accepted = self
            .node
            .client
            .clone()
            .launch_workload(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(accepted.workload_id, request.workload_id);
        until(
            &self.node.client,
            &request.workload_id,
            WorkloadState::Ready,
        )
        .await
    }

    pub(crate) async fn stop(&self, workload: &pb::Workload) -> pb::Workload {
        let request = pb::StopWorkloadRequest {
            workload_id: workload.workload_id.clone(),
            fence: workload.fence,
        };
        self.node
            .client
            .clone()
            .stop_workload(request)
            .await
            .unwrap()
            .into_inner()
    }

    pub(crate) async fn end(self) {
        self.node.running.stop().await;
    }
}

/// The processes that belong to a workload, by the environment they were started with.
pub(crate) fn processes_of(workload_id: &str) -> Vec<cnlab_testkit::ProcessEntry> {
    cnlab_testkit::marked("CNLAB_SERVER_ID", workload_id).unwrap()
}

/// Whether the grammar of addresses is there before an address is checked, what a check says of
/// a good and of a bad one, and whether the grammar is there afterwards.
const DEFERRED: &str = "
import sys
from importlib.machinery import SourceFileLoader
SourceFileLoader('start', '/run/cnlab/start_jupyterlab.py').load_module().check_addresses_when_asked()
from jsonschema import FormatChecker
there = lambda: 'rfc3987_syntax.syntax_helpers' in sys.modules
before = there()
checked = [FormatChecker().conforms(text, 'iri') for text in ('http://\u{e9}.example/', 'http://<')]
print([before, checked, there()])
";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_comes_up_computes_and_leaves_nothing_but_its_files() {
    let bench = Bench::new().await;
    let request = bench.request(5);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let ready = bench.launch(&request).await;

    assert!(ready.simulated_gpu);
    assert!(ready.installed.contains(&"jupyterlab==4.6.6".to_owned()));
    assert!(ready.not_installed[0].starts_with("torch==2.4.0"));
    assert!(ready.enforced.iter().any(|line| line.starts_with("files:")));
    let not_enforced = ready.not_enforced.join("\n");
    for boundary in ["GPU slice: the GPU is simulated", "storage:", "network:"] {
        assert!(not_enforced.contains(boundary), "{not_enforced}");
    }

    let notebook = bench.node.notebook(&ready);
    let (status, page) = notebook.get("/lab").await;
    assert_eq!(status, StatusCode::OK);
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(page.contains("JupyterLab"));
    // Nobody looks whether a page in a read-only folder should be built anew.
    assert!(page.contains("\"buildCheck\": false"), "{page}");
    let mut kernel = notebook.kernel().await;
    assert_eq!(kernel.run("1+1").await, "2");
    assert_eq!(kernel.run(DEFERRED).await, "[False, [True, False], True]");
    let log = bench
        .data
        .path()
        .join("nodes/local/workloads")
        .join(&request.workload_id)
        .join("5/log");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("left out"), "{log}");
    assert_eq!(
        kernel
            .run("import os, socket; print(os.getcwd(), os.path.expanduser('~'), socket.gethostname())")
            .await,
        "/workspace /workspace first-experiment"
    );
    // A restart makes a new process on the same Unix sockets.
    notebook
        .json(
            Method::POST,
            &format!("/api/kernels/{}/restart", kernel.id),
            &json!({}),
        )
        .await;
    let mut kernel = notebook.connect_anew(kernel).await;
    kernel.run("open('kept.txt', 'w').write('kept')").await;

    let stopped = bench.stop(&ready).await;
    assert_eq!(stopped.state(), WorkloadState::Stopped);
    assert!(processes_of(&request.workload_id).is_empty());
    assert!(supervisors(&request.workload_id).is_empty());
    assert_eq!(notebook.refusal("/lab").await.0, StatusCode::GONE);
    // The same stop and the same launch again are answered, not carried out.
    assert_eq!(bench.stop(&ready).await.state(), WorkloadState::Stopped);
    let mut client = bench.node.client.clone();
    let again = client.launch_workload(request.clone()).await.unwrap();
    assert_eq!(again.into_inner().state(), WorkloadState::Stopped);

    let mut next = request.clone();
    next.grant.as_mut().unwrap().fence = 6;
    let ready = bench.launch(&next).await;
    assert!(ready.environment_was_ready);
    let mut kernel = bench.node.notebook(&ready).kernel().await;
    assert_eq!(kernel.run("open('kept.txt').read()").await, "'kept'");

    // Only the present life is kept.
    let lives = bench
        .data
        .path()
        .join("nodes/local/workloads")
        .join(&request.workload_id);
    assert_eq!(std::fs::read_dir(lives).unwrap().count(), 1);

    let states = bench.scheduler.states(&request.workload_id);
    let last_of = |wanted| states.iter().rposition(|state| *state == wanted).unwrap();
    assert!(last_of(WorkloadState::Stopped) < last_of(WorkloadState::Ready));
    bench.end().await;
    assert!(processes_of(&request.workload_id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_any_size_terminals_and_logs_pass() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let ready = bench.launch(&request).await;
    let notebook = bench.node.notebook(&ready);

    let mut kernel = notebook.kernel().await;
    let size = 96 << 20;
    kernel
        .run(&format!(
            "open('large.bin', 'wb').write(bytes(range(256)) * ({size} // 256))"
        ))
        .await;
    let response = notebook
        .send(Method::GET, "/files/large.bin", Bytes::new())
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let mut received = 0_usize;
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.unwrap().data_ref() {
            received += data.len();
        }
    }
    assert_eq!(received, size);
    let text = "x".repeat(20 << 20);
    notebook
        .json(
            Method::PUT,
            "/api/contents/up.txt",
            &json!({"type": "file", "format": "text", "content": text}),
        )
        .await;
    assert_eq!(
        kernel.run("import os; os.path.getsize('up.txt')").await,
        (20 << 20).to_string()
    );

    let terminal = notebook
        .json(Method::POST, "/api/terminals", &json!({}))
        .await;
    let path = format!(
        "/terminals/websocket/{}",
        terminal["name"].as_str().unwrap()
    );
    let mut socket = notebook.socket(&path, None).await;
    socket
        .send(Message::text(
            json!(["stdin", "echo $((20+22)) $USER\r"]).to_string(),
        ))
        .await
        .unwrap();
    let mut shown = String::new();
    while !shown.contains("42 cnlab") {
        let next = tokio::time::timeout(cnlab_testkit::GENEROUS, socket.next());
        let message = next.await.expect("the terminal answers").unwrap().unwrap();
        if let Message::Text(text) = message {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            if value[0] == "stdout" {
                shown.push_str(value[1].as_str().unwrap());
            }
        }
    }

    let token = token_in(&mut kernel).await;
    let mut client = bench.node.client.clone();
    let logs = |follow, tail_lines| pb::StreamLogsRequest {
        workload_id: request.workload_id.clone(),
        follow,
        tail_lines,
    };
    let mut all = Vec::new();
    let mut stream = client
        .stream_logs(logs(false, 0))
        .await
        .unwrap()
        .into_inner();
    while let Some(data) = stream.message().await.unwrap() {
        all.extend(data.data);
    }
    let all = String::from_utf8(all).unwrap();
    assert!(all.contains("Jupyter Server"), "{all}");
    assert!(!all.contains(&token), "the token is in the log");
    let mut last = client
        .stream_logs(logs(true, 1))
        .await
        .unwrap()
        .into_inner();
    let line = last.message().await.unwrap().unwrap().data;
    assert_eq!(
        String::from_utf8(line).unwrap().trim_end().lines().count(),
        1
    );

    for process in processes_of(&request.workload_id) {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!process.command.contains(&token), "{}", process.command);
        assert!(!String::from_utf8_lossy(&environ).contains(&token));
    }
    bench.stop(&ready).await;
    // Following ends with the workload.
    while last.message().await.unwrap().is_some() {}
    bench.end().await;
}

/// The notebook's own token, as its owner's code can read it.
async fn token_in(kernel: &mut Kernel) -> String {
    let token = kernel
        .run("import json; print(json.load(open('/run/cnlab/notebook.json'))['IdentityProvider']['token'])")
        .await;
    assert_eq!(token.len(), 64);
    token
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_see_nothing_of_each_other() {
    let bench = Bench::new().await;
    let one = bench.request(1);
    let mut two = bench.request(2);
    let slice = &mut two.grant.as_mut().unwrap().slices[0];
    slice.blocks[0].first = 25;
    let _leftovers = Leftovers(vec![one.workload_id.clone(), two.workload_id.clone()]);
    let (ready_one, ready_two) = tokio::join!(bench.launch(&one), bench.launch(&two));
    let mut first = bench.node.notebook(&ready_one).kernel().await;
    let mut second = bench.node.notebook(&ready_two).kernel().await;
    first
        .run("open('/workspace/secret.txt', 'w').write('of one')")
        .await;

    let uid = first.run("import os; os.getuid()").await;
    assert_ne!(second.run("import os; os.getuid()").await, uid);
    let volume = bench.data.path().join("volumes").join(&one.volume_id);
    let envs = shared_environments();
    let look = format!(
        "import os, subprocess\n\
         def find(*a): return subprocess.run(['find', *a], capture_output=True, text=True).stdout\n\
         print(os.path.exists({volume:?}), find('/', '-xdev', '-name', 'secret.txt').strip() == '',\n\
               [n for n in os.listdir('/workspace') if n[0] != '.'], os.access({envs:?}, os.W_OK),\n\
               sorted(p for p in os.listdir('/proc') if p.isdigit() and\n\
                      os.stat('/proc/' + p).st_uid == {uid}))"
    );
    assert_eq!(second.run(&look).await, "False True [] False []");
    // One's processes cannot be signalled either, whatever number is tried.
    let kill = format!(
        "import os\nhit = []\nfor pid in range(1, 40000):\n    try:\n        os.kill(pid, 0); hit.append(pid)\n    except OSError: pass\nprint(all(os.stat('/proc/%d' % p).st_uid != {uid} for p in hit))"
    );
    assert_eq!(second.run(&kill).await, "True");
    // What a user installs goes into the volume; the environment itself stays as it is.
    let write = "import sys\ntry:\n    open(sys.prefix + '/x', 'w'); print('written')\nexcept OSError: print('refused')";
    assert_eq!(second.run(write).await, "refused");
    let install = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', '--help'], check=True, capture_output=True).returncode";
    assert_eq!(second.run(install).await, "0");
    assert_eq!(
        second
            .run("import site; site.ENABLE_USER_SITE, site.USER_BASE")
            .await,
        "(True, '/workspace/.local')"
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_notebook_is_reported_and_its_slice_is_free() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    bench.launch(&request).await;
    let victim = processes_of(&request.workload_id)
        .into_iter()
        .find(|process| process.command.contains("start_jupyterlab.py"))
        .unwrap();
    victim.kill();
    let failed = until(
        &bench.node.client,
        &request.workload_id,
        WorkloadState::Failed,
    )
    .await;
    let failure = failed.failure.unwrap();
    assert_eq!(failure.reason, "NOTEBOOK_ENDED");
    assert!(failure.cause.contains("SIGKILL"), "{}", failure.cause);
    assert!(!failure.try_this.is_empty());
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "the report", async || {
        bench.scheduler.states(&request.workload_id).last() == Some(&WorkloadState::Failed)
    })
    .await
    .unwrap();
    assert!(processes_of(&request.workload_id).is_empty());
    // Somebody else may have the blocks now.
    let other = bench.request(2);
    let _leftovers = Leftovers(vec![other.workload_id.clone()]);
    bench.launch(&other).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_fence_takes_the_blocks_and_an_older_one_is_refused() {
    let bench = Bench::new().await;
    let older = bench.request(7);
    let newer = bench.request(8);
    let _leftovers = Leftovers(vec![older.workload_id.clone(), newer.workload_id.clone()]);
    let first = bench.launch(&older).await;
    let second = bench.launch(&newer).await;
    assert!(
        processes_of(&older.workload_id).is_empty(),
        "two on the same blocks"
    );
    until(
        &bench.node.client,
        &older.workload_id,
        WorkloadState::Stopped,
    )
    .await;
    let old = bench.node.notebook(&first);
    assert_eq!(
        old.refusal("/lab").await,
        (StatusCode::GONE, "FENCE_MISMATCH".to_owned())
    );

    let mut client = bench.node.client.clone();
    let late = bench.request(6);
    let refused = client.launch_workload(late).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert_eq!(PublicError::from_status(&refused).reason, "FENCE_TOO_LOW");
    let stop = pb::StopWorkloadRequest {
        workload_id: newer.workload_id.clone(),
        fence: 7,
    };
    let refused = client.stop_workload(stop).await.unwrap_err();
    assert_eq!(PublicError::from_status(&refused).reason, "FENCE_TOO_LOW");

    let notebook = bench.node.notebook(&second);
    for (change, status, reason) in [
        ("key", StatusCode::UNAUTHORIZED, "INTERNAL_KEY_WRONG"),
        ("id", StatusCode::NOT_FOUND, "WORKLOAD_NOT_FOUND"),
        ("no id", StatusCode::BAD_REQUEST, "INVALID_FIELD"),
        ("fence", StatusCode::GONE, "FENCE_MISMATCH"),
    ] {
        let mut wrong = notebook.clone();
        match change {
            "key" => wrong.key = "x".repeat(40),
            "id" => wrong.workload_id = "srv_00000000000000000000000007".to_owned(),
            "no id" => wrong.workload_id = "../../x".to_owned(),
            _ => wrong.fence += 1,
        }
        assert_eq!(wrong.refusal("/lab").await, (status, reason.to_owned()));
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_can_end_a_workload_and_then_remove_its_volume() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    bench.launch(&request).await;
    let remove = pb::RemoveVolumeRequest {
        volume_id: request.volume_id.clone(),
    };
    let mut client = bench.node.client.clone();
    let refused = client.remove_volume(remove.clone()).await.unwrap_err();
    assert_eq!(PublicError::from_status(&refused).reason, "VOLUME_IN_USE");

    bench.scheduler.forget();
    bench.scheduler.end(&request.workload_id);
    until(
        &bench.node.client,
        &request.workload_id,
        WorkloadState::Stopped,
    )
    .await;
    cnlab_testkit::wait_until(
        cnlab_testkit::GENEROUS,
        "a second registration",
        async || bench.scheduler.registrations().len() > 1,
    )
    .await
    .unwrap();
    for _ in 0..2 {
        client.remove_volume(remove.clone()).await.unwrap();
    }
    let volumes = bench.data.path().join("volumes");
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0);
    let gone = client
        .get_workload(pb::GetWorkloadRequest {
            workload_id: request.workload_id.clone(),
        })
        .await
        .unwrap_err();
    assert_eq!(PublicError::from_status(&gone).reason, "WORKLOAD_NOT_FOUND");
    // A stop that overtakes its launch is remembered.
    let late = bench.request(9);
    let stop = pb::StopWorkloadRequest {
        workload_id: late.workload_id.clone(),
        fence: 9,
    };
    let stopped = client.stop_workload(stop).await.unwrap().into_inner();
    assert_eq!(stopped.state(), WorkloadState::Stopped);
    let launched = client.launch_workload(late).await.unwrap().into_inner();
    assert_eq!(launched.state(), WorkloadState::Stopped);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_survives_the_death_of_its_node() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let envs = shared_environments();
    let node = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let gpu = scheduler.registrations()[0].gpus[0].clone();
    let request = launch_request(&gpu, 4);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    node.client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
    let ready = until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    let mut kernel = Notebook::new(node.addr, &ready).kernel().await;
    kernel.run("answer = 41").await;
    let id = kernel.id.clone();

    node.kill().await;
    assert!(!supervisors(&request.workload_id).is_empty());
    let second = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let found = until(&second.client, &request.workload_id, WorkloadState::Ready).await;
    assert_eq!(found.fence, 4);
    assert!(found.sequence > ready.sequence);
    assert_eq!(found.installed, ready.installed);
    assert_eq!(
        scheduler.registrations()[1].node_id,
        scheduler.registrations()[0].node_id
    );
    let mut kernel = Notebook::new(second.addr, &found).connect(&id).await;
    assert_eq!(kernel.run("answer + 1").await, "42");
    // Its fence is still known.
    let refused = second
        .client
        .clone()
        .launch_workload(launch_request(&gpu, 3))
        .await
        .unwrap_err();
    assert_eq!(PublicError::from_status(&refused).reason, "FENCE_TOO_LOW");

    second.kill().await;
    // While no node looks, the notebook dies; the next node says so.
    processes_of(&request.workload_id)
        .into_iter()
        .find(|process| process.command.contains("start_jupyterlab.py"))
        .unwrap()
        .kill();
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "the end", async || {
        supervisors(&request.workload_id).is_empty()
    })
    .await
    .unwrap();
    let third = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let failed = until(&third.client, &request.workload_id, WorkloadState::Failed).await;
    let failure = failed.failure.unwrap();
    assert_eq!(failure.reason, "NOTEBOOK_ENDED");
    assert!(failure.cause.contains("SIGKILL"), "{}", failure.cause);
}

/// Changes the record of a workload while no node runs.
fn change_record(
    data: &std::path::Path,
    request: &pb::LaunchWorkloadRequest,
    change: impl Fn(&str) -> String,
) {
    let fence = request.grant.as_ref().unwrap().fence;
    let path = data
        .join("nodes/local/workloads")
        .join(&request.workload_id)
        .join(fence.to_string())
        .join("record.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, change(&text)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_in_the_middle_of_a_start_never_runs_two() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let envs = shared_environments();
    let node = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let gpu = scheduler.registrations()[0].gpus[0].clone();
    let request = launch_request(&gpu, 4);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    node.client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
    until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    let first = supervisors(&request.workload_id);
    node.kill().await;

    // As if it had been killed after the start and before the record of it.
    change_record(data.path(), &request, |text| {
        let mut record: serde_json::Value = serde_json::from_str(text).unwrap();
        record["phase"] = json!("starting");
        record["handle"] = json!(null);
        record.to_string()
    });
    let node = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let ready = until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    assert_eq!(ready.fence, 4);
    let second = supervisors(&request.workload_id);
    assert!(
        first.iter().all(|pid| !second.contains(pid)),
        "{first:?} {second:?}"
    );
    node.kill().await;

    // A record that cannot be read: what it ran ends, its blocks are free, the fence stays.
    change_record(data.path(), &request, |_| "{".to_owned());
    let node = OwnProcess::start(data.path(), &scheduler, &envs).await;
    assert!(supervisors(&request.workload_id).is_empty());
    let mut client = node.client.clone();
    let refused = client.launch_workload(request.clone()).await.unwrap_err();
    assert_eq!(PublicError::from_status(&refused).reason, "FENCE_TOO_LOW");
    let mut next = request.clone();
    next.grant.as_mut().unwrap().fence = 5;
    client.launch_workload(next).await.unwrap();
    until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    let stop = pb::StopWorkloadRequest {
        workload_id: request.workload_id.clone(),
        fence: 5,
    };
    client.stop_workload(stop).await.unwrap();
    assert!(processes_of(&request.workload_id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_updated_keeps_its_servers() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let mut settings = config(data.path(), &scheduler.endpoint);
    settings.process.at_shutdown = node_svc::config::AtShutdown::Keep;
    let node = InProcess::start(settings.clone()).await;
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "registration", async || {
        !scheduler.registrations().is_empty()
    })
    .await
    .unwrap();
    let request = launch_request(&scheduler.registrations()[0].gpus[0], 1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    node.client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
    until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    let before = supervisors(&request.workload_id);
    node.running.stop().await;
    assert_eq!(supervisors(&request.workload_id), before);

    settings.process.at_shutdown = node_svc::config::AtShutdown::End;
    let node = InProcess::start(settings).await;
    let found = until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    assert_eq!(node.notebook(&found).get("/lab").await.0, StatusCode::OK);
    node.running.stop().await;
    assert!(supervisors(&request.workload_id).is_empty());
}
