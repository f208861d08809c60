//! Nodes as operators see them: listed, cordoned, drained and used again.

use std::time::Duration;

use cnlab_db::{Db, DbError};
use cnlab_model::ErrorKind;
use cnlab_proto::{
    convert::decode_blocks,
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, NodeState, RunState, ServerState},
};
use cnlab_service::{Caller, Runtime, Span, status::PublicError};
use cnlab_testkit::{GENEROUS, wait_for, wait_until};
use sea_orm::ConnectionTrait as _;
use tonic::Status;

use crate::{
    on_both,
    peers::PeerNode,
    world::{Database, World, ada, ask, by, done, keyed, launched, person},
};

type Answer<T> = Result<T, Box<PublicError>>;

/// What somebody does with nodes.
struct Nodes<'a>(&'a World, Caller);

impl Nodes<'_> {
    async fn list(&self, page_size: u32, page_token: &str) -> Answer<pb::ListNodesResponse> {
        let request = pb::ListNodesRequest {
            page_size,
            page_token: page_token.to_owned(),
        };
        done(self.0.nodes().list_nodes(by(&self.1, request)).await)
    }

    async fn get(&self, node: &str) -> Answer<pb::Node> {
        let node = node.to_owned();
        done(
            self.0
                .nodes()
                .get_node(by(&self.1, pb::GetNodeRequest { node }))
                .await,
        )
    }

    async fn cordon(&self, node: &str, reason: &str) -> Answer<pb::Node> {
        let request = pb::CordonNodeRequest {
            node: node.to_owned(),
            reason: reason.to_owned(),
        };
        done(self.0.nodes().cordon_node(by(&self.1, request)).await)
    }

    async fn uncordon(&self, node: &str) -> Answer<pb::Node> {
        let node = node.to_owned();
        let request = by(&self.1, pb::UncordonNodeRequest { node });
        done(self.0.nodes().uncordon_node(request).await)
    }

    async fn drain(&self, node: &str, reason: &str) -> Answer<pb::Node> {
        let request = pb::DrainNodeRequest {
            node: node.to_owned(),
            reason: reason.to_owned(),
        };
        done(self.0.nodes().drain_node(by(&self.1, request)).await)
    }

    /// Waits until nothing runs on a node any more.
    async fn until_drained(&self, node: &str) -> pb::Node {
        let reached = wait_for(GENEROUS, "nothing to run there any more", async || {
            let now = self.get(node).await.unwrap();
            (now.running == 0).then_some(now)
        });
        reached.await.unwrap()
    }
}

fn job(name: &str) -> pb::SubmitRunRequest {
    pb::SubmitRunRequest {
        name: name.to_owned(),
        image: "pytorch:2.4-cuda12.4".to_owned(),
        profile: "h100-25pct".to_owned(),
        command: vec!["python".to_owned(), "train.py".to_owned()],
        ..pb::SubmitRunRequest::default()
    }
}

async fn run(world: &World, me: &Caller, run: &str) -> pb::Run {
    let run = run.to_owned();
    let answer = world
        .runs()
        .get_run(by(me, pb::GetRunRequest { run }))
        .await;
    answer.unwrap().into_inner()
}

/// Submits a run and lets its node say that it runs.
async fn running(world: &World, me: &Caller, node: &PeerNode, name: &str) -> pb::Run {
    let run = world.runs().submit_run(by(me, job(name))).await;
    let run = run.unwrap().into_inner();
    world.moves(node, &run.id, WorkloadState::Running, "").await;
    run
}

async fn until_run(world: &World, me: &Caller, wanted: &str, state: RunState) -> pb::Run {
    let mut last = None;
    let what = format!("{wanted} to be {state:?}");
    let reached = wait_for(GENEROUS, &what, async || {
        let now = run(world, me, wanted).await;
        last = Some(now.clone());
        (now.state() == state).then_some(now)
    });
    let reached = reached.await;
    reached.unwrap_or_else(|error| panic!("{error}; it is {last:?}"))
}

/// Waits until a server says that it waits so.
async fn until_it_says(world: &World, me: &Caller, server: &str, detail: &str) {
    let mut last = String::new();
    let said = wait_until(GENEROUS, "it to say what it waits for", async || {
        last = world.get(me, server).await.unwrap().phase_detail;
        last == detail
    });
    let said = said.await;
    said.unwrap_or_else(|error| panic!("{error}: {last:?}"));
}

