//! What was acknowledged survives the end of the scheduler (INV-10), and is carried out.

use std::time::Duration;

use cnlab_model::{ErrorKind, Timestamp};
use cnlab_proto::{node::v1::WorkloadState, scheduler::v1::ServerState};
use cnlab_service::{Span, runtime::TestClock, status::PublicError};
use cnlab_testkit::{GENEROUS, wait_until};

use crate::{
    on_both,
    world::{Database, World, ada, ask, blocks, fence, launched},
};

async fn a_launch_that_was_not_sent_goes_out_after_a_restart(database: Database) {
    let mut world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    // Nobody can be told: neither the node nor billing answers.
    node.down();
    world.billing.down();
    let created = world.create(&me, ask("a")).await.unwrap();
    world.stop().await;
    node.up();
    world.billing.up();
    assert!(node.state().launches.is_empty());
    world.start_again().await;
    launched(&node, &created.id).await;
    assert_eq!(node.state().launches[0].grant, created.grant);
    wait_until(GENEROUS, "usage to begin", async || {
        let grant = &created.grant.as_ref().unwrap().id;
        world.billing.intervals().contains_key(grant)
    })
    .await
    .unwrap();
    world
        .moves(&node, &created.id, WorkloadState::Ready, "")
        .await;
    world.until(&me, "a", ServerState::Ready).await;
    assert_eq!(node.state().launches.len(), 1);
    assert_eq!(world.billing.intervals().len(), 1);
}

async fn a_launch_that_was_in_flight_is_sent_again_at_once(database: Database) {
    let mut world = World::start_with(database, |config| {
        config.common.shutdown_grace = Span(Duration::from_millis(50));
    })
    .await;
    world.stop().await;
    // The clock stands still: a claim of the first life never runs out by itself.
    world.clock = Some(TestClock::at(Timestamp(1_800_000_000_000_000)));
    world.start_again().await;
    let node = world.node("gpu-box", &["H100"]).await;
    node.state().hangs = true;
    let created = world.create(&ada(), ask("a")).await.unwrap();
    wait_until(GENEROUS, "the launch to hang", async || {
        node.state().hung > 0
    })
    .await
    .unwrap();
    world.stop().await;
    node.state().hangs = false;
    world.start_again().await;
    launched(&node, &created.id).await;
    assert_eq!(node.state().launches[0].grant, created.grant);
}

async fn a_watch_that_is_cut_says_so(database: Database) {
    let mut world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.ready(&me, &node, "a").await;
    let mut watch = world.watch(&me, "a").await;
    assert_eq!(
        watch.message().await.unwrap().unwrap().state(),
        ServerState::Ready
    );
    world.stop().await;
    let cut = PublicError::from_status(&watch.message().await.unwrap_err());
    assert_eq!(cut.reason, "SCHEDULER_STOPPING");
    assert_eq!(cut.kind, ErrorKind::Unavailable);
}

async fn servers_grants_and_fences_outlive_the_scheduler(database: Database) {
    let mut world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let before = world.ready(&me, &node, "a").await;
    world.stop().await;
    world.start_again().await;
    let after = world.get(&me, "a").await.unwrap();
    assert_eq!(after, before);
    // The node goes on as if nothing had been, and a new server gets other blocks.
    assert!(world.renew(&node).await.end_workload_ids.is_empty());
    let next = world.create(&me, ask("b")).await.unwrap();
    assert!(!blocks(&next).overlaps(blocks(&before)));
    assert!(fence(&next) > fence(&before));
}

on_both!(
    a_launch_that_was_not_sent_goes_out_after_a_restart,
    a_launch_that_was_in_flight_is_sent_again_at_once,
    a_watch_that_is_cut_says_so,
    servers_grants_and_fences_outlive_the_scheduler,
);
