//! Waiting for a slice.

use cnlab_proto::{
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, ServerPhase, ServerState},
};

use crate::{
    on_both,
    world::{Database, World, ada, ask, fence},
};

fn whole(name: &str) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        ..ask(name)
    }
}

async fn the_oldest_that_fits_gets_what_is_freed(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let first = world.create(&me, whole("first")).await.unwrap();
    world
        .moves(&node, &first.id, WorkloadState::Ready, "")
        .await;
    let second = world.create(&me, whole("second")).await.unwrap();
    assert_eq!(second.state(), ServerState::Queued);
    assert_eq!(second.phase(), ServerPhase::WaitingForSlice);
    assert_eq!(
        second.phase_detail,
        "waiting for 100% of one H100; at most 0% is free"
    );
    assert!(second.grant.is_none());
    // Nothing is known but that runs are supposed to take an hour; then the start.
    let eta = second.eta.unwrap().seconds;
    assert!((3000..=3700).contains(&eta), "{eta}");
    let third = world.create(&me, ask("third")).await.unwrap();
    let fourth = world.create(&me, ask("fourth")).await.unwrap();
    assert!(
        third.eta.unwrap().seconds > eta,
        "it waits behind the second"
    );
    let profile = world.profile("h100-25pct").await;
    assert!(!profile.available_now && profile.wait.unwrap().seconds > 60);

    // Stopping works while pending, and starting puts it at the end.
    let stopped = world.stop_server(&me, "third").await.unwrap();
    assert_eq!(stopped.state(), ServerState::Stopped);
    assert_eq!(
        world.start_server(&me, "third").await.unwrap().state(),
        ServerState::Queued
    );

    world.stop_server(&me, "first").await.unwrap();
    let placed = world.until(&me, "second", ServerState::Provisioning).await;
    assert!(fence(&placed) > fence(&first));
    assert_eq!(
        world.get(&me, "fourth").await.unwrap().state(),
        ServerState::Queued
    );
    world.delete_server(&me, "second").await.unwrap();
    world.until(&me, "third", ServerState::Provisioning).await;
    let last = world.until(&me, "fourth", ServerState::Provisioning).await;
    assert_eq!(last.id, fourth.id);
}

async fn a_node_that_joins_takes_who_waits(database: Database) {
    let world = World::start(database).await;
    let _full = world.node("small", &["H100"]).await;
    let me = ada();
    world.create(&me, whole("first")).await.unwrap();
    world.create(&me, whole("second")).await.unwrap();
    let other = world.node("other", &["H100"]).await;
    let placed = world.until(&me, "second", ServerState::Provisioning).await;
    assert_eq!(placed.node_name, "other");
    crate::world::launched(&other, &placed.id).await;
}

on_both!(
    the_oldest_that_fits_gets_what_is_freed,
    a_node_that_joins_takes_who_waits,
);