async fn nodes_are_listed_and_shown(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100", "A100"]).await;
    let (me, other) = (ada(), person(2, &["bob/default"]));
    let server = world.ready(&me, &node, "a").await;
    let foreign = world.create(&other, ask("b")).await.unwrap();
    world
        .moves(&node, &foreign.id, WorkloadState::Ready, "")
        .await;
    let stopped = world.ready(&me, &node, "c").await;
    world.stop_server(&me, "c").await.unwrap();
    world.until(&me, "c", ServerState::Stopped).await;

    let nodes = Nodes(&world, me);
    let shown = nodes.get("gpu-box").await.unwrap();
    assert_eq!(nodes.get(&node.id.to_string()).await.unwrap().id, shown.id);
    assert_eq!((shown.state(), shown.answers), (NodeState::Ready, true));
    assert!(shown.cordon.is_none() && shown.drain_detail.is_empty());
    assert!(shown.last_seen_at.is_some() && shown.last_seen_ago.is_some());
    assert_eq!((shown.cpu_milli, shown.disk_bytes >> 30), (2000, 500));
    let taken: Vec<_> = shown
        .gpus
        .iter()
        .map(|gpu| {
            let facts = gpu.gpu.clone().unwrap();
            let taken = decode_blocks("taken", &gpu.taken).unwrap();
            (facts.gpu_type, facts.simulated, taken.count())
        })
        .collect();
    let wanted = [("H100".to_owned(), true, 50), ("A100".to_owned(), true, 0)];
    assert_eq!(taken, wanted);
    // What belongs to others is counted and not named.
    assert_eq!(shown.running, 2);
    let [mine] = shown.workloads.as_slice() else {
        panic!("{:?}", shown.workloads);
    };
    assert_eq!(
        (mine.id.as_str(), mine.name.as_str()),
        (server.id.as_str(), "a")
    );
    assert_eq!(mine.state_text, "ready");
    assert_eq!(mine.slices, server.grant.unwrap().slices);
    assert_eq!(shown.resting, 1);
    assert_eq!(shown.resting_servers[0].id, stopped.id);
    assert_eq!(shown.resting_servers[0].state_text, "stopped");
    let theirs = Nodes(&world, other).get("gpu-box").await.unwrap();
    assert_eq!((theirs.running, theirs.workloads.len()), (2, 1));
    assert_eq!((theirs.resting, theirs.resting_servers.len()), (1, 0));

    // In the order of their ids, page by page.
    let mut ids = vec![node.id.to_string()];
    for name in ["b-box", "c-box"] {
        ids.push(world.node(name, &[]).await.id.to_string());
    }
    ids.sort();
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = nodes.list(2, &token).await.unwrap();
        assert!(page.nodes.len() <= 2);
        assert!(page.nodes.iter().all(|node| node.workloads.is_empty()));
        seen.extend(page.nodes.into_iter().map(|node| (node.id, node.running)));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let counts = |id: &String| u32::from(*id == node.id.to_string()) * 2;
    let wanted: Vec<_> = ids
        .into_iter()
        .map(|id| (id.clone(), counts(&id)))
        .collect();
    assert_eq!(seen, wanted);
}

