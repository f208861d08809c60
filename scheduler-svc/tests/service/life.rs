//! A server from its creation to its deletion.

use cnlab_model::ErrorKind;
use cnlab_proto::{
    model::v1::{Failure, IsolationClass},
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, ServerPhase, ServerState},
};
use cnlab_service::status;
use cnlab_testkit::{GENEROUS, wait_for, wait_until};
use tonic::Status;

use crate::{
    on_both,
    world::{Database, World, ada, ask, blocks, by, fence, launched},
};

async fn quickstart(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();

    let created = world.create(&me, ask("first-experiment")).await.unwrap();
    assert_eq!(created.state(), ServerState::Provisioning);
    assert_eq!(created.phase(), ServerPhase::SendingToNode);
    assert_eq!(created.project, "ada/default");
    assert_eq!(created.node_name, "gpu-box");
    assert_eq!(
        created.image_reference,
        "pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime"
    );
    assert_eq!(
        created.url,
        format!("http://nb.localhost:8080/{}", created.id)
    );
    // Nothing was measured yet: what the catalogue says.
    assert_eq!(created.eta.unwrap().seconds, 49);
    assert_eq!(blocks(&created).to_string(), "0-24");

    let mut watch = world.watch(&me, "first-experiment").await;
    launched(&node, &created.id).await;
    let launch = node.state().launches[0].clone();
    assert_eq!(launch.grant, created.grant);
    assert_eq!(launch.display_name, "first-experiment");
    assert_eq!(launch.volume_id, created.volume_id);
    assert_eq!(launch.image.unwrap().packages[0], "jupyterlab==4.6.6");
    // Ceilings of the profile, cut to what the machine has.
    assert_eq!((launch.cpu_milli, launch.memory_bytes), (2000, 8 << 30));

    for (state, detail) in [
        (WorkloadState::BuildingEnvironment, "installing jupyterlab"),
        (WorkloadState::Starting, "starting jupyterlab"),
        (WorkloadState::WaitingForPage, ""),
        (WorkloadState::Ready, ""),
    ] {
        world.moves(&node, &created.id, state, detail).await;
    }
    let mut seen = Vec::new();
    let mut version = 0;
    while seen.last() != Some(&(ServerState::Ready, ServerPhase::Unspecified)) {
        let next = watch.message().await.unwrap().unwrap();
        assert!(next.version > version, "versions only grow");
        version = next.version;
        if next.phase() == ServerPhase::BuildingEnvironment {
            assert_eq!(next.phase_detail, "installing jupyterlab");
        }
        seen.push((next.state(), next.phase()));
    }
    seen.dedup();
    let provisioning = |phase| (ServerState::Provisioning, phase);
    assert_eq!(
        seen,
        [
            provisioning(ServerPhase::SendingToNode),
            provisioning(ServerPhase::BuildingEnvironment),
            provisioning(ServerPhase::Starting),
            provisioning(ServerPhase::WaitingForPage),
            (ServerState::Ready, ServerPhase::Unspecified),
        ]
    );

    let ready = world
        .get(&me, "ada/default/first-experiment")
        .await
        .unwrap();
    assert!(ready.ready_at.is_some() && ready.eta.is_none());
    let runtime = ready.runtime.unwrap();
    assert!(runtime.simulated_gpu);
    assert_eq!(runtime.installed, ["jupyterlab==4.6.6"]);

    let route = world
        .roster()
        .resolve_route(pb::ResolveRouteRequest {
            server_id: created.id.clone(),
        })
        .await
        .unwrap()
        .into_inner();
    assert!(route.ready);
    assert_eq!(route.node_endpoint, node.endpoint());
    assert_eq!(route.fence, fence(&created));
    assert_eq!(route.owner_id, me.user_id.to_string());

    let open = pb::OpenServerRequest {
        server: "first-experiment".to_owned(),
    };
    let opened = world
        .servers()
        .open_server(by(&me, open))
        .await
        .unwrap()
        .into_inner();
    let host = format!("srv-{}", created.id["srv_".len()..].to_lowercase());
    assert_eq!(
        opened.link,
        format!(
            "http://{host}.localhost:8080/_cnlab/open#code-for-{}",
            me.user_id
        )
    );

    // Stop: the slice is free, usage ends, the volume stays.
    world.stop_server(&me, "first-experiment").await.unwrap();
    let stopped = world
        .until(&me, "first-experiment", ServerState::Stopped)
        .await;
    assert!(stopped.grant.is_none() && stopped.stopped_at.is_some());
    assert!(node.workloads().is_empty());
    let grant = created.grant.as_ref().unwrap().id.clone();
    let interval = wait_for(GENEROUS, "usage to end", async || {
        let interval = world.billing.intervals().get(&grant).cloned()?;
        interval.ended_at.is_some().then_some(interval)
    })
    .await
    .unwrap();
    assert_eq!(interval.workload_id, created.id);
    assert_eq!(interval.project, "ada/default");
    assert_eq!(interval.slices[0].isolation(), IsolationClass::Soft);
    assert_eq!(Some(interval.started_at), created.started_at);
    assert_eq!(interval.ended_at, stopped.stopped_at);

    // Start: the same volume, a newer fence, and an expectation that was learned.
    let again = world.start_server(&me, "first-experiment").await.unwrap();
    assert_eq!(again.state(), ServerState::Provisioning);
    assert_eq!(again.volume_id, created.volume_id);
    assert!(fence(&again) > fence(&created));
    assert_eq!(again.eta.unwrap().seconds, 4, "the environment is built");
    world
        .moves(&node, &again.id, WorkloadState::Ready, "")
        .await;
    world.until(&me, &again.id, ServerState::Ready).await;

    // Delete: processes, volume, record; the watch ends with that.
    world.delete_server(&me, "first-experiment").await.unwrap();
    let mut last = None;
    while let Some(next) = watch.message().await.unwrap() {
        last = Some(next.state());
    }
    assert_eq!(last, Some(ServerState::Deleted));
    assert!(node.workloads().is_empty());
    assert_eq!(
        node.state().removed_volumes,
        std::slice::from_ref(&created.volume_id)
    );
    let gone = world.get(&me, "first-experiment").await.unwrap_err();
    assert_eq!(gone.reason, "SERVER_NOT_FOUND");
    assert_eq!(
        world.get(&me, &created.id).await.unwrap_err().reason,
        "SERVER_NOT_FOUND"
    );
    // Its name is free again.
    let fresh = world.create(&me, ask("first-experiment")).await.unwrap();
    assert_ne!(fresh.id, created.id);
}

