//! What a team may hold and ask for.

use std::collections::BTreeMap;

use cnlab_model::ErrorKind;
use cnlab_proto::{
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, BlockerKind, OnLate, RunState, ServerState},
};
use cnlab_service::{Caller, Runtime, status::PublicError};
use cnlab_testkit::{GENEROUS, wait_until};
use scheduler_svc::{Config, CountLimit, GpuLimit, QuotaConfig, TeamConfig};

use crate::{
    on_both,
    world::{Database, World, ask, by, done, person},
};

const PROFILES: &str = r#"
[[profile]]
name = "h100-1pct"
gpu_type = "H100"
percent = 1
memory = "1GiB"
cpu_milli = 100

[[profile]]
name = "h100-50pct"
gpu_type = "H100"
percent = 50
memory = "8GiB"
cpu_milli = 500

[[profile]]
name = "h100-full"
gpu_type = "H100"
percent = 100
memory = "16GiB"
cpu_milli = 1000

[[profile]]
name = "l40s-full"
gpu_type = "L40S"
percent = 100
memory = "16GiB"
cpu_milli = 1000
"#;

/// A scheduler with these profiles and quotas.
async fn world(database: Database, quota: QuotaConfig) -> World {
    let mut world = World::start(database).await;
    world.config.catalog.profiles_file = Some(world.file("profiles.toml", PROFILES));
    again(&mut world, quota).await;
    world
}

/// Its next life, with other quotas.
async fn again(world: &mut World, quota: QuotaConfig) {
    world.stop().await;
    world.config.quota = quota;
    world.start_again().await;
}

fn percent(most: u64) -> QuotaConfig {
    QuotaConfig {
        gpus: GpuLimit::Blocks(most),
        contact: "the platform team".to_owned(),
        ..QuotaConfig::default()
    }
}

fn team(me: &Caller) -> TeamConfig {
    TeamConfig {
        team: me.team_id,
        gpus: None,
        gpus_of: BTreeMap::new(),
        waiting: None,
        weight: 1,
    }
}

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
        command: vec!["true".to_owned()],
        ..pb::SubmitRunRequest::default()
    }
}

/// Somebody else of the same team.
fn colleague(of: &Caller, n: u128) -> Caller {
    Caller {
        team_id: of.team_id,
        ..person(n, &["school/course"])
    }
}

/// How many blocks the servers of a team hold, by what each of them says.
async fn held(world: &World, me: &Caller, servers: &[String]) -> u32 {
    let mut sum = 0;
    for id in servers {
        let now = world.get(me, id).await.unwrap();
        if now.grant.is_some() {
            sum += u32::from(crate::world::blocks(&now).count());
        }
    }
    sum
}