async fn a_cordoned_node_gets_nothing_new_and_keeps_what_it_has(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    let nodes = Nodes(&world, me.clone());
    let cordoned = nodes.cordon("gpu-box", "new fans").await.unwrap();
    assert_eq!(cordoned.state(), NodeState::Cordoned);
    let mark = cordoned.cordon.clone().unwrap();
    assert_eq!((mark.reason.as_str(), mark.drain), ("new fans", false));
    assert!(mark.since.is_some());
    assert_eq!(world.get(&me, "a").await.unwrap(), server);
    assert!(!world.profile("h100-25pct").await.available_now);

    let waits = world.create(&me, ask("b")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);
    assert_eq!(
        waits.phase_detail,
        "waiting for a node with H100; gpu-box is cordoned (new fans)"
    );
    assert!(waits.eta.is_none());
    // Again, without and with another reason: the mark is as old as it was.
    let again = nodes.cordon("gpu-box", "").await.unwrap();
    assert_eq!(again.cordon, Some(mark.clone()));
    let again = nodes.cordon("gpu-box", "new disks").await.unwrap();
    let again = again.cordon.unwrap();
    assert_eq!(
        (again.since, again.reason.as_str()),
        (mark.since, "new disks")
    );
    let said = "waiting for a node with H100; gpu-box is cordoned (new disks)";
    until_it_says(&world, &me, "b", said).await;
    // A server whose files lie there waits for this node.
    world.stop_server(&me, "a").await.unwrap();
    world.until(&me, "a", ServerState::Stopped).await;
    let waits = world.start_server(&me, "a").await.unwrap();
    assert_eq!(
        waits.phase_detail,
        "waiting for the node where its files lie; gpu-box is cordoned (new disks)"
    );
    // Elsewhere there is room.
    let other = world.node("other", &["H100"]).await;
    let placed = world.until(&me, "b", ServerState::Provisioning).await;
    assert_eq!(placed.node_id, other.id.to_string());
    assert_eq!(
        world.get(&me, "a").await.unwrap().state(),
        ServerState::Queued
    );

    let free = nodes.uncordon("gpu-box").await.unwrap();
    assert_eq!(free.state(), NodeState::Ready);
    assert!(free.cordon.is_none());
    let back = world.until(&me, "a", ServerState::Provisioning).await;
    assert_eq!(back.node_id, node.id.to_string());
    // One that is not cordoned stays as it is.
    let free = nodes.uncordon("gpu-box").await.unwrap();
    assert_eq!(free.state(), NodeState::Ready);
}

async fn only_an_operator_takes_the_mark_away(database: Database) {
    let mut world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let cordoned = Nodes(&world, me.clone())
        .cordon("gpu-box", "new fans")
        .await
        .unwrap();
    // It restarts, renews, gets another GPU, and so does the scheduler.
    node.reboot();
    world.register(&node, &["H100", "H100"]).await;
    world.renew(&node).await;
    world.stop().await;
    world.start_again().await;
    world.register(&node, &["H100", "H100"]).await;
    let nodes = Nodes(&world, me.clone());
    let now = nodes.get("gpu-box").await.unwrap();
    assert_eq!(
        (now.state(), now.cordon),
        (NodeState::Cordoned, cordoned.cordon)
    );
    let waits = world.create(&me, ask("a")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);
    nodes.uncordon("gpu-box").await.unwrap();
    world.until(&me, "a", ServerState::Provisioning).await;
}

async fn a_drain_ends_what_runs_and_loses_nothing(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    let first = running(&world, &me, &node, "train").await;
    let other = world.node("other", &["H100"]).await;
    let nodes = Nodes(&world, me.clone());
    let draining = nodes.drain("gpu-box", "new fans").await.unwrap();
    assert_eq!(draining.state(), NodeState::Draining);
    assert!(draining.cordon.unwrap().drain);
    assert_eq!(
        draining.drain_detail,
        "waiting for 1 server and 1 run to end"
    );
    let drained = nodes.until_drained("gpu-box").await;
    assert_eq!(drained.state(), NodeState::Cordoned);
    assert!(drained.drain_detail.is_empty() && drained.cordon.unwrap().drain);
    assert!(drained.gpus[0].taken.is_empty());

    // The run begins anew elsewhere, and says why.
    launched(&other, &first.id).await;
    let again = until_run(&world, &me, "train", RunState::Provisioning).await;
    assert_eq!((again.attempt, again.node_name.as_str()), (2, "other"));
    assert_eq!(
        again.requeued_because,
        "the node gpu-box was drained: new fans"
    );
    // The server is stopped, says why, and its files are where they were.
    let stopped = world.until(&me, "a", ServerState::Stopped).await;
    let failure = stopped.failure.clone().unwrap();
    assert_eq!(failure.reason, "NODE_DRAINED");
    assert_eq!(failure.message, "the node gpu-box was drained");
    assert_eq!(failure.cause, "new fans");
    assert!(failure.try_this.contains("cnlab server start"));
    assert_eq!(stopped.volume_id, server.volume_id);
    assert!(!node.state().removed_volumes.contains(&server.volume_id));
    assert_eq!(drained.resting_servers[0].id, server.id);
    assert_eq!(
        drained.resting_servers[0].state_text,
        "stopped (NODE_DRAINED)"
    );
    // It does not begin by itself when the node is used again, and begins there when asked.
    nodes.uncordon("gpu-box").await.unwrap();
    let now = world.get(&me, "a").await.unwrap();
    assert_eq!(now.state(), ServerState::Stopped);
    let back = world.start_server(&me, "a").await.unwrap();
    assert_eq!(back.state(), ServerState::Provisioning);
    assert_eq!(back.node_id, node.id.to_string());
    assert_eq!(back.volume_id, server.volume_id);
    assert!(back.failure.is_none());
    launched(&node, &server.id).await;
}

