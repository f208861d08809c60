//! What becomes of runs whose node or scheduler is lost.

use super::*;

/// A world whose nodes are lost after half a second.
async fn hasty(database: Database) -> World {
    World::start_with(database, |config| {
        config.grants.ttl = Span(Duration::from_millis(500));
        config.grants.renew_every = Span(Duration::from_millis(100));
    })
    .await
}

/// Lets these nodes renew until something has happened.
async fn while_renewing<T>(
    world: &World,
    nodes: &[&PeerNode],
    what: &str,
    happened: impl AsyncFn() -> Option<T>,
) -> T {
    wait_for(GENEROUS, what, async || {
        for node in nodes {
            world.renew(node).await;
        }
        happened().await
    })
    .await
    .unwrap()
}

async fn a_run_of_a_lost_node_begins_anew_once(database: Database) {
    let world = hasty(database).await;
    let first = world.node("first", &["H100"]).await;
    let runs = Runs(&world, ada());
    let run = runs.running(&first, job("train")).await;
    let server = world.ready(&ada(), &first, "server").await;
    // It is cut off. The other one has room.
    let second = world.node("second", &["H100"]).await;
    let again = while_renewing(&world, &[&second], "the run to begin anew", async || {
        let now = runs.get("train").await.unwrap();
        (now.node_name == "second").then_some(now)
    })
    .await;
    assert_eq!((again.attempt, again.id.as_str()), (2, run.id.as_str()));
    assert_eq!(again.created_at, run.created_at, "its place is kept");
    assert_ne!(
        again.volume_id, run.volume_id,
        "it begins with an empty volume"
    );
    assert!(
        again.requeued_because.contains("the node first was lost"),
        "{again:?}"
    );
    assert!(again.started_at.is_none() && again.exit_code.is_none());
    // the server keeps its slice.
    let kept = world.get(&ada(), "server").await.unwrap();
    assert_eq!(
        (kept.state(), kept.grant),
        (ServerState::Ready, server.grant)
    );

    // The first one answers again: what it still runs is to be ended, its late word counts for
    // nothing, and its old volume is removed.
    let told = world.renew(&first).await;
    assert_eq!(told.end_workload_ids, std::slice::from_ref(&run.id));
    runs.ends(&first, &run, WorkloadState::Succeeded, |said| {
        said.exit_code = Some(0);
    })
    .await;
    while_renewing(
        &world,
        &[&first, &second],
        "the old volume to be removed",
        async || {
            first
                .state()
                .removed_volumes
                .contains(&run.volume_id)
                .then_some(())
        },
    )
    .await;
    let now = runs.get("train").await.unwrap();
    assert_eq!((now.attempt, now.node_name.as_str()), (2, "second"));

    // Once is forgiven, twice is not.
    launched(&second, &run.id).await;
    world
        .moves(&second, &run.id, WorkloadState::Running, "")
        .await;
    let failed = while_renewing(&world, &[&first], "the run to fail", async || {
        let now = runs.get("train").await.unwrap();
        (now.state() == RunState::Failed).then_some(now)
    })
    .await;
    assert_eq!(failed.failure.unwrap().reason, "NODE_LOST");
    assert_eq!(failed.attempt, 2);
}

async fn what_a_node_says_it_lost_begins_anew(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    for (name, cause) in [
        ("expired", EndCause::GrantExpired),
        ("lost", EndCause::Lost),
    ] {
        let run = runs.running(&node, job(name)).await;
        for (attempt, state) in [(2, RunState::Running), (2, RunState::Failed)] {
            runs.ends(&node, &run, WorkloadState::Failed, |said| {
                said.set_end_cause(cause);
            })
            .await;
            if state == RunState::Running {
                world
                    .moves(&node, &run.id, WorkloadState::Running, "")
                    .await;
            }
            assert_eq!(runs.until(name, state).await.attempt, attempt);
        }
    }
    // A node that ends in good order gives its runs back as often as it likes.
    let run = runs.running(&node, job("drained")).await;
    for attempt in 2..5 {
        runs.ends(&node, &run, WorkloadState::Stopped, |_| {}).await;
        world
            .moves(&node, &run.id, WorkloadState::Running, "")
            .await;
        let again = runs.until("drained", RunState::Running).await;
        assert_eq!(again.attempt, attempt);
        assert!(again.requeued_because.contains("in good order"));
    }
    // And what is cancelled meanwhile does not come back.
    node.down();
    assert_eq!(
        runs.cancel("drained").await.unwrap().state(),
        RunState::Cancelling
    );
    runs.ends(&node, &run, WorkloadState::Stopped, |_| {}).await;
    runs.until("drained", RunState::Cancelled).await;
}

async fn a_scheduler_that_comes_back_loses_no_run(database: Database) {
    let mut world = hasty(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let run = Runs(&world, ada()).running(&node, job("train")).await;
    world.stop().await;
    // Longer than a lease: nobody was there to hear.
    tokio::time::sleep(Duration::from_millis(700)).await;
    world.start_again().await;
    let runs = Runs(&world, ada());
    // Longer again, with renewals.
    for _ in 0..20 {
        world.renew(&node).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let now = runs.get("train").await.unwrap();
    assert_eq!((now.attempt, now.state()), (1, RunState::Running));
    assert_eq!(now.grant, run.grant);
}

on_both!(
    a_run_of_a_lost_node_begins_anew_once,
    what_a_node_says_it_lost_begins_anew,
    a_scheduler_that_comes_back_loses_no_run,
);
