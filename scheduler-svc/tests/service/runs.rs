//! Runs: from the request to the end of the command, and what interrupts that.

mod losses;

use std::time::Duration;

use cnlab_model::{ErrorKind, Timestamp};
use cnlab_proto::{
    convert::encode_timestamp,
    node::v1::{EndCause, Workload, WorkloadState},
    scheduler::v1::{
        self as pb, OnLate, Priority, RunKind, RunPhase, RunState, ServerState,
        run_service_client::RunServiceClient,
    },
};
use cnlab_service::{
    Caller, Span,
    channel::UpstreamChannel,
    runtime::{Clock as _, TestClock},
    status::{self, PublicError},
};
use cnlab_testkit::{GENEROUS, wait_for, wait_until};
use tokio_stream::StreamExt as _;

use crate::{
    on_both,
    peers::PeerNode,
    world::{Database, World, ada, ask, by, done, keyed, launched, person},
};

/// A short command on a quarter of an H100.
pub(crate) fn job(name: &str) -> pb::SubmitRunRequest {
    pb::SubmitRunRequest {
        name: name.to_owned(),
        image: "pytorch:2.4-cuda12.4".to_owned(),
        profile: "h100-25pct".to_owned(),
        command: vec!["python".to_owned(), "train.py".to_owned()],
        ..pb::SubmitRunRequest::default()
    }
}

fn whole(name: &str) -> pb::SubmitRunRequest {
    pb::SubmitRunRequest {
        profile: "h100-full".to_owned(),
        ..job(name)
    }
}

/// So many seconds from now, by the clock of the machine.
pub(crate) fn in_seconds(seconds: i64) -> prost_types::Timestamp {
    let now = cnlab_service::Runtime::system().clock.now();
    let mut at = encode_timestamp(now);
    at.seconds += seconds;
    at
}

pub(crate) struct Runs<'a>(pub(crate) &'a World, pub(crate) Caller);

impl Runs<'_> {
    fn client(&self) -> RunServiceClient<UpstreamChannel> {
        self.0.runs()
    }

    pub(crate) async fn submit(
        &self,
        ask: pb::SubmitRunRequest,
    ) -> Result<pb::Run, Box<PublicError>> {
        done(self.client().submit_run(by(&self.1, ask)).await)
    }

    pub(crate) async fn get(&self, run: &str) -> Result<pb::Run, Box<PublicError>> {
        let request = pb::GetRunRequest {
            run: run.to_owned(),
        };
        done(self.client().get_run(by(&self.1, request)).await)
    }

    pub(crate) async fn cancel(&self, run: &str) -> Result<pb::Run, Box<PublicError>> {
        let request = pb::CancelRunRequest {
            run: run.to_owned(),
        };
        done(self.client().cancel_run(by(&self.1, request)).await)
    }

    pub(crate) async fn delete(&self, run: &str) -> Result<pb::Run, Box<PublicError>> {
        let request = pb::DeleteRunRequest {
            run: run.to_owned(),
        };
        done(self.client().delete_run(by(&self.1, request)).await)
    }

    pub(crate) async fn until(&self, run: &str, state: RunState) -> pb::Run {
        let mut last = None;
        let what = format!("{run} to be {state:?}");
        let reached = wait_for(GENEROUS, &what, async || {
            let now = self.get(run).await.unwrap();
            last = Some(now.clone());
            (now.state() == state).then_some(now)
        });
        let reached = reached.await;
        reached.unwrap_or_else(|error| panic!("{error}; it is {last:?}"))
    }

    /// Lets the node say that a run runs.
    pub(crate) async fn running(&self, node: &PeerNode, ask: pb::SubmitRunRequest) -> pb::Run {
        let run = self.submit(ask).await.unwrap();
        self.0
            .moves(node, &run.id, WorkloadState::Running, "")
            .await;
        self.until(&run.id, RunState::Running).await
    }

    /// Lets the node say how a run ended.
    pub(crate) async fn ends(
        &self,
        node: &PeerNode,
        run: &pb::Run,
        state: WorkloadState,
        more: impl FnOnce(&mut Workload),
    ) {
        launched(node, &run.id).await;
        let mut report = node.moved(&run.id, state, "");
        more(&mut report);
        node.state().workloads.remove(&run.id);
        self.0.report(node, report).await;
    }
}