async fn a_drain_may_be_repeated(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.ready(&me, &node, "a").await;
    let by_user = world.ready(&me, &node, "b").await;
    running(&world, &me, &node, "train").await;
    // The node does not let go at once.
    node.state().keeps = Some(Status::unavailable("not now"));
    world.stop_server(&me, "b").await.unwrap();
    let nodes = Nodes(&world, me.clone());
    let first = nodes.drain("gpu-box", "").await.unwrap();
    assert_eq!(first.drain_detail, "waiting for 2 servers and 1 run to end");
    let again = nodes.drain("gpu-box", "new fans").await.unwrap();
    assert_eq!(again.state(), NodeState::Draining);
    assert_eq!(again.cordon.unwrap().reason, "new fans");
    // A cordon takes nothing of the drain back.
    assert!(
        nodes
            .cordon("gpu-box", "")
            .await
            .unwrap()
            .cordon
            .unwrap()
            .drain
    );
    let now = world.get(&me, "a").await.unwrap();
    assert_eq!(now.state(), ServerState::Stopping);
    node.state().keeps = None;
    nodes.until_drained("gpu-box").await;
    let waits = until_run(&world, &me, "train", RunState::Queued).await;
    assert_eq!(waits.attempt, 2);
    // What its user stopped says nothing of a drain.
    let stopped = world.until(&me, &by_user.id, ServerState::Stopped).await;
    assert!(stopped.failure.is_none());
}

async fn a_drain_of_an_empty_node_is_done(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let nodes = Nodes(&world, ada());
    let drained = nodes.drain("gpu-box", "").await.unwrap();
    assert_eq!(drained.state(), NodeState::Cordoned);
    assert!(drained.drain_detail.is_empty() && drained.running == 0);
    // One request under one key is done once, whatever came after it.
    let request = || {
        let node = "gpu-box".to_owned();
        keyed(&nodes.1, "k", pb::UncordonNodeRequest { node })
    };
    let free = done(world.nodes().uncordon_node(request()).await).unwrap();
    nodes.cordon("gpu-box", "").await.unwrap();
    let again = done(world.nodes().uncordon_node(request()).await).unwrap();
    assert_eq!(again, free);
    let now = nodes.get(&node.id.to_string()).await.unwrap();
    assert_eq!(now.state(), NodeState::Cordoned);
}

async fn a_drain_of_a_silent_node_says_what_it_waits_for(database: Database) {
    let world = World::start_with(database, |config| {
        config.grants.ttl = Span(Duration::from_millis(500));
        config.grants.renew_every = Span(Duration::from_millis(100));
    })
    .await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let server = world.ready(&me, &node, "a").await;
    running(&world, &me, &node, "train").await;
    node.down();
    let nodes = Nodes(&world, me.clone());
    wait_until(GENEROUS, "the node to count as silent", async || {
        nodes.get("gpu-box").await.unwrap().state() == NodeState::Silent
    })
    .await
    .unwrap();
    nodes.drain("gpu-box", "").await.unwrap();
    // The grant of the run expires; the server may still run there, and its slice is nobody else's.
    until_run(&world, &me, "train", RunState::Queued).await;
    let waits = nodes.get("gpu-box").await.unwrap();
    assert_eq!((waits.state(), waits.answers), (NodeState::Draining, false));
    assert_eq!(
        waits.drain_detail,
        "waiting for gpu-box to answer again; 1 server may still run there"
    );
    let stopping = world.get(&me, "a").await.unwrap();
    assert_eq!(stopping.state(), ServerState::Stopping);
    node.up();
    world.renew(&node).await;
    nodes.until_drained("gpu-box").await;
    let stopped = world.until(&me, "a", ServerState::Stopped).await;
    assert_eq!(stopped.failure.unwrap().reason, "NODE_DRAINED");
    assert_eq!(stopped.volume_id, server.volume_id);
}

