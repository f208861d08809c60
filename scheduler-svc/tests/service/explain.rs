//! Why work waits or runs where it does, and who may know of it.

use std::time::Duration;

use cnlab_model::{ErrorKind, Timestamp};
use cnlab_proto::{
    convert::encode_timestamp,
    node::v1::WorkloadState,
    scheduler::v1::{
        self as pb, BlockerKind, ChangeKind, LengthOrigin, OnLate, Priority, QueueOwner, Standing,
        StartOrigin,
    },
};
use cnlab_service::{Caller, Span, runtime::TestClock, status::PublicError};
use cnlab_testkit::{GENEROUS, wait_for, wait_until};

use crate::{
    on_both,
    peers::PeerNode,
    world::{Database, World, ada, ask, by, done, launched, person},
};

fn server(name: &str, profile: &str) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        profile: profile.to_owned(),
        ..ask(name)
    }
}

fn run(name: &str, profile: &str) -> pb::SubmitRunRequest {
    pb::SubmitRunRequest {
        name: name.to_owned(),
        image: "pytorch:2.4-cuda12.4".to_owned(),
        profile: profile.to_owned(),
        command: vec!["python".to_owned(), "train.py".to_owned()],
        ..pb::SubmitRunRequest::default()
    }
}

fn bob() -> Caller {
    person(2, &["bob/default"])
}

async fn submit(world: &World, me: &Caller, ask: pb::SubmitRunRequest) -> pb::Run {
    done(world.runs().submit_run(by(me, ask)).await).unwrap()
}

async fn of_run(
    world: &World,
    me: &Caller,
    run: &str,
) -> Result<pb::Explanation, Box<PublicError>> {
    let run = run.to_owned();
    let request = by(me, pb::ExplainRunRequest { run });
    done(world.queue().explain_run(request).await)
}

async fn of_server(
    world: &World,
    me: &Caller,
    server: &str,
) -> Result<pb::Explanation, Box<PublicError>> {
    let server = server.to_owned();
    let request = by(me, pb::ExplainServerRequest { server });
    done(world.queue().explain_server(request).await)
}

async fn queue(
    world: &World,
    me: &Caller,
    ask: pb::ListQueueRequest,
) -> Result<pb::ListQueueResponse, Box<PublicError>> {
    done(world.queue().list_queue(by(me, ask)).await)
}

fn seconds(from: &pb::Explanation, to: Option<prost_types::Timestamp>) -> i64 {
    to.unwrap().seconds - from.as_of.unwrap().seconds
}

/// One H100, which a server of Ada has. Nobody gives way for others there.
async fn full(database: Database) -> World {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let holds = world.create(&ada(), server("holds", "h100-full")).await;
    launched(&node, &holds.unwrap().id).await;
    world
}

/// A world with a clock that stands still.
async fn frozen(database: Database) -> (World, TestClock) {
    let mut world = World::start(database).await;
    world.stop().await;
    let clock = TestClock::at(Timestamp(1_900_000_000_000_000));
    world.clock = Some(clock.clone());
    world.start_again().await;
    (world, clock)
}

/// Lets time pass, in which the nodes were heard of.
async fn pass(world: &World, clock: &TestClock, minutes: u64, nodes: &[&PeerNode]) {
    clock.advance(Duration::from_secs(60 * minutes));
    for node in nodes {
        world.renew(node).await;
    }
}

