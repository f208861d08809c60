//! Many at once on one GPU (INV-1, INV-2).

use std::collections::BTreeSet;

use cnlab_model::{BLOCKS_PER_GPU, Blocks, ErrorKind};
use cnlab_proto::scheduler::v1::{self as pb, ServerState};
use cnlab_service::{Runtime, status::PublicError};

use crate::{
    on_both,
    world::{Database, World, ask, blocks, by, fence, launched, person},
};

const PROFILES: &str = r#"
[[profile]]
name = "h100-1pct"
gpu_type = "H100"
percent = 1
memory = "1GiB"
cpu_milli = 100
"#;

async fn a_hundred_students_share_one_gpu(database: Database) {
    let mut world = World::start(database).await;
    world.config.catalog.profiles_file = Some(world.file("profiles.toml", PROFILES));
    world.stop().await;
    world.start_again().await;
    let node = world.node("gpu-box", &["H100"]).await;
    let tasks = Runtime::system().tasks;
    let creating: Vec<_> = (0..u128::from(BLOCKS_PER_GPU) + 3)
        .map(|n| {
            let mut servers = world.servers();
            let me = person(n + 10, &["school/course"]);
            let request = pb::CreateServerRequest {
                profile: "h100-1pct".to_owned(),
                ..ask(&format!("student-{n}"))
            };
            tasks.spawn("create", async move {
                servers
                    .create_server(by(&me, request))
                    .await
                    .unwrap()
                    .into_inner()
            })
        })
        .collect();
    let mut granted = Vec::new();
    let mut queued = Vec::new();
    for created in creating {
        let server = created.await.unwrap();
        match server.state() {
            ServerState::Provisioning => granted.push(server),
            ServerState::Queued => queued.push(server),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        (granted.len(), queued.len()),
        (usize::from(BLOCKS_PER_GPU), 3)
    );
    let mut taken = Blocks::EMPTY;
    for server in &granted {
        assert!(!blocks(server).overlaps(taken), "{server:?}");
        taken = taken.union(blocks(server));
    }
    assert_eq!(taken, Blocks::ALL);
    let fences: BTreeSet<u64> = granted.iter().map(fence).collect();
    assert!(
        fences.iter().copied().eq(1..=u64::from(BLOCKS_PER_GPU)),
        "one by one from the counter, none twice: {fences:?}"
    );
    assert!(!world.profile("h100-1pct").await.available_now);

    // One leaves: one of those who wait takes its block, under a newer fence.
    let me = person(500, &["school/course"]);
    let left = &granted[17];
    world.delete_server(&me, &left.id).await.unwrap();
    let mut placed = None;
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "one to move up", async || {
        for server in &queued {
            let now = world.get(&me, &server.id).await.unwrap();
            if now.state() == ServerState::Provisioning {
                placed = Some(now);
            }
        }
        placed.is_some()
    })
    .await
    .unwrap();
    let placed = placed.unwrap();
    assert_eq!(blocks(&placed), blocks(left));
    assert!(Some(&fence(&placed)) > fences.last());
    drop(node);
}

/// More than are placed in one turn of the queue.
async fn all_who_wait_are_placed_when_a_gpu_is_freed(database: Database) {
    let mut world = World::start(database).await;
    let whole = PROFILES
        .replace("h100-1pct", "h100-whole")
        .replace("percent = 1", "percent = 100");
    let profiles = format!("{PROFILES}{whole}");
    world.config.catalog.profiles_file = Some(world.file("profiles.toml", &profiles));
    world.stop().await;
    world.start_again().await;
    let _node = world.node("gpu-box", &["H100"]).await;
    let me = person(10, &["school/course"]);
    let named = |profile: &str, name: &str| pb::CreateServerRequest {
        profile: profile.to_owned(),
        ..ask(name)
    };
    let first = world.create(&me, named("h100-whole", "first")).await;
    let first = first.unwrap();
    let mut waiting = Vec::new();
    for n in 0..70 {
        let server = named("h100-1pct", &format!("student-{n}"));
        let server = world.create(&me, server).await.unwrap();
        assert_eq!(server.state(), ServerState::Queued);
        waiting.push(server.id);
    }
    world.delete_server(&me, &first.id).await.unwrap();
    let mut taken = Blocks::EMPTY;
    let mut last = fence(&first);
    for id in &waiting {
        let server = world.until(&me, id, ServerState::Provisioning).await;
        assert!(!blocks(&server).overlaps(taken), "{server:?}");
        taken = taken.union(blocks(&server));
        assert!(fence(&server) > last, "the oldest first");
        last = fence(&server);
    }
    // One fence after the other, none for anybody else.
    assert_eq!(last, fence(&first) + 70);
}

