//! Nodes: registration, renewal, reports in any order, silence and loss.

use std::time::Duration;

use cnlab_proto::{
    model::v1::Gpu,
    node::v1::{Workload, WorkloadState},
    scheduler::v1::{self as pb, ServerState},
};
use cnlab_service::{Secret, Span};
use cnlab_testkit::{GENEROUS, RedisServer, wait_for, wait_until};
use scheduler_svc::LeaseStoreKind;

use crate::{
    on_both,
    peers::PeerNode,
    world::{Database, World, ada, ask, done, fence, launched},
};

/// A world whose nodes are silent after half a second.
async fn hasty(database: Database) -> World {
    World::start_with(database, |config| {
        config.grants.ttl = Span(Duration::from_millis(500));
        config.grants.renew_every = Span(Duration::from_millis(100));
    })
    .await
}

async fn a_node_that_is_silent_keeps_what_it_has(database: Database) {
    let world = hasty(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    wait_until(GENEROUS, "the node to count as silent", async || {
        !world.profile("h100-25pct").await.available_now
    })
    .await
    .unwrap();
    // the server is as it was, and its slice is nobody else's.
    assert_eq!(world.get(&me, "a").await.unwrap(), server);
    let waits = world.create(&me, ask("b")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);
    assert_eq!(
        waits.phase_detail,
        "waiting for a node with H100 to answer again"
    );
    assert!(waits.eta.is_none());
    // It answers again: nothing is to be ended, and who waited is placed.
    assert_eq!(world.renew(&node).await, pb::RenewGrantsResponse::default());
    world.until(&me, "b", ServerState::Provisioning).await;
}

async fn what_a_node_lost_has_failed(database: Database) {
    let world = hasty(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    node.reboot();
    world.register(&node, &["H100"]).await;
    assert_eq!(
        world.get(&me, "a").await.unwrap().state(),
        ServerState::Ready
    );
    let failed = wait_for(GENEROUS, "the loss to be noticed", async || {
        world.renew(&node).await;
        let now = world.get(&me, "a").await.unwrap();
        (now.state() == ServerState::Failed).then_some(now)
    })
    .await
    .unwrap();
    let failure = failed.failure.unwrap();
    assert_eq!(failure.reason, "PROCESS_ENDED");
    assert!(failure.try_this.contains("server start"));
    let again = world.start_server(&me, "a").await.unwrap();
    assert!(fence(&again) > fence(&server));
    launched(&node, &server.id).await;
}

async fn old_and_foreign_reports_change_nothing(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.create(&me, ask("a")).await.unwrap();
    launched(&node, &server.id).await;
    let building = node.moved(&server.id, WorkloadState::BuildingEnvironment, "one");
    let starting = node.moved(&server.id, WorkloadState::Starting, "two");
    world.report(&node, starting.clone()).await;
    let version = world.get(&me, "a").await.unwrap().version;
    // Late, twice, under another fence, from another node, of nobody.
    let other = world.node("other", &["A100"]).await;
    world.report(&node, building).await;
    world.report(&node, starting.clone()).await;
    let failed = |fence| Workload {
        fence,
        sequence: 99,
        state: WorkloadState::Failed.into(),
        ..starting.clone()
    };
    world.report(&node, failed(starting.fence - 1)).await;
    world.report(&other, failed(starting.fence)).await;
    let nobody = Workload {
        workload_id: "srv_00000000000000000000000001".to_owned(),
        ..failed(1)
    };
    world.report(&node, nobody).await;
    let now = world.get(&me, "a").await.unwrap();
    assert_eq!((now.version, now.phase_detail.as_str()), (version, "two"));

    // What makes no sense is refused by field; an unknown node is told so.
    let senseless = Workload {
        state: 77,
        ..starting.clone()
    };
    let request = pb::ReportWorkloadRequest {
        node_id: node.id.to_string(),
        workload: Some(senseless),
    };
    let refused = done(world.roster().report_workload(request).await).unwrap_err();
    assert_eq!(refused.field.as_deref(), Some("workload.state"));
    let stranger = PeerNode::new("stranger");
    let request = pb::ReportWorkloadRequest {
        node_id: stranger.id.to_string(),
        workload: Some(starting),
    };
    let refused = done(world.roster().report_workload(request).await).unwrap_err();
    assert_eq!(refused.reason, "NODE_NOT_FOUND");
    assert!(world.renew(&stranger).await.register_again);
}

async fn renewals_heal_lost_reports_and_end_what_has_no_right(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.create(&me, ask("a")).await.unwrap();
    launched(&node, &server.id).await;
    // The report of readiness was lost; the next renewal says it again.
    node.moved(&server.id, WorkloadState::Ready, "");
    assert!(world.renew(&node).await.end_workload_ids.is_empty());
    assert_eq!(
        world.get(&me, "a").await.unwrap().state(),
        ServerState::Ready
    );
    // Something runs there that nobody has a grant for.
    let foreign = Workload {
        workload_id: "srv_00000000000000000000000002".to_owned(),
        fence: 1,
        sequence: 1,
        state: WorkloadState::Ready.into(),
        ..Workload::default()
    };
    node.state()
        .workloads
        .insert(foreign.workload_id.clone(), foreign.clone());
    assert_eq!(
        world.renew(&node).await.end_workload_ids,
        [foreign.workload_id]
    );
    // Ctrl-C at the node ends the server in good order, without being asked for.
    world
        .moves(&node, &server.id, WorkloadState::Stopped, "")
        .await;
    let stopped = world.until(&me, "a", ServerState::Stopped).await;
    assert!(stopped.failure.is_none() && stopped.grant.is_none());
}

async fn a_gpu_that_is_gone_is_not_offered(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100", "H100"]).await;
    let me = ada();
    world.create(&me, ask("a")).await.unwrap();
    world.register(&node, &["H100"]).await;
    let whole = pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        ..ask("b")
    };
    assert_eq!(
        world.create(&me, whole).await.unwrap().state(),
        ServerState::Queued
    );
    world.register(&node, &["H100", "H100"]).await;
    world.until(&me, "b", ServerState::Provisioning).await;
}

async fn a_real_gpu_is_in_one_machine_only(database: Database) {
    let world = World::start(database).await;
    let before = world.node("gpu-box", &[]).await;
    let me = ada();
    let real = |peer: &PeerNode| pb::RegisterNodeRequest {
        node_id: peer.id.to_string(),
        name: peer.name.clone(),
        endpoint: peer.endpoint(),
        gpus: vec![Gpu {
            uuid: "GPU-5f2c".to_owned(),
            gpu_type: "H100".to_owned(),
            memory_bytes: 80 << 30,
            ..Gpu::default()
        }],
        disk_bytes: 1 << 40,
        ..pb::RegisterNodeRequest::default()
    };
    world.roster().register_node(real(&before)).await.unwrap();
    let server = world.ready(&me, &before, "a").await;
    // The machine comes back with a new identity while the old one's server may still run.
    let after = PeerNode::new("gpu-box");
    after.up();
    let refused = done(world.roster().register_node(real(&after)).await).unwrap_err();
    assert_eq!(refused.reason, "GPU_HELD_ELSEWHERE");
    assert!(refused.try_this.unwrap().contains(&before.id.to_string()));
    world.stop_server(&me, &server.id).await.unwrap();
    world.until(&me, &server.id, ServerState::Stopped).await;
    world.roster().register_node(real(&after)).await.unwrap();
    let next = world.create(&me, ask("b")).await.unwrap();
    assert_eq!(next.node_id, after.id.to_string());
    assert!(fence(&next) > fence(&server));
}

on_both!(
    a_real_gpu_is_in_one_machine_only,
    a_node_that_is_silent_keeps_what_it_has,
    what_a_node_lost_has_failed,
    old_and_foreign_reports_change_nothing,
    renewals_heal_lost_reports_and_end_what_has_no_right,
    a_gpu_that_is_gone_is_not_offered,
);

/// Redis tells who is alive; without it everything goes on, and it is filled again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_redis_changes_nothing() {
    let mut redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let world = World::start_with(Database::Sqlite, |config| {
        config.lease.store = LeaseStoreKind::Redis;
        config.lease.url = Secret::new(url);
    })
    .await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    let leases = cnlab_lease::RedisStore::new(
        &redis.url(),
        &world.config.lease.space,
        cnlab_lease::RedisOptions::default(),
    )
    .unwrap();
    let grant = server.grant.as_ref().unwrap().id.clone();
    let lease = async || {
        use cnlab_lease::LeaseStore as _;
        leases.get(&grant).await.ok().flatten()
    };
    assert_eq!(lease().await.map(|lease| lease.fence), Some(fence(&server)));

    redis.kill();
    assert_eq!(world.renew(&node).await, pb::RenewGrantsResponse::default());
    assert_eq!(world.get(&me, "a").await.unwrap(), server);
    world.ready(&me, &node, "b").await;
    // Empty after its restart: the rows are the truth, and the next renewals fill it.
    redis.restart().await.unwrap();
    wait_until(GENEROUS, "the lease to be opened anew", async || {
        world.renew(&node).await;
        lease().await.is_some()
    })
    .await
    .unwrap();
    assert_eq!(
        lease().await.map(|lease| lease.holder),
        Some(node.id.to_string())
    );
    world.stop_server(&me, "a").await.unwrap();
    wait_until(GENEROUS, "the lease to end", async || {
        lease().await.is_none()
    })
    .await
    .unwrap();
}

/// What the rows say is put into a store that lost everything, before any node renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_redis_lost_are_opened_from_the_rows() {
    let mut redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let world = World::start_with(Database::Sqlite, |config| {
        config.lease.store = LeaseStoreKind::Redis;
        config.lease.url = Secret::new(url);
        config.grants.ttl = Span(Duration::from_secs(600));
    })
    .await;
    let node = world.node("gpu-box", &["H100"]).await;
    let server = world.ready(&ada(), &node, "a").await;
    let grant = server.grant.as_ref().unwrap().id.clone();
    redis.kill();
    redis.restart().await.unwrap();
    let leases = cnlab_lease::RedisStore::new(
        &redis.url(),
        &world.config.lease.space,
        cnlab_lease::RedisOptions::default(),
    )
    .unwrap();
    let lease = wait_for(GENEROUS, "the lease to be opened anew", async || {
        use cnlab_lease::LeaseStore as _;
        leases.get(&grant).await.ok().flatten()
    })
    .await
    .unwrap();
    assert_eq!(lease.fence, fence(&server));
    assert_eq!(lease.holder, node.id.to_string());
}
