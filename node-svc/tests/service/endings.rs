//! Ends of workloads that go another way than asked: blocks are free only when nothing runs.
//!
//! Needs root, cgroups, python3 with venv, and a Python index.

use cnlab_proto::node::v1::{self as pb, WorkloadState};
use cnlab_testkit::{ChildGuard, Signal, tied_command};

use crate::servers::{Bench, processes_of};
use crate::support::{
    Leftovers, OwnProcess, Scheduler, launch_request, shared_environments, supervisors, until,
};

/// A process in a group below a workload's own, where nothing that ends the workload sees it.
struct Survivor {
    group: std::path::PathBuf,
    process: ChildGuard,
}

impl Survivor {
    fn of(record: &serde_json::Value) -> Self {
        let group = record["handle"]["cgroups"][0]["path"]
            .as_str()
            .expect("this test makes a cgroup: run it as root on a machine with cgroups");
        let group = std::path::Path::new(group).join("survivor");
        std::fs::create_dir(&group).unwrap();
        let mut command = tied_command("sleep", Signal::SIGKILL);
        command.arg("infinity");
        let process = ChildGuard::spawn(command).unwrap();
        std::fs::write(group.join("cgroup.procs"), process.pid().to_string()).unwrap();
        Self { group, process }
    }

    async fn end(mut self) {
        self.process.kill();
        cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "an empty group", async || {
            std::fs::remove_dir(&self.group).is_ok()
        })
        .await
        .unwrap();
    }
}

impl Drop for Survivor {
    /// A failed test leaves no group behind.
    fn drop(&mut self) {
        self.process.kill();
        let _may_be_gone = std::fs::remove_dir(&self.group);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_notebook_whose_processes_survive_is_not_over() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    let other = bench.request(2);
    let _leftovers = Leftovers(vec![request.workload_id.clone(), other.workload_id.clone()]);
    bench.launch(&request).await;
    let record = bench
        .data
        .path()
        .join("nodes/local/workloads")
        .join(&request.workload_id)
        .join("1/record.json");
    let record = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let survivor = Survivor::of(&record);
    let client = &bench.node.client;
    processes_of(&request.workload_id)
        .into_iter()
        .find(|process| process.command.contains("start_jupyterlab.py"))
        .unwrap()
        .kill();
    let ending = until(client, &request.workload_id, WorkloadState::Stopping).await;
    assert_eq!(ending.detail, "waiting for processes that do not end");
    // Its blocks are not free: who gets them waits.
    client.clone().launch_workload(other.clone()).await.unwrap();
    let waiting = until(client, &other.workload_id, WorkloadState::Accepted).await;
    assert_eq!(waiting.fence, 2);

    survivor.end().await;
    until(client, &request.workload_id, WorkloadState::Stopped).await;
    until(client, &other.workload_id, WorkloadState::Ready).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_be_reached_again_is_ended_before_its_blocks_are_free() {
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
    node.kill().await;

    // Without its token the notebook lets nobody in, the node included.
    let life = data
        .path()
        .join("nodes/local/workloads")
        .join(&request.workload_id)
        .join("4");
    std::fs::remove_file(life.join("token")).unwrap();
    let node = OwnProcess::start(data.path(), &scheduler, &envs).await;
    let failed = until(&node.client, &request.workload_id, WorkloadState::Failed).await;
    assert_eq!(failed.failure.unwrap().reason, "NODE_STORAGE_FAILED");
    assert!(supervisors(&request.workload_id).is_empty());
    assert!(processes_of(&request.workload_id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_a_newer_fence_ends_the_older_life_and_refuses_its_late_launch() {
    let bench = Bench::new().await;
    let older = bench.request(5);
    let _leftovers = Leftovers(vec![older.workload_id.clone()]);
    bench.launch(&older).await;
    let mut late = older.clone();
    late.grant.as_mut().unwrap().fence = 6;
    let stop = pb::StopWorkloadRequest {
        workload_id: older.workload_id.clone(),
        fence: 6,
    };
    let mut client = bench.node.client.clone();
    for _ in 0..2 {
        let stopped = client.stop_workload(stop.clone()).await.unwrap();
        let stopped = stopped.into_inner();
        assert_eq!(
            (stopped.state(), stopped.fence),
            (WorkloadState::Stopped, 6)
        );
        assert!(processes_of(&older.workload_id).is_empty());
    }
    let launched = client.launch_workload(late.clone()).await.unwrap();
    let launched = launched.into_inner();
    assert_eq!(
        (launched.state(), launched.fence),
        (WorkloadState::Stopped, 6)
    );
    assert!(supervisors(&older.workload_id).is_empty());
    // The next grant is another matter.
    late.grant.as_mut().unwrap().fence = 7;
    bench.launch(&late).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_to_a_renewal_ends_no_life_that_it_did_not_name() {
    let bench = Bench::new().await;
    let mut request = bench.request(1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    bench.launch(&request).await;
    let scheduler = &bench.scheduler;
    scheduler.answer_later(true);
    scheduler.end(&request.workload_id);
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "a renewal", async || {
        scheduler.has_answered_end()
    })
    .await
    .unwrap();
    let named = scheduler.renewals().pop().unwrap().workloads;
    assert_eq!(named[0].fence, 1);
    // While the answer is on its way, a newer grant arrives.
    request.grant.as_mut().unwrap().fence = 2;
    let mut client = bench.node.client.clone();
    client.launch_workload(request.clone()).await.unwrap();
    scheduler.answer_later(false);
    let ready = until(
        &bench.node.client,
        &request.workload_id,
        WorkloadState::Ready,
    )
    .await;
    assert_eq!(ready.fence, 2);
    // An end that the next renewals bring is meant.
    scheduler.end(&request.workload_id);
    until(
        &bench.node.client,
        &request.workload_id,
        WorkloadState::Stopped,
    )
    .await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_as_long_as_what_runs() {
    let bench = Bench::new().await;
    let request = bench.request(1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let ready = bench.launch(&request).await;
    let scheduler = &bench.scheduler;
    let renewed = async |what: &str, done: fn(&[pb::Workload]) -> bool| {
        cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, what, async || {
            done(&scheduler.renewals().pop().unwrap().workloads)
        })
        .await
        .unwrap();
    };
    // What the scheduler took in once it is not told again.
    renewed("a short renewal", |said| {
        said.len() == 1 && said[0].state() == WorkloadState::Ready && said[0].installed.is_empty()
    })
    .await;
    bench.stop(&ready).await;
    renewed("an empty renewal", |said| said.is_empty()).await;
    bench.end().await;
}