/// A node that takes calls and never answers holds up its own servers and no others.
async fn a_frozen_node_does_not_hold_up_the_others(database: Database) {
    let mut world = World::start(database).await;
    let other = PROFILES.replace("H100", "A100").replace("h100", "a100");
    let profiles = format!("{PROFILES}{other}");
    world.config.catalog.profiles_file = Some(world.file("profiles.toml", &profiles));
    world.stop().await;
    world.start_again().await;
    let frozen = world.node("frozen", &["H100"]).await;
    let well = world.node("well", &["A100"]).await;
    frozen.state().hangs = true;
    let me = person(10, &["school/course"]);
    for n in 0..80 {
        let request = pb::CreateServerRequest {
            profile: "h100-1pct".to_owned(),
            ..ask(&format!("student-{n}"))
        };
        world.create(&me, request).await.unwrap();
    }
    let request = pb::CreateServerRequest {
        profile: "a100-1pct".to_owned(),
        ..ask("other")
    };
    let other = world.create(&me, request).await.unwrap();
    launched(&well, &other.id).await;
    // Far from every place of the dispatcher.
    let hung = frozen.state().hung.len();
    assert!((1..30).contains(&hung), "{hung}");
}

/// One leads and places, the other one stands by and takes over, with all that wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_schedulers_one_places_and_the_other_takes_over() {
    let mut first = World::start(Database::Postgres).await;
    first.config.catalog.profiles_file = Some(first.file("profiles.toml", PROFILES));
    first.stop().await;
    first.start_again().await;
    let node = first.node("gpu-box", &["H100"]).await;
    let config = first.config.clone();
    let second = World::start_with(Database::Postgres, |own| *own = config).await;
    let tasks = Runtime::system().tasks;
    let creating: Vec<_> = (0..150_u128)
        .map(|n| {
            let mut leader = first.servers();
            let mut standby = second.servers();
            let me = person(n + 10, &["school/course"]);
            let request = pb::CreateServerRequest {
                profile: "h100-1pct".to_owned(),
                ..ask(&format!("student-{n}"))
            };
            tasks.spawn("create", async move {
                let refused = standby.create_server(by(&me, request.clone())).await;
                let refused = PublicError::from_status(&refused.unwrap_err());
                assert_eq!(refused.reason, "SCHEDULER_STANDBY");
                assert_eq!(refused.kind, ErrorKind::Unavailable);
                let made = leader.create_server(by(&me, request)).await;
                (me, made.unwrap().into_inner())
            })
        })
        .collect();
    // Nor does it know who waits.
    let list = by(
        &person(10, &["school/course"]),
        pb::ListQueueRequest::default(),
    );
    let refused = second.queue().list_queue(list).await.unwrap_err();
    assert_eq!(
        PublicError::from_status(&refused).reason,
        "SCHEDULER_STANDBY"
    );
    let mut taken = Blocks::EMPTY;
    let mut fences = BTreeSet::new();
    let mut queued = Vec::new();
    for created in creating {
        let (me, server) = created.await.unwrap();
        if server.state() == ServerState::Queued {
            queued.push((me, server.id));
            continue;
        }
        assert!(!blocks(&server).overlaps(taken), "{server:?}");
        taken = taken.union(blocks(&server));
        fences.insert(fence(&server));
    }
    assert_eq!((taken.count(), fences.len(), queued.len()), (100, 100, 50));

    first.stop().await;
    let me = person(500, &["school/course"]);
    let rest = second.create(
        &me,
        pb::CreateServerRequest {
            profile: "h100-1pct".to_owned(),
            ..ask("late")
        },
    );
    // The standby hears that the lead is free at its next look.
    let mut rest = Some(rest.await);
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "the second to lead", async || {
        if rest.as_ref().is_none_or(Result::is_err) {
            rest = Some(
                second
                    .create(
                        &me,
                        pb::CreateServerRequest {
                            profile: "h100-1pct".to_owned(),
                            ..ask("late")
                        },
                    )
                    .await,
            );
        }
        rest.as_ref().is_some_and(Result::is_ok)
    })
    .await
    .unwrap();
    assert_eq!(rest.unwrap().unwrap().state(), ServerState::Queued);
    drop(node);
}

on_both!(
    a_hundred_students_share_one_gpu,
    a_frozen_node_does_not_hold_up_the_others,
    all_who_wait_are_placed_when_a_gpu_is_freed,
);