async fn a_run_from_its_request_to_its_end(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    let ask = pb::SubmitRunRequest {
        priority: Priority::High.into(),
        run_kind: RunKind::Evaluation.into(),
        max_runtime: Some(prost_types::Duration {
            seconds: 90,
            nanos: 0,
        }),
        ..job("train")
    };
    let run = runs.submit(ask.clone()).await.unwrap();
    assert_eq!(run.state(), RunState::Provisioning);
    assert_eq!(run.phase(), RunPhase::SendingToNode);
    assert!(run.id.starts_with("run_") && run.eta.is_some());
    assert_eq!((run.attempt, run.storage_bytes), (1, 1_000_000_000));
    assert_eq!(
        (run.priority(), run.run_kind()),
        (Priority::High, RunKind::Evaluation)
    );
    let watched = pb::WatchRunRequest {
        run: "train".to_owned(),
    };
    let watched = runs.client().watch_run(by(&runs.1, watched)).await;
    let mut watched = watched.unwrap().into_inner();
    launched(&node, &run.id).await;
    let launch = node.state().launches[0].clone();
    let command = launch.command.unwrap();
    assert_eq!(command.argv, ask.command);
    assert_eq!(command.max_runtime, ask.max_runtime);
    assert_eq!(launch.display_name, "train");

    world
        .moves(&node, &run.id, WorkloadState::BuildingEnvironment, "numpy")
        .await;
    let building = runs.get("train").await.unwrap();
    assert_eq!(building.phase(), RunPhase::BuildingEnvironment);
    assert_eq!(building.phase_detail, "numpy");
    world
        .moves(&node, &run.id, WorkloadState::Running, "")
        .await;
    let running = runs.until("train", RunState::Running).await;
    assert!(running.started_at.is_some() && running.ended_at.is_none());
    // What the node repeats is wanted.
    assert_eq!(world.renew(&node).await, pb::RenewGrantsResponse::default());

    runs.ends(&node, &run, WorkloadState::Succeeded, |said| {
        said.exit_code = Some(0);
    })
    .await;
    let ended = runs.until("train", RunState::Succeeded).await;
    assert_eq!((ended.exit_code, ended.signal), (Some(0), None));
    assert!(ended.ended_at.is_some() && ended.grant.is_none() && ended.failure.is_none());
    wait_until(GENEROUS, "the usage to be closed", async || {
        let intervals = world.billing.intervals();
        intervals.values().any(|used| {
            used.workload_id == run.id && used.project == "ada/default" && used.ended_at.is_some()
        })
    })
    .await
    .unwrap();
    assert!(world.profile("h100-full").await.available_now);
    // A late report of what is over changes nothing, nor does a cancellation.
    let mut late = Workload {
        workload_id: run.id.clone(),
        fence: running.grant.unwrap().fence,
        sequence: 99,
        ..Workload::default()
    };
    late.set_state(WorkloadState::Failed);
    world.report(&node, late).await;
    assert_eq!(runs.cancel("train").await.unwrap(), ended);

    let mut seen = Vec::new();
    while seen.last() != Some(&RunState::Succeeded) {
        seen.push(watched.next().await.unwrap().unwrap().state());
    }
    assert!(seen.contains(&RunState::Running), "{seen:?}");

    node.state().logs = vec![b"epoch 1\n".to_vec()];
    let logs = pb::GetRunLogsRequest {
        run: "train".to_owned(),
        ..pb::GetRunLogsRequest::default()
    };
    let logs = runs.client().get_run_logs(by(&runs.1, logs)).await;
    let logs: Vec<_> = logs.unwrap().into_inner().collect().await;
    assert_eq!(logs[0].as_ref().unwrap().text, "epoch 1\n");

    // The name is free when it is gone with its volume.
    let taken = runs.submit(job("train")).await.unwrap_err();
    assert_eq!(taken.reason, "RUN_NAME_TAKEN");
    assert_eq!(
        runs.delete("train").await.unwrap().state(),
        RunState::Deleting
    );
    wait_until(GENEROUS, "the run to be gone", async || {
        runs.get("train").await.is_err()
    })
    .await
    .unwrap();
    assert_eq!(node.state().removed_volumes, [ended.volume_id]);
    let again = runs.submit(job("train")).await.unwrap();
    assert_ne!(again.id, run.id);
}