async fn a_full_cell(database: Database) {
    let world = full(database).await;
    let me = ada();
    let waits = submit(&world, &me, run("waits", "h100-25pct")).await;
    let why = of_run(&world, &me, "waits").await.unwrap();
    assert_eq!(
        (why.workload_id.as_str(), why.name.as_str()),
        (waits.id.as_str(), "waits")
    );
    assert_eq!(
        (why.project.as_str(), why.profile.as_str()),
        ("ada/default", "h100-25pct")
    );
    assert_eq!(why.standing(), Standing::Waiting);
    assert_eq!(
        why.text,
        "waits, number 1 of 1 for H100; starts in 60 min unless somebody arrives who goes first"
    );
    // The server is supposed to go on for an hour, of which nothing is known better.
    let start = why.start.unwrap();
    assert_eq!(start.origin(), StartOrigin::Reserved);
    assert!(
        (3_500..=3_600).contains(&seconds(&why, start.at)),
        "{why:?}"
    );
    assert!(start.ready_at.unwrap().seconds >= start.at.unwrap().seconds);
    assert!(start.latest.is_some());

    let priority = why.priority.as_ref().unwrap();
    assert_eq!((priority.priority(), priority.ahead), (Priority::Normal, 0));
    assert_eq!(why.deadline.as_ref().unwrap().text, "none");
    let share = why.fair_share.as_ref().unwrap();
    assert_eq!((share.place, share.teams, share.ahead), (1, 1, 0));
    assert!(
        share.text.contains("of the cell in 7 days"),
        "{}",
        share.text
    );
    let gpu = why.gpu_type.as_ref().unwrap();
    assert_eq!((gpu.gpu_type.as_str(), gpu.slice_percent), ("H100", 25));
    assert_eq!((gpu.gpus, gpu.free, gpu.most_free_percent), (1, 0, 0));
    let data = why.data_locality.as_ref().unwrap();
    assert_eq!(
        (data.volume_node.as_str(), data.nodes, data.nodes_with_image),
        ("", 1, 0)
    );
    let depth = why.queue_depth.as_ref().unwrap();
    assert_eq!(
        (depth.position, depth.queued, depth.ahead_by_age),
        (1, 1, 0)
    );

    let blocker = why.blocker.as_ref().unwrap();
    assert_eq!(blocker.kind(), BlockerKind::Busy);
    assert_eq!(blocker.text, "no GPU that would do is free");
    let length = why.length.as_ref().unwrap();
    assert_eq!(length.origin(), LengthOrigin::Unknown);
    let [only] = why.candidates.as_slice() else {
        panic!("{:?}", why.candidates);
    };
    assert_eq!(
        (only.node_name.as_str(), only.free_percent, only.fits),
        ("gpu-box", 0, false)
    );
    assert!(why.placement.is_none() && why.preemption.is_none());
    // There is nothing else that would start sooner.
    assert_eq!(why.sooner, []);

    // Until a node with another type joins: half of an A100 is what comes next to a quarter.
    let _other = world.node("other", &["A100"]).await;
    let why = of_run(&world, &me, &waits.id).await.unwrap();
    let [sooner] = why.sooner.as_slice() else {
        panic!("{:?}", why.sooner);
    };
    assert_eq!(sooner.kind(), ChangeKind::OtherGpu);
    assert_eq!(sooner.profile, "a100-50pct");
    assert_eq!(sooner.text, "the profile a100-50pct: now");
    let instead = submit(&world, &me, run("instead", "a100-50pct")).await;
    assert_eq!(instead.state(), pb::RunState::Provisioning, "as was said");
    // Who waits for other GPUs is not ahead.
    let depth = why.queue_depth.unwrap();
    assert_eq!((depth.position, depth.queued), (1, 1));
}