async fn bad_input_is_refused(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let nodes = Nodes(&world, ada());
    let unknown = nodes.get("gpu-bx").await.unwrap_err();
    assert_eq!(
        (unknown.kind, unknown.reason.as_str()),
        (ErrorKind::NotFound, "NODE_NOT_FOUND")
    );
    assert_eq!(unknown.try_this.as_deref(), Some("did you mean gpu-box"));
    assert_eq!(unknown.field.as_deref(), Some("node"));
    for wanted in ["", "node_00000000000000000000000001", "nothing like it"] {
        let unknown = nodes.drain(wanted, "").await.unwrap_err();
        assert_eq!(unknown.reason, "NODE_NOT_FOUND");
        assert_eq!(unknown.try_this.as_deref(), Some("see `cnlab node list`"));
    }
    for reason in ["two\nlines", "\u{1b}[2J", &"x".repeat(501)] {
        for refused in [
            nodes.cordon("gpu-box", reason).await.unwrap_err(),
            nodes.drain("gpu-box", reason).await.unwrap_err(),
        ] {
            assert_eq!(refused.reason, "INVALID_FIELD");
            assert_eq!(refused.field.as_deref(), Some("reason"));
        }
    }
    assert_eq!(nodes.get("gpu-box").await.unwrap().cordon, None);
    assert_eq!(
        nodes.list(1001, "").await.unwrap_err().reason,
        "PAGE_SIZE_INVALID"
    );
    assert_eq!(
        nodes.list(0, "x").await.unwrap_err().reason,
        "PAGE_TOKEN_INVALID"
    );
    // Nobody asks on behalf of nobody.
    let nobody = world
        .nodes()
        .list_nodes(pb::ListNodesRequest::default())
        .await;
    assert_eq!(done(nobody).unwrap_err().reason, "CALLER_MISSING");
    // A machine that lost its identity comes back as another node of the same name.
    let twin = world.node("gpu-box", &[]).await;
    let ambiguous = nodes.cordon("gpu-box", "").await.unwrap_err();
    assert_eq!(ambiguous.reason, "NODE_AMBIGUOUS");
    for id in [node.id, twin.id] {
        assert!(ambiguous.message.contains(&id.to_string()), "{ambiguous:?}");
    }
    nodes.cordon(&twin.id.to_string(), "").await.unwrap();
}

/// A decision that was made before the mark is not carried out after it: the mark is in the
/// rows here before the owner of the cell hears of it.
async fn what_was_decided_before_a_mark_is_not_granted_after_it(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.ready(&me, &node, "a").await;
    let db = Db::connect(&world.config.database).await.unwrap();
    let mark = "UPDATE nodes SET cordoned_at = 1, cordon_reason = 'new fans'";
    db.write(|tx| async move {
        tx.execute_unprepared(mark).await.map_err(DbError::from)?;
        Ok::<_, DbError>(())
    })
    .await
    .unwrap();
    let waits = world.create(&me, ask("b")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);
    assert_eq!(
        waits.phase_detail,
        "waiting for a node with H100; gpu-box is cordoned (new fans)"
    );
    let now = Nodes(&world, me.clone()).get("gpu-box").await.unwrap();
    assert_eq!((now.state(), now.running), (NodeState::Cordoned, 1));
    Nodes(&world, me.clone()).uncordon("gpu-box").await.unwrap();
    world.until(&me, "b", ServerState::Provisioning).await;
}

/// However a drain falls among those who come at the same time: whoever got a slice before it is
/// stopped, everybody else waits, and nobody is refused.
async fn a_drain_amid_arrivals_leaves_nothing_behind(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100", "H100", "H100"]).await;
    let tasks = Runtime::system().tasks;
    let arrive = |n: u128| {
        let (mut servers, me) = (world.servers(), person(n + 10, &["school/course"]));
        let request = ask(&format!("student-{n}"));
        tasks.spawn("create", async move {
            done(servers.create_server(by(&me, request)).await).unwrap()
        })
    };
    let mut coming: Vec<_> = (0..4).map(arrive).collect();
    let drain = {
        let mut nodes = world.nodes();
        let request = pb::DrainNodeRequest {
            node: "gpu-box".to_owned(),
            reason: String::new(),
        };
        tasks.spawn("drain", async move {
            done(nodes.drain_node(by(&ada(), request)).await).unwrap()
        })
    };
    coming.extend((4..8).map(arrive));
    drain.await.unwrap();
    // These come when it is over.
    coming.extend((8..10).map(arrive));
    let mut all = Vec::new();
    for one in coming {
        all.push(one.await.unwrap());
    }
    assert!(
        all[8..]
            .iter()
            .all(|one| one.state() == ServerState::Queued)
    );
    let nodes = Nodes(&world, ada());
    let drained = nodes.until_drained("gpu-box").await;
    assert!(drained.gpus.iter().all(|gpu| gpu.taken.is_empty()));
    let me = person(10, &["school/course"]);
    for one in &all {
        let now = world.get(&me, &one.id).await.unwrap();
        let why = now.failure.as_ref().map(|failure| failure.reason.as_str());
        match (one.grant.is_some(), now.state()) {
            (true, ServerState::Stopped) => assert_eq!(why, Some("NODE_DRAINED")),
            (false, ServerState::Queued) => assert_eq!(why, None),
            other => panic!("{other:?}: {now:?}"),
        }
    }
    assert!(node.state().workloads.is_empty());
}