/// 200 people of one team ask at the same moment, for 120 hundredths on two GPUs.
async fn a_burst_fills_the_quota_to_the_block(database: Database) {
    let world = world(database, percent(120)).await;
    let _node = world.node("gpu-box", &["H100", "H100"]).await;
    let me = person(10, &["school/course"]);
    let tasks = Runtime::system().tasks;
    let creating: Vec<_> = (0..200_u128)
        .map(|n| {
            let mut servers = world.servers();
            let me = colleague(&me, n + 100);
            tasks.spawn("create", async move {
                let request = server(&format!("student-{n}"), "h100-1pct");
                servers
                    .create_server(by(&me, request))
                    .await
                    .unwrap()
                    .into_inner()
            })
        })
        .collect();
    let (mut granted, mut queued) = (Vec::new(), Vec::new());
    for created in creating {
        let server = created.await.unwrap();
        match server.state() {
            ServerState::Provisioning => granted.push(server.id),
            ServerState::Queued => queued.push(server.id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((granted.len(), queued.len()), (120, 80));
    assert_eq!(held(&world, &me, &granted).await, 120);
    for id in &queued {
        // Whoever was told of fewer hears of the rest with the next grant of the batch.
        let told = world.get(&me, id).await.unwrap().phase_detail;
        assert!(told.starts_with("your team holds "), "{told}");
        assert!(
            told.ends_with("% of its 120%; waiting for it to give back"),
            "{told}"
        );
    }

    // Another team is not concerned.
    let other = person(11, &["physics/lab"]);
    let theirs = world.create(&other, server("theirs", "h100-50pct")).await;
    assert_eq!(theirs.unwrap().state(), ServerState::Provisioning);

    // One is given back, one starts: no more, and no fewer.
    world.delete_server(&me, &granted[17]).await.unwrap();
    wait_until(GENEROUS, "one to move up", async || {
        held(&world, &me, &queued).await == 1
    })
    .await
    .unwrap();
    world.delete_server(&me, &granted[18]).await.unwrap();
    world.delete_server(&me, &granted[19]).await.unwrap();
    wait_until(GENEROUS, "two more to move up", async || {
        held(&world, &me, &queued).await >= 3
    })
    .await
    .unwrap();
    assert_eq!(held(&world, &me, &queued).await, 3);
}

async fn what_can_never_be_within_the_quota_is_refused(database: Database) {
    let h100 = |most| BTreeMap::from([("H100".to_owned(), GpuLimit::Blocks(most))]);
    let quota = QuotaConfig {
        gpus_of: h100(40),
        ..percent(100)
    };
    let mut world = world(database, quota.clone()).await;
    let _node = world.node("gpu-box", &["H100", "L40S"]).await;
    let me = person(10, &["school/course"]);
    let refused = |error: PublicError| {
        assert_eq!(error.kind, ErrorKind::Exhausted);
        assert_eq!(error.reason, "QUOTA_EXCEEDED");
        assert_eq!(
            error.message,
            "it needs 50% of H100, and your team may hold 40% of them at once"
        );
        assert_eq!(
            error.try_this.as_deref(),
            Some("choose a smaller profile, or ask the platform team for more")
        );
    };
    let error = world.create(&me, server("half", "h100-50pct")).await;
    refused(*error.unwrap_err());
    let error = done(
        world
            .runs()
            .submit_run(by(&me, run("half", "h100-50pct")))
            .await,
    );
    refused(*error.unwrap_err());
    // Nothing was taken by it.
    let all = world.create(&me, server("all", "l40s-full")).await.unwrap();
    assert_eq!(all.state(), ServerState::Provisioning);
    let waits = world.create(&me, server("one", "h100-1pct")).await.unwrap();
    assert_eq!(
        waits.phase_detail,
        "your team holds 100% of its 100%; waiting for it to give back"
    );

    // A server that is stopped is not started beyond a limit that was lowered meanwhile.
    world.stop_server(&me, &all.id).await.unwrap();
    world.until(&me, &all.id, ServerState::Stopped).await;
    again(
        &mut world,
        QuotaConfig {
            gpus_of: h100(40),
            ..percent(99)
        },
    )
    .await;
    let error = world.start_server(&me, &all.id).await.unwrap_err();
    assert_eq!(error.reason, "QUOTA_EXCEEDED");
    let unchanged = world.get(&me, &all.id).await.unwrap();
    assert_eq!(unchanged.state(), ServerState::Stopped);
    again(&mut world, quota).await;
    let started = world.start_server(&me, &all.id).await.unwrap();
    // The other one holds its hundredth now.
    assert_eq!(started.state(), ServerState::Queued);
}

async fn servers_and_runs_count_together(database: Database) {
    let world = world(database, percent(100)).await;
    let node = world.node("gpu-box", &["H100", "H100"]).await;
    let me = person(10, &["school/course"]);
    let half = world.create(&me, server("half", "h100-50pct")).await;
    assert_eq!(half.unwrap().state(), ServerState::Provisioning);
    let submit = async |name: &str| {
        done(
            world
                .runs()
                .submit_run(by(&me, run(name, "h100-50pct")))
                .await,
        )
    };
    let first = submit("first").await.unwrap();
    assert_eq!(first.state(), RunState::Provisioning);
    let second = submit("second").await.unwrap();
    assert_eq!(second.state(), RunState::Queued);
    assert_eq!(
        second.phase_detail,
        "your team holds 100% of its 100%; waiting for it to give back"
    );
    // Nobody can promise it an end.
    let due = pb::SubmitRunRequest {
        deadline: Some(crate::runs::in_seconds(100_000)),
        on_late: OnLate::Refuse.into(),
        ..run("due", "h100-1pct")
    };
    let error = done(world.runs().submit_run(by(&me, due)).await).unwrap_err();
    assert_eq!(error.reason, "DEADLINE_UNREACHABLE");
    assert!(
        error.message.contains("your team holds 100% of its 100%"),
        "{error:?}"
    );

    // The command ends, and the next one starts.
    world
        .moves(&node, &first.id, WorkloadState::Running, "")
        .await;
    let mut ended = node.moved(&first.id, WorkloadState::Succeeded, "");
    ended.exit_code = Some(0);
    node.state().workloads.remove(&first.id);
    world.report(&node, ended).await;
    wait_until(GENEROUS, "the second to start", async || {
        let request = pb::GetRunRequest {
            run: second.id.clone(),
        };
        let now = done(world.runs().get_run(by(&me, request)).await).unwrap();
        now.state() == RunState::Provisioning
    })
    .await
    .unwrap();
}

async fn a_team_does_not_fill_the_queue(database: Database) {
    let me = person(10, &["school/course"]);
    let other = person(11, &["physics/lab"]);
    let quota = QuotaConfig {
        waiting: CountLimit::Count(2),
        teams: vec![TeamConfig {
            waiting: Some(CountLimit::Unlimited),
            ..team(&other)
        }],
        ..percent(150)
    };
    let world = world(database, quota).await;
    let _node = world.node("gpu-box", &["H100", "L40S"]).await;
    let full = world.create(&me, server("full", "h100-full")).await;
    assert_eq!(full.unwrap().state(), ServerState::Provisioning);
    let tasks = Runtime::system().tasks;
    let creating: Vec<_> = (0..40_u128)
        .map(|n| {
            let mut servers = world.servers();
            let me = colleague(&me, n + 100);
            tasks.spawn("create", async move {
                let request = server(&format!("more-{n}"), "h100-50pct");
                done(servers.create_server(by(&me, request)).await)
            })
        })
        .collect();
    let (mut waiting, mut refused) = (Vec::new(), Vec::new());
    for created in creating {
        match created.await.unwrap() {
            Ok(server) => waiting.push(server),
            Err(error) => refused.push(error),
        }
    }
    assert_eq!((waiting.len(), refused.len()), (2, 38));
    for error in refused {
        assert_eq!(error.kind, ErrorKind::Exhausted);
        assert_eq!(error.reason, "QUOTA_WAITING_EXCEEDED");
        assert!(
            error.message.contains("has 2 servers and runs waiting"),
            "{error:?}"
        );
        assert!(error.try_this.unwrap().contains("the platform team"));
    }
    // Their names are free again, and what needs not wait is not refused.
    let gone = world.get(&me, "more-39").await;
    assert!(waiting.iter().any(|server| server.name == "more-39") || gone.is_err());
    let theirs = world.create(&other, server("theirs", "l40s-full")).await;
    assert_eq!(theirs.unwrap().state(), ServerState::Provisioning);
    for n in 0..5 {
        let theirs = world
            .create(&other, server(&format!("theirs-{n}"), "h100-1pct"))
            .await;
        assert_eq!(theirs.unwrap().state(), ServerState::Queued);
    }

    // One of them is cancelled: another one may wait.
    world.delete_server(&me, &waiting[0].id).await.unwrap();
    wait_until(GENEROUS, "room in the queue", async || {
        world
            .create(&me, server("late", "h100-50pct"))
            .await
            .is_ok()
    })
    .await
    .unwrap();
    let error = world
        .create(&me, server("later", "h100-50pct"))
        .await
        .unwrap_err();
    assert_eq!(error.reason, "QUOTA_WAITING_EXCEEDED");
}

async fn several_gpus_count_in_full(database: Database) {
    let world = world(database, percent(400)).await;
    let _node = world.node("gpu-box", &["H100"; 8]).await;
    let me = person(10, &["school/course"]);
    let several = |name: &str, gpus| pb::CreateServerRequest {
        gpus: Some(gpus),
        ..server(name, "h100-full")
    };
    let error = world.create(&me, several("five", 5)).await.unwrap_err();
    assert_eq!(
        (error.reason.as_str(), error.message.as_str()),
        (
            "QUOTA_EXCEEDED",
            "it needs 500% of GPUs, and your team may hold 400% of them at once"
        )
    );
    let three = world.create(&me, several("three", 3)).await.unwrap();
    assert_eq!(three.state(), ServerState::Provisioning);
    let two = world.create(&me, several("two", 2)).await.unwrap();
    let told = "your team holds 300% of its 400%; waiting for it to give back";
    assert_eq!(two.phase_detail, told);
    let request = by(
        &me,
        pb::ExplainServerRequest {
            server: two.id.clone(),
        },
    );
    let why = done(world.queue().explain_server(request).await).unwrap();
    let blocker = why.blocker.unwrap();
    assert_eq!(
        (blocker.kind(), blocker.text.as_str()),
        (BlockerKind::Quota, told)
    );
    assert_eq!(
        why.text,
        "waits, number 1 of 1 for H100; nobody can tell when it starts"
    );
    assert!(why.sooner.is_empty(), "{:?}", why.sooner);
    let one = world.create(&me, several("one", 1)).await.unwrap();
    assert_eq!(
        one.state(),
        ServerState::Provisioning,
        "it fits beside the three"
    );
    world.delete_server(&me, "one").await.unwrap();
    world.delete_server(&me, "three").await.unwrap();
    world.until(&me, "two", ServerState::Provisioning).await;
}

/// The account is made of the rows: by the same scheduler after a restart, with other limits.
async fn a_restart_counts_what_is_held(database: Database) {
    let mut world = world(database, percent(100)).await;
    let _node = world.node("gpu-box", &["H100", "H100"]).await;
    let me = person(10, &["school/course"]);
    let mut ids = Vec::new();
    for n in 0..5 {
        let made = world
            .create(&me, server(&format!("half-{n}"), "h100-50pct"))
            .await;
        ids.push(made.unwrap().id);
    }
    assert_eq!(held(&world, &me, &ids).await, 100);

    // Lowered below what is held: nobody is stopped, and nothing new begins.
    again(&mut world, percent(60)).await;
    let waits = world.create(&me, server("one", "h100-1pct")).await.unwrap();
    assert_eq!(
        waits.phase_detail,
        "your team holds 100% of its 60%; waiting for it to give back"
    );
    assert_eq!(held(&world, &me, &ids).await, 100);
    world.stop_server(&me, &ids[0]).await.unwrap();
    world.until(&me, &waits.id, ServerState::Provisioning).await;
    assert_eq!(held(&world, &me, &ids).await, 50);

    // Raised: those who wait start.
    let raised = QuotaConfig {
        teams: vec![TeamConfig {
            gpus: Some(GpuLimit::Blocks(151)),
            ..team(&me)
        }],
        ..percent(60)
    };
    again(&mut world, raised).await;
    wait_until(GENEROUS, "two more to start", async || {
        held(&world, &me, &ids).await == 150
    })
    .await
    .unwrap();
    // The oldest of those who wait, and not the last.
    let last = world.get(&me, &ids[4]).await.unwrap();
    assert_eq!(last.state(), ServerState::Queued);
}

/// Another scheduler takes over, and counts what the first one granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_counts_what_is_held() {
    let mut first = world(Database::Postgres, percent(100)).await;
    let node = first.node("gpu-box", &["H100", "H100"]).await;
    let me = person(10, &["school/course"]);
    let mut ids = Vec::new();
    for n in 0..3 {
        let made = first
            .create(&me, server(&format!("half-{n}"), "h100-50pct"))
            .await;
        ids.push(made.unwrap().id);
    }
    let config: Config = first.config.clone();
    let second = World::start_with(Database::Postgres, |own| *own = config).await;
    first.stop().await;
    let mut made = None;
    wait_until(GENEROUS, "the second to lead", async || {
        made = second.create(&me, server("late", "h100-1pct")).await.ok();
        made.is_some()
    })
    .await
    .unwrap();
    let made = made.unwrap();
    assert_eq!(
        made.phase_detail,
        "your team holds 100% of its 100%; waiting for it to give back"
    );
    assert_eq!(held(&second, &me, &ids).await, 100);
    second.stop_server(&me, &ids[0]).await.unwrap();
    second.until(&me, &ids[2], ServerState::Provisioning).await;
    let late = second.get(&me, &made.id).await.unwrap();
    assert_eq!(late.state(), ServerState::Queued);
    drop(node);
}

on_both!(
    a_burst_fills_the_quota_to_the_block,
    what_can_never_be_within_the_quota_is_refused,
    servers_and_runs_count_together,
    several_gpus_count_in_full,
    a_team_does_not_fill_the_queue,
    a_restart_counts_what_is_held,
);