/// That it has just begun says nothing about when it ends.
async fn behind_a_run_of_which_nothing_is_known(database: Database) {
    let (mut world, clock) = frozen(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let first = submit(&world, &me, run("first", "h100-full")).await;
    world
        .moves(&node, &first.id, WorkloadState::Running, "")
        .await;
    submit(&world, &me, run("second", "h100-full")).await;
    for (minutes, from, to) in [(0, 3_500, 3_700), (20, 2_300, 2_500)] {
        pass(&world, &clock, minutes, &[&node]).await;
        let why = of_run(&world, &me, "second").await.unwrap();
        let starts = seconds(&why, why.start.unwrap().at);
        assert!((from..=to).contains(&starts), "{starts}: {why:?}");
        let length = why.length.as_ref().unwrap();
        assert_eq!(length.origin(), LengthOrigin::Unknown);
        assert!(
            length.text.ends_with("; a longest time would tell"),
            "{}",
            length.text
        );
    }
    // Nor does a scheduler that begins think so.
    world.stop().await;
    world.start_again().await;
    world.renew(&node).await;
    let why = of_run(&world, &me, "second").await.unwrap();
    let start = why.start.unwrap();
    for at in [start.at, start.latest] {
        let starts = seconds(&why, at);
        assert!((2_300..=2_500).contains(&starts), "{starts}: {why:?}");
    }
}

async fn behind_a_higher_priority(database: Database) {
    let world = full(database).await;
    let me = ada();
    submit(&world, &me, run("first", "h100-full")).await;
    let high = pb::SubmitRunRequest {
        priority: Priority::High.into(),
        ..run("urgent", "h100-full")
    };
    submit(&world, &me, high).await;
    let why = of_run(&world, &me, "first").await.unwrap();
    let priority = why.priority.as_ref().unwrap();
    assert_eq!(
        (priority.ahead, priority.text.as_str()),
        (1, "normal, 1 above")
    );
    assert_eq!(why.queue_depth.as_ref().unwrap().position, 2);
    let urgent = of_run(&world, &me, "urgent").await.unwrap();
    assert_eq!(urgent.queue_depth.as_ref().unwrap().position, 1);
    // The same class goes by age, a higher one goes first.
    let at = |why: &pb::Explanation| why.start.unwrap().at.unwrap().seconds;
    assert!(at(&urgent) + 60 < at(&why), "{urgent:?} {why:?}");
    let third = pb::SubmitRunRequest {
        priority: Priority::Low.into(),
        ..run("third", "h100-full")
    };
    submit(&world, &me, third).await;
    let why = of_run(&world, &me, "third").await.unwrap();
    assert_eq!(why.priority.as_ref().unwrap().ahead, 2);
    assert!(
        !why.sooner
            .iter()
            .any(|sooner| sooner.kind() == ChangeKind::Priority),
        "as normal it would be the youngest of its class still: {:?}",
        why.sooner
    );
    let young = submit(&world, &me, run("young", "h100-full")).await;
    let why = of_run(&world, &me, &young.id).await.unwrap();
    let raised = why
        .sooner
        .iter()
        .find(|sooner| sooner.kind() == ChangeKind::Priority);
    let raised = raised.unwrap_or_else(|| panic!("{:?}", why.sooner));
    assert_eq!(raised.priority(), Priority::High);
    assert!(raised.start_at.unwrap().seconds + 60 <= at(&why));
}

async fn behind_a_nearer_deadline(database: Database) {
    let world = full(database).await;
    let me = ada();
    submit(&world, &me, run("first", "h100-full")).await;
    let now = cnlab_service::Runtime::system().clock.now();
    let promised = pb::SubmitRunRequest {
        deadline: Some(encode_timestamp(now.plus(Duration::from_secs(3 * 3_600)))),
        ..run("promised", "h100-full")
    };
    submit(&world, &me, promised).await;
    let why = of_run(&world, &me, "first").await.unwrap();
    let deadline = why.deadline.as_ref().unwrap();
    assert_eq!(deadline.ahead, 1);
    assert_eq!(deadline.text, "none; 1 with a nearer one");
    let promised = of_run(&world, &me, "promised").await.unwrap();
    let deadline = promised.deadline.as_ref().unwrap();
    assert!(deadline.guaranteed && deadline.deadline.is_some());
    assert!(
        deadline.text.starts_with("in 180 min, guaranteed, "),
        "{}",
        deadline.text
    );
    assert!(seconds(&promised, deadline.expected_end) <= 3 * 3_600);
    assert_eq!(promised.start.unwrap().origin(), StartOrigin::Guaranteed);
    // One that cannot be met, and was accepted as it is, promises nothing.
    let late = pb::SubmitRunRequest {
        deadline: Some(encode_timestamp(now.plus(Duration::from_secs(600)))),
        on_late: OnLate::Accept.into(),
        ..run("late", "h100-full")
    };
    submit(&world, &me, late).await;
    let late = of_run(&world, &me, "late").await.unwrap();
    let deadline = late.deadline.as_ref().unwrap();
    assert!(!deadline.guaranteed);
    assert!(
        deadline.text.starts_with("in 10 min, missed by "),
        "{}",
        deadline.text
    );

    let all = queue(&world, &me, pb::ListQueueRequest::default())
        .await
        .unwrap();
    let shown: Vec<_> = all
        .entries
        .iter()
        .map(|entry| {
            (
                entry.position,
                entry.name.as_str(),
                entry.deadline_guaranteed,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (1, "promised", true),
            (2, "first", false),
            (3, "late", false)
        ]
    );
}

/// Nothing of Ada's is in what Bob is told.
fn tells_nothing_of_ada(told: &impl std::fmt::Debug, ids: &[&str]) {
    let told = format!("{told:?}");
    for secret in ["ada", "secret", "usr_", "prj_", "team_"].iter().chain(ids) {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
}

async fn behind_a_team_that_is_owed_more(database: Database) {
    let mut world = full(database).await;
    let (me, bob) = (ada(), bob());
    // The order of teams is taken now and then; a scheduler that begins takes it at once.
    world.stop().await;
    world.start_again().await;
    let first = submit(&world, &me, run("secret", "h100-full")).await;
    let other = submit(&world, &bob, run("training", "h100-full")).await;
    let why = of_run(&world, &me, "secret").await.unwrap();
    let share = why.fair_share.as_ref().unwrap();
    assert_eq!(
        (share.place, share.teams, share.ahead),
        (2, 2, 1),
        "{why:?}"
    );
    assert_eq!(why.queue_depth.as_ref().unwrap().position, 2);
    tells_nothing_of_bob(&why, &other.id);
    let why = of_run(&world, &bob, "training").await.unwrap();
    assert_eq!(why.queue_depth.as_ref().unwrap().position, 1);
    tells_nothing_of_ada(&why, &[&first.id]);
}

fn tells_nothing_of_bob(told: &impl std::fmt::Debug, id: &str) {
    let told = format!("{told:?}");
    assert!(
        !told.contains("bob") && !told.contains("training") && !told.contains(id),
        "{told}"
    );
}

/// Two GPUs of which each is three quarters free.
async fn scattered(database: Database) {
    let (world, clock) = frozen(database).await;
    let me = ada();
    let one = world.node("one", &["H100"]).await;
    for n in 0..4 {
        let name = format!("small-{n}");
        let made = world.create(&me, ask(&name)).await.unwrap();
        launched(&one, &made.id).await;
    }
    let two = world.node("two", &["H100"]).await;
    let fifth = world.create(&me, ask("fifth")).await.unwrap();
    assert_eq!(fifth.node_name, "two");
    launched(&two, &fifth.id).await;
    // What is held is held for hours here.
    pass(&world, &clock, 120, &[&one, &two]).await;
    for n in 0..3 {
        world.stop_server(&me, &format!("small-{n}")).await.unwrap();
    }
    wait_until(GENEROUS, "both to be three quarters free", async || {
        submit_and_cancel(&world, &me).await == 75
    })
    .await
    .unwrap();
    submit(&world, &me, run("wide", "h100-full")).await;
    let why = of_run(&world, &me, "wide").await.unwrap();
    let blocker = why.blocker.as_ref().unwrap();
    assert_eq!(blocker.kind(), BlockerKind::Scattered, "{why:?}");
    assert_eq!(blocker.text, "1.50 GPUs free, but no entire one");
    let gpu = why.gpu_type.as_ref().unwrap();
    assert_eq!((gpu.gpus, gpu.free, gpu.most_free_percent), (2, 0, 75));
    assert_eq!(why.candidates.len(), 2);
    assert!(
        why.candidates
            .iter()
            .all(|one| !one.fits && one.free_percent == 75)
    );
    let [sooner] = why.sooner.as_slice() else {
        panic!("{:?}", why.sooner);
    };
    assert_eq!(
        (sooner.kind(), sooner.profile.as_str()),
        (ChangeKind::SmallerSlice, "h100-25pct")
    );
    assert_eq!(sooner.text, "the smaller slice h100-25pct: now");
}

/// The most that is free on the fuller one of two GPUs, as an explanation says.
async fn submit_and_cancel(world: &World, me: &Caller) -> u32 {
    let probe = submit(world, me, run("probe", "h100-full")).await;
    let why = of_run(world, me, &probe.id).await.unwrap();
    let run = probe.id.clone();
    let request = by(me, pb::CancelRunRequest { run: run.clone() });
    done(world.runs().cancel_run(request).await).unwrap();
    let request = by(me, pb::DeleteRunRequest { run });
    done(world.runs().delete_run(request).await).unwrap();
    let free = why.candidates.iter().map(|one| one.free_percent);
    free.min().unwrap_or(0)
}

async fn a_profile_of_which_no_node_takes_work(database: Database) {
    let world = World::start_with(database, |config| {
        config.grants.ttl = Span(Duration::from_secs(1));
        config.grants.renew_every = Span(Duration::from_millis(100));
    })
    .await;
    let me = ada();
    let kept = world.node("kept", &["H100"]).await;
    let _silent = world.node("silent", &["A100"]).await;
    wait_until(GENEROUS, "one node to fall silent", async || {
        world.renew(&kept).await;
        !world.profile("a100-50pct").await.available_now
    })
    .await
    .unwrap();
    submit(&world, &me, run("tied", "a100-50pct")).await;
    world.renew(&kept).await;
    let why = of_run(&world, &me, "tied").await.unwrap();
    assert_eq!(why.standing(), Standing::NoNode);
    assert_eq!(
        why.text,
        "waits, outside of the queue: waiting for a node with A100 to answer again"
    );
    assert_eq!(why.blocker.as_ref().unwrap().kind(), BlockerKind::NoNode);
    assert_eq!(why.start.unwrap(), pb::ExpectedStart::default());
    assert_eq!(why.queue_depth.as_ref().unwrap().position, 0);
    assert_eq!(why.gpu_type.as_ref().unwrap().gpus, 0);
    assert_eq!(why.data_locality.as_ref().unwrap().nodes, 0);
    assert_eq!(why.candidates[0].text, "the node does not answer");
    let others = why
        .sooner
        .iter()
        .map(|sooner| (sooner.kind(), sooner.profile.as_str()));
    let others: Vec<_> = others.collect();
    assert_eq!(others, [(ChangeKind::OtherGpu, "h100-25pct")]);
    let all = queue(&world, &me, pb::ListQueueRequest::default())
        .await
        .unwrap();
    assert_eq!(all.entries[0].standing(), Standing::NoNode);
    assert_eq!(all.entries[0].position, 0);
}

async fn what_runs(database: Database) {
    let (world, clock) = frozen(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let ready = world.ready(&me, &node, "lab").await;
    let why = of_server(&world, &me, "lab").await.unwrap();
    assert_eq!(why.standing(), Standing::Running);
    assert_eq!(why.workload_id, ready.id);
    let place = why.placement.as_ref().unwrap();
    assert_eq!(
        (place.node_name.as_str(), place.node_id.as_str()),
        ("gpu-box", ready.node_id.as_str())
    );
    assert_eq!(
        place.why,
        "it leaves the most room that others can use: of the GPU 100% were free, 75% are left"
    );
    assert!(place.expected_until.is_some());
    assert!(!why.preemption.as_ref().unwrap().possible);
    assert!(why.blocker.is_none() && why.sooner.is_empty() && why.candidates.is_empty());

    // A run may be stopped for others, after a while.
    let run = submit(&world, &me, run("train", "h100-25pct")).await;
    world
        .moves(&node, &run.id, WorkloadState::Running, "")
        .await;
    let why = of_run(&world, &me, "train").await.unwrap();
    let preemption = why.preemption.as_ref().unwrap();
    assert!(preemption.possible && !preemption.gives_way);
    assert!(seconds(&why, preemption.from) > 500, "{why:?}");
    assert_eq!(
        preemption.text,
        "for work of a higher priority, not before in 10 min"
    );
    // The environment is there now.
    let image = why.data_locality.as_ref().unwrap();
    assert_eq!((image.nodes, image.nodes_with_image), (1, 1));

    // It is over.
    launched(&node, &run.id).await;
    let report = node.moved(&run.id, WorkloadState::Succeeded, "");
    node.state().workloads.remove(&run.id);
    world.report(&node, report).await;
    let over = wait_for(GENEROUS, "the run to be over", async || {
        let why = of_run(&world, &me, "train").await.ok()?;
        (why.standing() == Standing::Over).then_some(why)
    });
    let over = over.await.unwrap();
    assert!(over.text.ends_with(": wants no slice"), "{}", over.text);
    assert!(over.priority.is_none() && over.blocker.is_none());
    pass(&world, &clock, 120, &[&node]).await;
    world.stop_server(&me, "lab").await.unwrap();
    let over = wait_for(GENEROUS, "the server to be over", async || {
        let why = of_server(&world, &me, "lab").await.ok()?;
        (why.standing() == Standing::Over).then_some(why)
    });
    assert_eq!(over.await.unwrap().text, "stopped: wants no slice");

    // Started again it is bound to its volume, and says so.
    let filler = world
        .create(&me, server("filler", "h100-full"))
        .await
        .unwrap();
    launched(&node, &filler.id).await;
    world.start_server(&me, "lab").await.unwrap();
    let why = of_server(&world, &me, "lab").await.unwrap();
    assert_eq!(why.data_locality.as_ref().unwrap().volume_node, "gpu-box");
    let _other = world.node("empty", &["H100"]).await;
    let why = of_server(&world, &me, "lab").await.unwrap();
    assert_eq!(why.standing(), Standing::Waiting);
    let changes: Vec<_> = why.sooner.iter().map(pb::Sooner::kind).collect();
    assert_eq!(changes, [ChangeKind::AnyNode], "{:?}", why.sooner);
}

/// Two GPUs are free, on two nodes.
async fn several_gpus_of_a_node(database: Database) {
    let world = World::start(database).await;
    let me = ada();
    for name in ["one", "two"] {
        let node = world.node(name, &["H100", "H100"]).await;
        // Nothing but this node has room for two.
        let both = pb::SubmitRunRequest {
            gpus: Some(2),
            ..run(&format!("both-{name}"), "h100-full")
        };
        let both = submit(&world, &me, both).await;
        launched(&node, &both.id).await;
    }
    let pair = pb::SubmitRunRequest {
        gpus: Some(2),
        ..run("pair", "h100-full")
    };
    let pair = submit(&world, &me, pair).await;
    let why = of_run(&world, &me, &pair.id).await.unwrap();
    let gpu = why.gpu_type.as_ref().unwrap();
    assert_eq!((gpu.slices, gpu.gpus, gpu.free), (2, 4, 0));
    assert!(
        gpu.text.starts_with("wants 2 × H100; 4 there"),
        "{}",
        gpu.text
    );
    let all = queue(&world, &me, pb::ListQueueRequest::default())
        .await
        .unwrap();
    assert_eq!(
        (all.entries[0].gpus, all.entries[0].name.as_str()),
        (2, "pair")
    );
    let runs = of_run(&world, &me, "both-one").await.unwrap();
    assert_eq!(runs.placement.unwrap().gpu_uuids.len(), 2);

    // A node with one more: one GPU would start now, two do not.
    let _three = world.node("three", &["H100"]).await;
    let why = of_run(&world, &me, &pair.id).await.unwrap();
    assert_eq!(why.standing(), Standing::Waiting);
    let fewer = &why.sooner[0];
    assert_eq!((fewer.kind(), fewer.gpus), (ChangeKind::FewerGpus, 1));
    assert_eq!(fewer.text, "1 GPU: now");
    let best = &why.candidates[0];
    assert_eq!((best.node_name.as_str(), best.fits), ("three", false));
    assert_eq!(best.text, "too few of its node are entirely free");
}

async fn work_of_others_does_not_exist(database: Database) {
    let world = full(database).await;
    let (me, bob) = (ada(), bob());
    let hidden = submit(&world, &me, run("secret", "h100-full")).await;
    let lab = world.create(&me, ask("secret-lab")).await.unwrap();
    let unknown = "run_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    for wanted in [hidden.id.as_str(), "secret", "ada/default/secret", unknown] {
        let refused = of_run(&world, &bob, wanted).await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.reason.as_str()),
            (ErrorKind::NotFound, "RUN_NOT_FOUND")
        );
        assert_eq!(refused.message, format!("there is no run {wanted:?}"));
        assert_eq!(refused.try_this.as_deref(), Some("see `cnlab run list`"));
    }
    for wanted in [
        lab.id.as_str(),
        "secret-lab",
        "srv_01ARZ3NDEKTSV4RRFFQ69G5FAV",
    ] {
        let refused = of_server(&world, &bob, wanted).await.unwrap_err();
        assert_eq!(refused.reason, "SERVER_NOT_FOUND");
        assert_eq!(refused.try_this.as_deref(), Some("see `cnlab server list`"));
    }

    // In the queue they have a size, a class and an age.
    let seen = queue(&world, &bob, pb::ListQueueRequest::default())
        .await
        .unwrap();
    assert_eq!((seen.entries.len(), seen.total), (2, 2));
    for (entry, profile) in seen.entries.iter().zip(["h100-full", "h100-25pct"]) {
        assert_eq!(entry.owner(), QueueOwner::Others);
        assert_eq!(
            (entry.gpu_type.as_str(), entry.profile.as_str()),
            ("H100", profile)
        );
        assert_eq!(entry.priority(), Priority::Normal);
        assert!(entry.queued_at.is_some());
        let bare = pb::QueueEntry {
            position: entry.position,
            gpu_type: entry.gpu_type.clone(),
            profile: entry.profile.clone(),
            gpus: 1,
            priority: entry.priority,
            queued_at: entry.queued_at,
            standing: entry.standing,
            owner: entry.owner,
            ..pb::QueueEntry::default()
        };
        assert_eq!(*entry, bare);
    }
    tells_nothing_of_ada(&seen, &[&hidden.id, &lab.id]);
    // Somebody of the same team who may not use the project is told that it is the team's.
    let mate = Caller {
        team_id: me.team_id,
        ..person(3, &["eve/default"])
    };
    let seen = queue(&world, &mate, pb::ListQueueRequest::default())
        .await
        .unwrap();
    assert!(
        seen.entries
            .iter()
            .all(|entry| entry.owner() == QueueOwner::YourTeam)
    );
    tells_nothing_of_ada(&seen, &[&hidden.id, &lab.id]);
    // Nobody at all is told nothing.
    let refused = done(
        world
            .queue()
            .list_queue(pb::ListQueueRequest::default())
            .await,
    );
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Unauthenticated);
}