async fn how_a_run_ends_is_told_apart(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());

    let run = runs.running(&node, job("code")).await;
    runs.ends(&node, &run, WorkloadState::Failed, |said| {
        said.exit_code = Some(3);
        said.failure = Some(cnlab_proto::model::v1::Failure {
            reason: "COMMAND_FAILED".to_owned(),
            message: "the command ended with exit code 3".to_owned(),
            ..cnlab_proto::model::v1::Failure::default()
        });
    })
    .await;
    let failed = runs.until("code", RunState::Failed).await;
    assert_eq!(failed.exit_code, Some(3));
    assert_eq!(failed.failure.unwrap().reason, "COMMAND_FAILED");

    let run = runs.running(&node, job("signal")).await;
    runs.ends(&node, &run, WorkloadState::Failed, |said| {
        said.signal = Some(9);
    })
    .await;
    let failed = runs.until("signal", RunState::Failed).await;
    assert_eq!((failed.exit_code, failed.signal), (None, Some(9)));

    let run = runs.running(&node, job("long")).await;
    runs.ends(&node, &run, WorkloadState::Failed, |said| {
        said.set_end_cause(EndCause::MaxRuntime);
    })
    .await;
    let late = runs.until("long", RunState::TimedOut).await;
    assert!(late.failure.is_some() && late.attempt == 1);

    // One that ends before anybody heard that it began.
    let run = runs.submit(job("quick")).await.unwrap();
    runs.ends(&node, &run, WorkloadState::Succeeded, |said| {
        said.exit_code = Some(0);
    })
    .await;
    let quick = runs.until("quick", RunState::Succeeded).await;
    assert!(quick.started_at.is_some());

    // A node that refuses for good.
    node.state().refuse = Some(status::plain(ErrorKind::Exhausted, "DISK_FULL", "no", None));
    let run = runs.submit(job("refused")).await.unwrap();
    let refused = runs.until("refused", RunState::Failed).await;
    assert_eq!(refused.failure.unwrap().reason, "DISK_FULL");
    assert!(run.grant.is_some() && refused.grant.is_none());
}

async fn cancelling_works_whenever_it_comes(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    let running = runs.running(&node, whole("running")).await;
    let waiting = runs.submit(whole("waiting")).await.unwrap();
    assert_eq!(waiting.state(), RunState::Queued);
    assert_eq!(waiting.phase(), RunPhase::WaitingForSlice);
    assert!(
        waiting.phase_detail.contains("at most 0% is free"),
        "{waiting:?}"
    );
    let nothing = pb::GetRunLogsRequest {
        run: "waiting".to_owned(),
        ..pb::GetRunLogsRequest::default()
    };
    let nothing = done(runs.client().get_run_logs(by(&runs.1, nothing)).await);
    assert_eq!(nothing.unwrap_err().reason, "RUN_NEVER_RAN");
    let cancelled = runs.cancel("waiting").await.unwrap();
    assert_eq!(cancelled.state(), RunState::Cancelled);
    assert!(cancelled.ended_at.is_some());

    let next = runs.submit(whole("next")).await.unwrap();
    assert_eq!(next.state(), RunState::Queued);
    let cancelling = runs.cancel("running").await.unwrap();
    assert_eq!(cancelling.state(), RunState::Cancelling);
    let cancelled = runs.until("running", RunState::Cancelled).await;
    assert!(cancelled.failure.is_none() && cancelled.requeued_because.is_empty());
    assert!(!node.state().workloads.contains_key(&running.id));
    // Its slice is somebody else's now.
    runs.until("next", RunState::Provisioning).await;

    // Deleting what runs ends it first; its volume goes last.
    launched(&node, &next.id).await;
    runs.delete("next").await.unwrap();
    wait_until(GENEROUS, "the run to be gone", async || {
        runs.get("next").await.is_err()
    })
    .await
    .unwrap();
    assert!(node.state().removed_volumes.contains(&next.volume_id));
    // What never ran is gone at once.
    let blocker = runs.running(&node, whole("blocker")).await;
    runs.submit(whole("never")).await.unwrap();
    assert_eq!(
        runs.delete("never").await.unwrap().state(),
        RunState::Deleted
    );
    let refused = runs.cancel("never").await.unwrap_err();
    assert_eq!(refused.reason, "RUN_NOT_FOUND");
    drop(blocker);
}

