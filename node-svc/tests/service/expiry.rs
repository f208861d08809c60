//! Grants of runs that expire: whatever becomes of node-svc, a run is gone before the
//! scheduler may hand it out again.
//!
//! Needs root, cgroups, python3 with venv, and a Python index.

use std::{path::Path, time::Duration};

use cnlab_proto::{
    convert::encode_duration,
    model::v1 as model,
    node::v1::{self as pb, EndCause, WorkloadState},
};
use cnlab_testkit::{GENEROUS, Signal, wait_until};
use node_sandbox::Boottime;

use crate::{
    runs::{command, end, gated, launch},
    support::{
        InProcess, Leftovers, Machine, Scheduler, config, launch_request, supervisors, until,
    },
};

/// A run that notes in its volume, all the time, that it lives, and does not end when asked.
fn noting(gpu: &model::Gpu, fence: u64) -> pb::LaunchWorkloadRequest {
    let script =
        "trap '' TERM; while :; do cat /proc/uptime > now && mv now alive; sleep 0.02; done";
    command(gpu, fence, &["sh", "-c", script])
}

/// When it was seen alive last, by its own word.
fn alive_at(data: &Path, request: &pb::LaunchWorkloadRequest) -> Option<Boottime> {
    let note = data.join("volumes").join(&request.volume_id).join("alive");
    let text = std::fs::read_to_string(note).ok()?;
    let seconds: f64 = text.split_once(' ')?.0.parse().ok()?;
    Some(Boottime::after_boot(Duration::from_secs_f64(seconds)))
}

async fn alive(data: &Path, request: &pb::LaunchWorkloadRequest, after: Boottime) {
    wait_until(GENEROUS, "the run to go on", async || {
        alive_at(data, request).is_some_and(|at| at > after)
    })
    .await
    .unwrap();
}

async fn gone(request: &pb::LaunchWorkloadRequest) {
    wait_until(GENEROUS, "the run to be gone", async || {
        supervisors(&request.workload_id).is_empty()
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_when_its_grant_cannot_be_renewed_and_a_server_does_not() {
    let data = tempfile::tempdir().unwrap();
    let scheduler = Scheduler::start().await;
    scheduler.lease(Duration::from_secs(2));
    let node = InProcess::start(config(data.path(), &scheduler.endpoint)).await;
    let gpu = scheduler.first_gpu().await;
    let client = &node.client;
    // It does not end when it is asked to.
    let run = gated(&gpu, 1, "exit 0");
    let mut other = gpu.clone();
    other.uuid = scheduler.registrations()[0].gpus[1].uuid.clone();
    let server = launch_request(&other, 2);
    let _leftovers = Leftovers(vec![run.workload_id.clone(), server.workload_id.clone()]);
    launch(client, &server).await;
    until(client, &server.workload_id, WorkloadState::Ready).await;
    launch(client, &run).await;
    until(client, &run.workload_id, WorkloadState::Running).await;

    scheduler.answer_later(true);
    let ended = end(client, &run.workload_id).await;
    assert_eq!(ended.end_cause(), EndCause::GrantExpired, "{ended:?}");
    assert_eq!(ended.failure.unwrap().reason, "GRANT_EXPIRED");
    assert!(supervisors(&run.workload_id).is_empty());
    until(client, &server.workload_id, WorkloadState::Ready).await;
    scheduler.answer_later(false);
    node.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_gone_in_time_when_its_node_svc_is_killed_or_hangs() {
    const TTL: Duration = Duration::from_secs(6);
    let machine = Machine::with_leases(TTL).await;
    let scheduler = &machine.scheduler;
    let mut node = machine.node_svc().await;
    let gpu = scheduler.first_gpu().await;
    for (fence, signal) in [(1, Signal::SIGSTOP), (2, Signal::SIGKILL)] {
        let run = noting(&gpu, fence);
        let _leftovers = Leftovers(vec![run.workload_id.clone()]);
        launch(&node.client, &run).await;
        until(&node.client, &run.workload_id, WorkloadState::Running).await;
        alive(
            machine.data.path(),
            &run,
            Boottime::after_boot(Duration::ZERO),
        )
        .await;
        node.child.signal(signal).unwrap();
        gone(&run).await;
        let (seen, renewed) = (alive_at(machine.data.path(), &run), scheduler.renewed_at());
        let may_go_elsewhere = renewed.plus(TTL);
        assert!(
            seen.unwrap() < may_go_elsewhere,
            "{seen:?}, heard at {renewed:?}"
        );

        // Whoever comes next, or back, knows why.
        if signal == Signal::SIGSTOP {
            node.child.signal(Signal::SIGCONT).unwrap();
        } else {
            node.kill().await;
            node = machine.node_svc().await;
        }
        let ended = end(&node.client, &run.workload_id).await;
        assert_eq!(ended.state(), WorkloadState::Failed, "{ended:?}");
        assert_eq!(ended.end_cause(), EndCause::GrantExpired, "{ended:?}");
        assert_eq!(ended.failure.unwrap().reason, "GRANT_EXPIRED");
        wait_until(GENEROUS, "the end to be reported", async || {
            scheduler.states(&run.workload_id).last() == Some(&WorkloadState::Failed)
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_when_the_next_node_svc_renews_it_in_time() {
    const TTL: Duration = Duration::from_secs(15);
    let machine = Machine::with_leases(TTL).await;
    let scheduler = &machine.scheduler;
    let node = machine.node_svc().await;
    let gpu = scheduler.first_gpu().await;
    let run = noting(&gpu, 1);
    let _leftovers = Leftovers(vec![run.workload_id.clone()]);
    launch(&node.client, &run).await;
    until(&node.client, &run.workload_id, WorkloadState::Running).await;
    node.kill().await;
    let of_the_first = scheduler.renewed_at().plus(TTL);

    let node = machine.node_svc().await;
    until(&node.client, &run.workload_id, WorkloadState::Running).await;
    alive(machine.data.path(), &run, of_the_first).await;
    until(&node.client, &run.workload_id, WorkloadState::Running).await;
    // It ends as asked, not for a lease.
    scheduler.end(&run.workload_id);
    let ended = end(&node.client, &run.workload_id).await;
    assert_eq!(ended.state(), WorkloadState::Stopped, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_time_of_a_run_ends_without_a_node_svc() {
    let machine = Machine::with_leases(Duration::from_secs(600)).await;
    let scheduler = &machine.scheduler;
    let node = machine.node_svc().await;
    let gpu = scheduler.first_gpu().await;
    let mut run = command(&gpu, 1, &["sleep", "1000"]);
    let longest = encode_duration(Duration::from_secs(5));
    run.command.as_mut().unwrap().max_runtime = Some(longest);
    let _leftovers = Leftovers(vec![run.workload_id.clone()]);
    launch(&node.client, &run).await;
    until(&node.client, &run.workload_id, WorkloadState::Running).await;
    node.kill().await;
    gone(&run).await;

    let node = machine.node_svc().await;
    let ended = end(&node.client, &run.workload_id).await;
    assert_eq!(ended.end_cause(), EndCause::MaxRuntime, "{ended:?}");
    assert_eq!(ended.failure.unwrap().reason, "MAX_RUNTIME_REACHED");
}