async fn the_queue_in_pages(database: Database) {
    let world = full(database).await;
    let me = ada();
    for n in 0..3 {
        submit(&world, &me, run(&format!("whole-{n}"), "h100-full")).await;
    }
    submit(&world, &me, run("quarter", "h100-25pct")).await;
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let ask = pb::ListQueueRequest {
            page_size: 3,
            page_token,
            ..pb::ListQueueRequest::default()
        };
        let page = queue(&world, &me, ask).await.unwrap();
        assert_eq!(page.total, 4);
        for entry in page.entries {
            assert_eq!(entry.owner(), QueueOwner::Yours);
            let why = entry.explanation.unwrap();
            assert_eq!(why.queue_depth.unwrap().position, entry.position);
            assert_eq!(entry.start, why.start);
            names.push((entry.position, entry.name));
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let expected = ["whole-0", "whole-1", "whole-2", "quarter"].map(str::to_owned);
    assert_eq!(names, (1..).zip(expected).collect::<Vec<_>>());

    let of = |profile: &str| pb::ListQueueRequest {
        profile: profile.to_owned(),
        ..pb::ListQueueRequest::default()
    };
    let quarter = queue(&world, &me, of("h100-25pct")).await.unwrap();
    assert_eq!(
        (quarter.total, quarter.entries[0].position),
        (1, 4),
        "its place is the same"
    );
    let refused = queue(&world, &me, of("h100-26pct")).await.unwrap_err();
    assert_eq!(refused.reason, "PROFILE_NOT_FOUND");
    for (page_size, page_token, reason) in [
        (1001, "", "PAGE_SIZE_INVALID"),
        (1, "-1", "PAGE_TOKEN_INVALID"),
        (1, "x", "PAGE_TOKEN_INVALID"),
    ] {
        let ask = pb::ListQueueRequest {
            page_size,
            page_token: page_token.to_owned(),
            ..pb::ListQueueRequest::default()
        };
        assert_eq!(queue(&world, &me, ask).await.unwrap_err().reason, reason);
    }
    // Beyond the end there is nothing.
    let ask = pb::ListQueueRequest {
        page_token: "99".to_owned(),
        ..pb::ListQueueRequest::default()
    };
    let page = queue(&world, &me, ask).await.unwrap();
    assert!(page.entries.is_empty() && page.next_page_token.is_empty());
}

/// Work of a low class is stopped for one of a higher, which goes next meanwhile.
async fn others_make_room(database: Database) {
    let (world, clock) = frozen(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let low = pb::SubmitRunRequest {
        priority: Priority::Low.into(),
        ..run("low", "h100-full")
    };
    let low = submit(&world, &me, low).await;
    world
        .moves(&node, &low.id, WorkloadState::Running, "")
        .await;
    pass(&world, &clock, 11, &[&node]).await;
    node.state().keeps = Some(tonic::Status::unavailable("it takes its time"));
    let high = pb::SubmitRunRequest {
        priority: Priority::High.into(),
        ..run("high", "h100-full")
    };
    submit(&world, &me, high).await;
    let why = of_run(&world, &me, "high").await.unwrap();
    assert_eq!(why.standing(), Standing::MakingRoom, "{why:?}");
    assert_eq!(
        why.blocker.as_ref().unwrap().kind(),
        BlockerKind::MakingRoom
    );
    assert_eq!(
        why.blocker.as_ref().unwrap().text,
        "1 that it goes before are being stopped for it"
    );
    assert_eq!(why.start.unwrap().origin(), StartOrigin::MakingRoom);
    let low = of_run(&world, &me, "low").await.unwrap();
    assert!(low.preemption.as_ref().unwrap().gives_way, "{low:?}");
    let all = queue(&world, &me, pb::ListQueueRequest::default())
        .await
        .unwrap();
    assert_eq!(all.entries[0].standing(), Standing::MakingRoom);
}

on_both!(
    a_full_cell,
    behind_a_run_of_which_nothing_is_known,
    behind_a_higher_priority,
    behind_a_nearer_deadline,
    behind_a_team_that_is_owed_more,
    scattered,
    a_profile_of_which_no_node_takes_work,
    what_runs,
    several_gpus_of_a_node,
    work_of_others_does_not_exist,
    the_queue_in_pages,
    others_make_room,
);