async fn a_drained_run_keeps_its_place(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let whole = |name: &str| pb::SubmitRunRequest {
        profile: "h100-full".to_owned(),
        ..job(name)
    };
    let submit = async |name: &str| {
        let run = world.runs().submit_run(by(&me, whole(name))).await;
        run.unwrap().into_inner()
    };
    let first = submit("first").await;
    world
        .moves(&node, &first.id, WorkloadState::Running, "")
        .await;
    submit("second").await;
    let nodes = Nodes(&world, me.clone());
    nodes.drain("gpu-box", "").await.unwrap();
    nodes.until_drained("gpu-box").await;
    let waits = until_run(&world, &me, "first", RunState::Queued).await;
    assert_eq!((waits.attempt, waits.created_at), (2, first.created_at));
    // Neither of them goes to the drained node, whatever else happens to it.
    world.register(&node, &["H100"]).await;
    world.renew(&node).await;
    assert!(!world.profile("h100-full").await.available_now);
    for name in ["first", "second"] {
        let waits = run(&world, &me, name).await;
        assert_eq!(waits.state(), RunState::Queued);
    }
    nodes.uncordon("gpu-box").await.unwrap();
    until_run(&world, &me, "first", RunState::Provisioning).await;
    let waits = run(&world, &me, "second").await;
    assert_eq!(waits.state(), RunState::Queued);
}

async fn a_run_that_ends_before_a_drain_reaches_it_has_ended(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let train = running(&world, &me, &node, "train").await;
    node.state().keeps = Some(Status::unavailable("not now"));
    let nodes = Nodes(&world, me.clone());
    let draining = nodes.drain("gpu-box", "new fans").await.unwrap();
    assert_eq!(draining.drain_detail, "waiting for 1 run to end");
    // The stop is on its way; the command ends first.
    wait_until(GENEROUS, "the stop to be tried", async || {
        node.state().kept > 0
    })
    .await
    .unwrap();
    let mut report = node.moved(&train.id, WorkloadState::Succeeded, "");
    report.exit_code = Some(0);
    node.state().workloads.remove(&train.id);
    world.report(&node, report).await;
    node.state().keeps = None;
    let drained = nodes.until_drained("gpu-box").await;
    assert_eq!(drained.state(), NodeState::Cordoned);
    let ended = run(&world, &me, "train").await;
    assert_eq!((ended.state(), ended.attempt), (RunState::Succeeded, 1));
    assert!(ended.requeued_because.is_empty());
    // The stop finds nothing there, and changes nothing.
    nodes.uncordon("gpu-box").await.unwrap();
    let next = running(&world, &me, &node, "next").await;
    assert_eq!(next.attempt, 1);
    assert_eq!(run(&world, &me, "train").await.state(), RunState::Succeeded);
}

on_both!(
    nodes_are_listed_and_shown,
    a_cordoned_node_gets_nothing_new_and_keeps_what_it_has,
    only_an_operator_takes_the_mark_away,
    a_drain_ends_what_runs_and_loses_nothing,
    a_drain_may_be_repeated,
    a_drain_of_an_empty_node_is_done,
    a_drain_of_a_silent_node_says_what_it_waits_for,
    bad_input_is_refused,
    what_was_decided_before_a_mark_is_not_granted_after_it,
    a_drain_amid_arrivals_leaves_nothing_behind,
    a_drained_run_keeps_its_place,
    a_run_that_ends_before_a_drain_reaches_it_has_ended,
);
