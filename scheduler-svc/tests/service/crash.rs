//! What was acknowledged survives the end of the scheduler (INV-10), and is carried out.

use std::time::Duration;

use cnlab_db::Db;
use cnlab_model::{ErrorKind, Timestamp};
use cnlab_proto::{node::v1::WorkloadState, scheduler::v1::ServerState};
use cnlab_service::{Span, runtime::TestClock, status::PublicError};
use cnlab_testkit::{GENEROUS, wait_until};
use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

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

/// Longer than a claim lives that nobody renews.
const CLAIM_GONE: Duration = Duration::from_secs(10);

async fn a_launch_that_was_in_flight_is_sent_again_soon(database: Database) {
    let mut world = World::start_with(database, |config| {
        config.common.shutdown_grace = Span(Duration::from_millis(50));
    })
    .await;
    world.stop().await;
    let clock = TestClock::at(Timestamp(1_800_000_000_000_000));
    world.clock = Some(clock.clone());
    world.start_again().await;
    let node = world.node("gpu-box", &["H100"]).await;
    node.state().hangs = true;
    let created = world.create(&ada(), ask("a")).await.unwrap();
    wait_until(GENEROUS, "the launch to hang", async || {
        !node.state().hung.is_empty()
    })
    .await
    .unwrap();
    world.stop().await;
    node.state().hangs = false;
    clock.advance(CLAIM_GONE);
    world.start_again().await;
    launched(&node, &created.id).await;
    assert_eq!(node.state().launches[0].grant, created.grant);
}

/// When the claim of the one message in the outbox ends.
async fn claimed_until(world: &World) -> i64 {
    let db = Db::connect(&world.config.database).await.unwrap();
    let select = "SELECT locked_until FROM outbox WHERE topic = 'node.launch'";
    let statement = Statement::from_string(DbBackend::Postgres, select);
    let row = db.read().query_one_raw(statement).await.unwrap();
    let until = row.unwrap().try_get("", "locked_until").unwrap();
    db.close().await;
    until
}

/// A claim is renewed for as long as its delivery takes, and a second scheduler on the database
/// takes nothing over before it has run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_scheduler_leaves_alone_what_is_in_flight() {
    let mut first = World::start_with(Database::Postgres, |config| {
        config.common.shutdown_grace = Span(Duration::from_millis(50));
    })
    .await;
    first.stop().await;
    let began = Timestamp(1_800_000_000_000_000);
    let clock = TestClock::at(began);
    first.clock = Some(clock.clone());
    first.start_again().await;
    let node = first.node("gpu-box", &["H100"]).await;
    node.state().hangs = true;
    let me = ada();
    let created = first.create(&me, ask("a")).await.unwrap();
    let launches = |server: &str| {
        let node = node.state();
        node.hung.iter().filter(|hung| *hung == server).count()
    };
    wait_until(GENEROUS, "the launch to hang", async || {
        launches(&created.id) == 1
    })
    .await
    .unwrap();
    let end = claimed_until(&first).await;
    // As if nearly the whole claim had passed.
    clock.set(Timestamp(end - 1_000_000));
    wait_until(GENEROUS, "the claim to be renewed", async || {
        claimed_until(&first).await > end
    })
    .await
    .unwrap();

    // The second one comes when the first claim would have ended, and takes the lead, which
    // nobody has renewed; the claim is renewed.
    let config = first.config.clone();
    let mut second = World::start_with(Database::Postgres, |own| *own = config).await;
    second.stop().await;
    let later = TestClock::at(Timestamp(end + 4_000_000));
    second.clock = Some(later.clone());
    second.start_again().await;
    let other = second.create(&me, ask("b")).await.unwrap();
    wait_until(GENEROUS, "the second one's launch to hang", async || {
        launches(&other.id) == 1
    })
    .await
    .unwrap();
    assert_eq!(launches(&created.id), 1);

    // With the first one gone nobody renews, and the second one takes over.
    first.stop().await;
    later.advance(CLAIM_GONE);
    wait_until(GENEROUS, "the launch to be sent again", async || {
        launches(&created.id) == 2
    })
    .await
    .unwrap();
}

/// Health says which of several schedulers does the work, so that requests find it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_says_that_it_does_not_serve_and_takes_over() {
    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    let until = async |world: &World, status: i32| {
        wait_until(GENEROUS, "the health to change", async || {
            world.health("scheduler-svc").await == status
        })
        .await
        .unwrap();
    };
    let mut first = World::start(Database::Postgres).await;
    until(&first, SERVING).await;
    let config = first.config.clone();
    let second = World::start_with(Database::Postgres, |own| *own = config).await;
    until(&second, NOT_SERVING).await;
    assert_eq!(second.health("").await, SERVING, "it lives");
    let refused = second.create(&ada(), ask("a")).await.unwrap_err();
    assert_eq!(refused.reason, "SCHEDULER_STANDBY");
    assert_eq!(first.health("scheduler-svc").await, SERVING);

    first.stop().await;
    until(&second, SERVING).await;
    let node = second.node("gpu-box", &["H100"]).await;
    let created = second.create(&ada(), ask("a")).await.unwrap();
    launched(&node, &created.id).await;
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
    a_launch_that_was_in_flight_is_sent_again_soon,
    a_watch_that_is_cut_says_so,
    servers_grants_and_fences_outlive_the_scheduler,
);