async fn a_refused_launch_fails_the_server_and_frees_the_slice(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    node.state().refuse = Some(status::plain(
        ErrorKind::Exhausted,
        "DISK_FULL",
        "no room for the environment",
        None,
    ));
    let server = world.create(&me, ask("a")).await.unwrap();
    let failed = world.until(&me, &server.id, ServerState::Failed).await;
    let failure = failed.failure.unwrap();
    assert!(
        failure.message.contains("no room for the environment"),
        "{failure:?}"
    );
    assert!(!failure.try_this.is_empty());
    assert!(failed.grant.is_none());
    assert!(world.profile("h100-full").await.available_now);
    wait_until(GENEROUS, "usage to end", async || {
        world
            .billing
            .intervals()
            .values()
            .all(|one| one.ended_at.is_some())
    })
    .await
    .unwrap();

    // Repaired, it starts; then its process dies, and what the node says of that is shown.
    node.state().refuse = None;
    world.start_server(&me, "a").await.unwrap();
    world
        .moves(&node, &server.id, WorkloadState::Ready, "")
        .await;
    let mut report = node.moved(&server.id, WorkloadState::Failed, "");
    let told = Failure {
        reason: "PROCESS_ENDED".to_owned(),
        message: "jupyter ended with signal 9".to_owned(),
        cause: "out of memory".to_owned(),
        try_this: "take a larger profile".to_owned(),
    };
    report.failure = Some(told.clone());
    world.report(&node, report).await;
    let failed = world.until(&me, "a", ServerState::Failed).await;
    assert_eq!(failed.failure, Some(told));
    // A stop of what does not run changes nothing, and the failure stays readable.
    let stopped = world.stop_server(&me, "a").await.unwrap();
    assert_eq!(stopped.state(), ServerState::Failed);
    world.delete_server(&me, "a").await.unwrap();
    wait_until(GENEROUS, "the server to be gone", async || {
        world.get(&me, "a").await.is_err()
    })
    .await
    .unwrap();
}