async fn bad_requests_are_refused_by_name(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    runs.running(&node, whole("blocker")).await;
    type Change = fn(&mut pb::SubmitRunRequest);
    let cases: Vec<(&str, &str, &str, Change)> = vec![
        ("COMMAND_INVALID", "command", "names no program", |ask| {
            ask.command.clear();
        }),
        ("COMMAND_INVALID", "command", "names no program", |ask| {
            ask.command = vec![" ".to_owned(), "x".to_owned()];
        }),
        ("COMMAND_INVALID", "command", "zero byte", |ask| {
            ask.command.push("a\0b".to_owned());
        }),
        ("COMMAND_INVALID", "command", "64 KiB", |ask| {
            ask.command.push("x".repeat(65_536));
        }),
        ("DEADLINE_PAST", "deadline", "passed already", |ask| {
            ask.deadline = Some(in_seconds(-1));
        }),
        (
            "DEADLINE_UNREACHABLE",
            "deadline",
            "expected to begin in about",
            |ask| {
                ask.deadline = Some(in_seconds(600));
            },
        ),
        (
            "MAX_RUNTIME_INVALID",
            "max_runtime",
            "longer than nothing",
            |ask| {
                ask.max_runtime = Some(prost_types::Duration::default());
            },
        ),
        (
            "MAX_RUNTIME_INVALID",
            "max_runtime",
            "longer than nothing",
            |ask| {
                ask.max_runtime = Some(prost_types::Duration {
                    seconds: -5,
                    nanos: 0,
                });
            },
        ),
        ("PROFILE_NOT_FOUND", "profile", "h100-24pct", |ask| {
            ask.profile = "h100-24pct".to_owned();
        }),
        ("IMAGE_NOT_FOUND", "image", "pytorch:2.4-cuda12.1", |ask| {
            ask.image = "pytorch:2.4-cuda12.1".to_owned();
        }),
        ("RUN_NAME_INVALID", "name", "'/' at position 2", |ask| {
            ask.name = "a/b".to_owned();
        }),
        ("PROJECT_NOT_FOUND", "project", "bob/secret", |ask| {
            ask.project = "bob/secret".to_owned();
        }),
        ("INVALID_FIELD", "priority", "7", |ask| ask.priority = 7),
        ("INVALID_FIELD", "run_kind", "-1", |ask| ask.run_kind = -1),
        ("INVALID_FIELD", "on_late", "9", |ask| ask.on_late = 9),
        ("PROFILE_UNAVAILABLE", "profile", "A100", |ask| {
            ask.profile = "a100-50pct".to_owned();
        }),
        (
            "STORAGE_TOO_LARGE",
            "storage_bytes",
            "largest disk",
            |ask| {
                ask.storage_bytes = 1 << 60;
            },
        ),
    ];
    for (reason, field, says, change) in cases {
        let mut ask = whole("wrong");
        change(&mut ask);
        let refused = runs.submit(ask).await.unwrap_err();
        assert_eq!(refused.reason, reason, "{refused:?}");
        assert_eq!(refused.field.as_deref(), Some(field), "{refused:?}");
        assert!(refused.message.contains(says), "{refused:?}");
        assert!(
            refused.try_this.is_some() || reason == "INVALID_FIELD",
            "{refused:?}"
        );
    }
    let near = runs
        .submit(pb::SubmitRunRequest {
            profile: "h100-24pct".to_owned(),
            ..job("near")
        })
        .await
        .unwrap_err();
    assert!(near.try_this.unwrap().contains("did you mean h100-25pct"));
    // Late on purpose.
    let late = pb::SubmitRunRequest {
        deadline: Some(in_seconds(600)),
        on_late: OnLate::Accept.into(),
        ..whole("late")
    };
    let late = runs.submit(late).await.unwrap();
    assert_eq!(late.state(), RunState::Queued);
    // A name is made for who gives none, and near ones are named.
    let unnamed = runs.submit(whole("")).await.unwrap();
    assert!(unnamed.name.starts_with("run-"), "{}", unnamed.name);
    let unknown = runs.get("lata").await.unwrap_err();
    assert_eq!(unknown.reason, "RUN_NOT_FOUND");
    assert_eq!(unknown.try_this.as_deref(), Some("did you mean late"));
    for wrong in ["run_00000000000000000000000007", "", "../x"] {
        assert_eq!(runs.get(wrong).await.unwrap_err().reason, "RUN_NOT_FOUND");
    }
}

async fn a_deadline_is_judged_by_how_long_runs_like_it_took(database: Database) {
    let mut world = World::start(database).await;
    world.stop().await;
    let clock = TestClock::at(Timestamp(1_900_000_000_000_000));
    world.clock = Some(clock.clone());
    world.start_again().await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    let due = |minutes: u64| pb::SubmitRunRequest {
        deadline: Some(encode_timestamp(
            clock.now().plus(Duration::from_secs(minutes * 60)),
        )),
        ..job("")
    };
    // Nothing is known of such runs: it may be short.
    let early = runs.submit(due(30)).await.unwrap();
    runs.cancel(&early.id).await.unwrap();
    for n in 0..5 {
        let run = runs.running(&node, job(&format!("past-{n}"))).await;
        clock.advance(Duration::from_secs(3_600));
        world.renew(&node).await;
        runs.ends(&node, &run, WorkloadState::Succeeded, |_| {})
            .await;
        runs.until(&run.id, RunState::Succeeded).await;
    }
    let refused = runs.submit(due(30)).await.unwrap_err();
    assert_eq!(refused.reason, "DEADLINE_UNREACHABLE");
    assert!(
        refused.message.contains("as long as runs like it took"),
        "{refused:?}"
    );
    runs.submit(due(90)).await.unwrap();
}

