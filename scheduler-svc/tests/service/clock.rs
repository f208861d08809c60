//! A clock that is set by hours, forward and back, while work waits and runs.

use std::time::Duration;

use cnlab_model::Timestamp;
use cnlab_proto::{
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, RunState, ServerState},
};
use cnlab_service::runtime::TestClock;
use cnlab_testkit::{GENEROUS, wait_until};

use crate::{
    on_both,
    runs::{Runs, job},
    world::{Database, World, ada, ask, blocks, fence, launched},
};

const NOON: Timestamp = Timestamp(1_800_000_000_000_000);
const HOURS: Duration = Duration::from_secs(5 * 3_600);

async fn at_noon(database: Database) -> (World, TestClock) {
    let mut world = World::start(database).await;
    world.stop().await;
    let clock = TestClock::at(NOON);
    world.clock = Some(clock.clone());
    world.start_again().await;
    (world, clock)
}

fn whole(name: &str) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        ..ask(name)
    }
}

async fn what_runs_and_waits_survives_a_clock_that_jumps(database: Database) {
    let (world, clock) = at_noon(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let runs = Runs(&world, ada());
    let server = world.ready(&me, &node, "server").await;
    let run = runs.running(&node, job("run")).await;
    let waits = world.create(&me, whole("waits")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);
    let mut last = fence(&server).max(run.grant.as_ref().unwrap().fence);

    let later = NOON.plus(HOURS);
    for (step, now) in [later, NOON, later.plus(HOURS), NOON]
        .into_iter()
        .enumerate()
    {
        clock.set(now);
        // Nobody was heard of for hours, as it seems: nothing is taken away.
        assert_eq!(world.renew(&node).await, pb::RenewGrantsResponse::default());
        let kept = world.get(&me, "server").await.unwrap();
        assert_eq!(
            (kept.state(), &kept.grant),
            (ServerState::Ready, &server.grant)
        );
        let kept = runs.get("run").await.unwrap();
        assert_eq!(
            (kept.state(), kept.attempt, &kept.grant),
            (RunState::Running, 1, &run.grant)
        );
        // And what is new is placed beside it, told to its node, and given back.
        let name = format!("new-{step}");
        let new = world.create(&me, ask(&name)).await.unwrap();
        let new = world.until(&me, &new.id, ServerState::Provisioning).await;
        assert!(!blocks(&new).overlaps(blocks(&server)));
        assert!(fence(&new) > last, "step {step}");
        last = fence(&new);
        launched(&node, &new.id).await;
        world.delete_server(&me, &name).await.unwrap();
        wait_until(GENEROUS, "it to be gone", async || {
            world.get(&me, &name).await.is_err()
        })
        .await
        .unwrap();
        if now > NOON {
            // What runs seems to have run for hours, and is expected to run as long again.
            continue;
        }
        // Who waits is told an expectation of the present, not of another day.
        wait_until(GENEROUS, "an expectation that makes sense", async || {
            let eta = world.get(&me, "waits").await.unwrap().eta;
            eta.is_none_or(|eta| eta.seconds < 3 * 3_600)
        })
        .await
        .unwrap();
    }
    world.delete_server(&me, "server").await.unwrap();
    runs.ends(&node, &run, WorkloadState::Succeeded, |_| {})
        .await;
    world.until(&me, "waits", ServerState::Provisioning).await;
    launched(&node, &waits.id).await;
}

/// What was to be sent again a moment later is not sent again hours later.
async fn what_could_not_be_sent_does_not_wait_for_the_old_time(database: Database) {
    let (world, clock) = at_noon(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    clock.advance(HOURS);
    world.renew(&node).await;
    node.down();
    let server = world.create(&me, ask("a")).await.unwrap();
    wait_until(GENEROUS, "the launch to fail", async || {
        let now = world.get(&me, "a").await.unwrap();
        now.phase_detail.starts_with("gpu-box does not answer")
    })
    .await
    .unwrap();
    clock.set(NOON);
    node.up();
    // It is tried again within the longest pause.
    wait_until(GENEROUS, "the launch to reach the node", async || {
        clock.advance(Duration::from_secs(1));
        node.state().workloads.contains_key(&server.id)
    })
    .await
    .unwrap();
}

/// A node that was heard of by a clock that was ahead does not count as heard of until then.
async fn a_node_that_is_silent_is_so_by_the_present_clock(database: Database) {
    let (world, clock) = at_noon(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    clock.advance(HOURS);
    world.renew(&node).await;
    clock.set(NOON);
    wait_until(GENEROUS, "the clock to be noticed", async || {
        clock.advance(Duration::from_secs(1));
        !world.profile("h100-25pct").await.available_now
    })
    .await
    .unwrap();
    assert!(
        cnlab_service::runtime::Clock::now(&clock) < NOON.plus(HOURS / 2),
        "by the present clock"
    );
    world.renew(&node).await;
    assert!(world.profile("h100-25pct").await.available_now);
}

on_both!(
    what_runs_and_waits_survives_a_clock_that_jumps,
    what_could_not_be_sent_does_not_wait_for_the_old_time,
    a_node_that_is_silent_is_so_by_the_present_clock,
);