async fn a_launch_of_unknown_outcome_frees_the_slice_after_a_stop(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    // The node runs it, but the scheduler hears of an error, and cannot stop it at first.
    node.state().garble = Some(Status::internal("half-way"));
    node.state().keeps = Some(Status::unavailable("busy"));
    let server = world.create(&me, ask("a")).await.unwrap();
    wait_until(GENEROUS, "the launch to be withdrawn", async || {
        node.state().kept > 0
    })
    .await
    .unwrap();
    let now = world.get(&me, "a").await.unwrap();
    assert_eq!(now.state(), ServerState::Provisioning);
    assert_eq!(now.grant, server.grant, "what may run keeps its slice");
    assert_eq!(node.workloads().len(), 1);
    node.state().keeps = None;
    let failed = world.until(&me, "a", ServerState::Failed).await;
    assert!(failed.grant.is_none());
    assert!(failed.failure.unwrap().message.contains("half-way"));
    assert!(node.workloads().is_empty(), "nothing runs without a slice");
    assert!(world.profile("h100-full").await.available_now);
}

async fn a_server_that_never_reached_its_node_can_be_stopped_and_deleted(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    node.down();
    world.create(&me, ask("a")).await.unwrap();
    let waiting = wait_for(
        GENEROUS,
        "the server to say what it waits for",
        async || {
            let server = world.get(&me, "a").await.unwrap();
            (!server.phase_detail.is_empty()).then_some(server)
        },
    )
    .await
    .unwrap();
    assert_eq!(waiting.state(), ServerState::Provisioning);
    assert!(
        waiting.phase_detail.starts_with("gpu-box does not answer"),
        "{waiting:?}"
    );
    assert_eq!(
        world.stop_server(&me, "a").await.unwrap().state(),
        ServerState::Stopping
    );
    // A start has to wait for that.
    let refused = world.start_server(&me, "a").await.unwrap_err();
    assert_eq!(refused.reason, "SERVER_STATE");
    world.delete_server(&me, "a").await.unwrap();
    node.up();
    wait_until(GENEROUS, "the server to be gone", async || {
        world.get(&me, "a").await.is_err()
    })
    .await
    .unwrap();
    assert!(node.state().launches.is_empty(), "the launch was dropped");
    assert!(world.profile("h100-full").await.available_now);
}

async fn what_is_not_ready_cannot_be_opened(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.create(&me, ask("a")).await.unwrap();
    let open = || {
        by(
            &me,
            pb::OpenServerRequest {
                server: "a".to_owned(),
            },
        )
    };
    let refused = crate::world::done(world.servers().open_server(open()).await).unwrap_err();
    assert_eq!(refused.reason, "SERVER_NOT_READY");
    assert_eq!(refused.message, "the server is provisioning");
    let server = world.get(&me, "a").await.unwrap();
    world
        .moves(&node, &server.id, WorkloadState::Ready, "")
        .await;
    world.billing.down();
    let refused = crate::world::done(world.servers().open_server(open()).await).unwrap_err();
    assert_eq!(refused.reason, "UPSTREAM_UNAVAILABLE");
    world.billing.up();
    wait_until(GENEROUS, "billing to answer again", async || {
        world.servers().open_server(open()).await.is_ok()
    })
    .await
    .unwrap();
}

async fn logs_come_from_the_node_in_whole_characters(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.ready(&me, &node, "a").await;
    node.state().logs = vec![b"starting \xe2\x9c".to_vec(), b"\x93\nready\n".to_vec()];
    let request = by(
        &me,
        pb::GetServerLogsRequest {
            server: "a".to_owned(),
            follow: false,
            tail_lines: 0,
        },
    );
    let mut chunks = world
        .servers()
        .get_server_logs(request)
        .await
        .unwrap()
        .into_inner();
    let mut text = String::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        text.push_str(&chunk.text);
    }
    assert_eq!(text, "starting ✓\nready\n");
}

on_both!(
    quickstart,
    a_refused_launch_fails_the_server_and_frees_the_slice,
    a_launch_of_unknown_outcome_frees_the_slice_after_a_stop,
    a_server_that_never_reached_its_node_can_be_stopped_and_deleted,
    what_is_not_ready_cannot_be_opened,
    logs_come_from_the_node_in_whole_characters,
);