async fn others_do_not_see_them(database: Database) {
    let world = World::start(database).await;
    let _node = world.node("gpu-box", &["H100"]).await;
    let (mine, theirs) = (
        Runs(&world, ada()),
        Runs(&world, person(2, &["bob/default"])),
    );
    let run = mine.submit(job("mine")).await.unwrap();
    for wanted in ["mine", "ada/default/mine", &run.id] {
        assert_eq!(
            theirs.get(wanted).await.unwrap_err().reason,
            "RUN_NOT_FOUND"
        );
        let refused = theirs.cancel(wanted).await.unwrap_err();
        assert_eq!(refused.reason, "RUN_NOT_FOUND");
    }
    let list = async |runs: &Runs<'_>| {
        let request = pb::ListRunsRequest::default();
        let answer = runs.client().list_runs(by(&runs.1, request)).await;
        answer.unwrap().into_inner().runs
    };
    assert!(list(&theirs).await.is_empty());
    assert_eq!(list(&mine).await.len(), 1);
    // The same name in two projects is said in full.
    let elsewhere = pb::SubmitRunRequest {
        project: "ada/second".to_owned(),
        ..job("mine")
    };
    mine.submit(elsewhere).await.unwrap();
    let ambiguous = mine.get("mine").await.unwrap_err();
    assert_eq!(ambiguous.reason, "RUN_AMBIGUOUS");
    assert_eq!(mine.get("ada/default/mine").await.unwrap().id, run.id);
}

async fn a_repeated_request_has_one_effect(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let runs = Runs(&world, ada());
    let submit = async |ask| {
        let request = keyed(&runs.1, "once", ask);
        done(runs.client().submit_run(request).await)
    };
    let first = submit(job("once")).await.unwrap();
    launched(&node, &first.id).await;
    assert_eq!(submit(job("once")).await.unwrap(), first);
    let other = submit(job("other")).await.unwrap_err();
    assert_eq!(other.reason, "IDEMPOTENCY_MISMATCH");
    assert_eq!(node.state().launches.len(), 1);
}

async fn class_deadline_and_age_decide_who_goes_first(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let runs = Runs(&world, ada());
    let blocker = runs.running(&node, whole("blocker")).await;
    let of = |name: &str, priority: Priority, deadline: Option<i64>| pb::SubmitRunRequest {
        priority: priority.into(),
        deadline: deadline.map(in_seconds),
        on_late: OnLate::Accept.into(),
        ..whole(name)
    };
    for ask in [
        of("low", Priority::Low, Some(100)),
        of("normal", Priority::Unspecified, None),
        // Every run is planned for an hour, so all of these can be met.
        of("later", Priority::High, Some(14_800)),
        of("sooner", Priority::High, Some(13_000)),
        of("critical", Priority::Critical, None),
    ] {
        runs.submit(ask).await.unwrap();
    }
    // A server is as a normal run of its age.
    let server = pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        ..ask("server")
    };
    world.create(&me, server).await.unwrap();
    runs.ends(&node, &blocker, WorkloadState::Succeeded, |_| {})
        .await;
    for name in ["critical", "sooner", "later", "normal"] {
        let run = runs.until(name, RunState::Provisioning).await;
        runs.ends(&node, &run, WorkloadState::Succeeded, |_| {})
            .await;
        runs.until(name, RunState::Succeeded).await;
    }
    world.until(&me, "server", ServerState::Provisioning).await;
    assert_eq!(runs.get("low").await.unwrap().state(), RunState::Queued);
    world.delete_server(&me, "server").await.unwrap();
    runs.until("low", RunState::Provisioning).await;
}

on_both!(
    a_run_from_its_request_to_its_end,
    how_a_run_ends_is_told_apart,
    cancelling_works_whenever_it_comes,
    bad_requests_are_refused_by_name,
    a_deadline_is_judged_by_how_long_runs_like_it_took,
    others_do_not_see_them,
    a_repeated_request_has_one_effect,
    class_deadline_and_age_decide_who_goes_first,
);
