//! Starts and launches that are refused, and a machine that cannot isolate.

use cnlab_proto::node::v1::{self as pb, WorkloadState};
use cnlab_service::{Runtime, Service as _, status::PublicError};
use node_svc::{
    NodeSvc,
    config::{GpuSource, IsolationChoice},
};

use crate::environments::SmallDisk;
use crate::support::{InProcess, Leftovers, Notebook, Scheduler, config, launch_request, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_on_the_same_folder_and_a_damaged_book_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let settings = config(data.path(), "http://127.0.0.1:9");
    let first = NodeSvc::build(settings.clone(), Runtime::system())
        .await
        .unwrap();
    let second = NodeSvc::build(settings.clone(), Runtime::system())
        .await
        .unwrap_err();
    assert!(second.to_string().contains("another node-svc"), "{second}");
    assert!(second.advice().is_some());
    drop(first);

    let book = data.path().join("nodes/local/book.json");
    std::fs::write(&book, "{\"gpus\":").unwrap();
    // The first one's lock goes with its last task.
    let error = cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "the lock", async || {
        let error = NodeSvc::build(settings.clone(), Runtime::system())
            .await
            .unwrap_err();
        (!error.to_string().contains("another node-svc")).then_some(error)
    })
    .await
    .unwrap();
    assert!(error.to_string().contains("GPU book"), "{error}");
    assert_eq!(
        std::fs::read_to_string(&book).unwrap(),
        "{\"gpus\":",
        "kept for repair"
    );

    let mut forced = config(&data.path().join("other"), "http://127.0.0.1:9");
    forced.gpu.source = GpuSource::Nvml;
    match NodeSvc::build(forced, Runtime::system()).await {
        Ok(node) => assert!(!node.is_simulated()),
        Err(error) => assert!(error.to_string().contains("NVIDIA"), "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn launches_that_make_no_sense_leave_nothing() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    let node = InProcess::start(config(data.path(), &scheduler.endpoint)).await;
    let gpu = cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "registration", async || {
        scheduler
            .registrations()
            .first()
            .map(|node| node.gpus[0].clone())
    })
    .await
    .unwrap();
    type Change = fn(&mut pb::LaunchWorkloadRequest);
    let cases: [(&str, Change); 7] = [
        ("GPU_NOT_FOUND", |r| slice(r).gpu_uuid = "GPU-x".to_owned()),
        ("GRANT_INVALID", |r| slice(r).blocks.clear()),
        ("GRANT_INVALID", |r| {
            let again = slice(r).clone();
            r.grant.as_mut().unwrap().slices.push(again);
        }),
        ("INVALID_FIELD", |r| {
            r.grant.as_mut().unwrap().slices.clear();
        }),
        ("GPU_MEMORY_EXHAUSTED", |r| slice(r).vram_bytes = u64::MAX),
        ("INVALID_FIELD", |r| slice(r).blocks[0].count = 101),
        ("INVALID_FIELD", |r| r.display_name = "x".repeat(10_240)),
    ];
    for (reason, change) in cases {
        let mut request = launch_request(&gpu, 1);
        change(&mut request);
        let refused = node
            .client
            .clone()
            .launch_workload(request)
            .await
            .unwrap_err();
        assert_eq!(PublicError::from_status(&refused).reason, reason);
    }
    let list = node
        .client
        .clone()
        .list_workloads(pb::ListWorkloadsRequest {})
        .await
        .unwrap();
    assert!(list.into_inner().workloads.is_empty());
    assert!(!data.path().join("nodes/local/workloads").exists());
    // The wrong key reaches nothing.
    let stranger = cnlab_service::Secret::new("another-key-of-thirty-two-characters".to_owned());
    let channel = cnlab_service::channel::connect(
        &node.running.endpoint(),
        &stranger,
        cnlab_testkit::GENEROUS,
    )
    .unwrap();
    let mut client = pb::node_service_client::NodeServiceClient::new(channel);
    let refused = client
        .list_workloads(pb::ListWorkloadsRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    node.running.stop().await;
}

fn slice(request: &mut pb::LaunchWorkloadRequest) -> &mut cnlab_proto::model::v1::Slice {
    &mut request.grant.as_mut().unwrap().slices[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn without_namespaces_a_server_runs_and_says_what_is_missing() {
    let data = tempfile::tempdir().unwrap();
    // Deep enough that a socket inside could not be bound by its own name.
    let deep = data.path().join("x".repeat(80));
    let scheduler = Scheduler::start().await;
    let mut settings = config(&deep, &scheduler.endpoint);
    settings.process.isolation = IsolationChoice::Process;
    // Nor can it reach a Python in somebody's home.
    settings.environment.folder = None;
    settings.environment.python = "/usr/bin/python3".to_owned();
    // The workload's user must reach its volume by the machine's own paths.
    open_to_all(data.path());
    let node = InProcess::start(settings).await;
    let gpu = cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "registration", async || {
        scheduler
            .registrations()
            .first()
            .map(|node| node.gpus[0].clone())
    })
    .await
    .unwrap();
    let request = launch_request(&gpu, 1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    node.client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
    let ready = until(&node.client, &request.workload_id, WorkloadState::Ready).await;
    let said = ready.not_enforced.join("\n");
    for boundary in ["files:", "processes:", "the configuration asks for none"] {
        assert!(said.contains(boundary), "{said}");
    }
    assert!(!ready.enforced.iter().any(|line| line.starts_with("files:")));
    let mut kernel = Notebook::new(node.running.addr(), &ready).kernel().await;
    let volume = deep.join("volumes").join(&request.volume_id);
    assert_eq!(
        kernel.run("import os; print(os.getcwd())").await,
        volume.to_str().unwrap()
    );
    node.running.stop().await;
    let links = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let left = links
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .contains(&request.workload_id)
        })
        .count();
    assert_eq!(left, 0, "a link was left in the temporary folder");
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_on_a_full_disk_is_refused_and_succeeds_once_there_is_space() {
    let disk = SmallDisk::new("1m");
    let scheduler = Scheduler::start().await;
    let node = InProcess::start(config(disk.path(), &scheduler.endpoint)).await;
    let gpu = cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "registration", async || {
        scheduler
            .registrations()
            .first()
            .map(|node| node.gpus[0].clone())
    })
    .await
    .unwrap();
    let filler = disk.path().join("filler");
    let written = std::fs::write(&filler, vec![0; 2 << 20]).unwrap_err();
    assert_eq!(written.kind(), std::io::ErrorKind::StorageFull);

    let request = launch_request(&gpu, 1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let mut client = node.client.clone();
    let refused = client.launch_workload(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    let refused = PublicError::from_status(&refused);
    assert_eq!(refused.reason, "DISK_FULL");
    assert!(refused.try_this.unwrap().contains("free space"));
    let list = client
        .list_workloads(pb::ListWorkloadsRequest {})
        .await
        .unwrap();
    assert!(list.into_inner().workloads.is_empty());

    std::fs::remove_file(&filler).unwrap();
    client.launch_workload(request.clone()).await.unwrap();
    let stop = pb::StopWorkloadRequest {
        workload_id: request.workload_id.clone(),
        fence: 1,
    };
    let stopped = client.stop_workload(stop).await.unwrap().into_inner();
    assert_eq!(stopped.state(), WorkloadState::Stopped);
    node.running.stop().await;
    drop(node.client);
}
