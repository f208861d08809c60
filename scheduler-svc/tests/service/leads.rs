//! Two schedulers of one cell: what the one that is deposed still writes, the other one hears of.

use std::time::Duration;

use cnlab_db::Db;
use cnlab_model::Timestamp;
use cnlab_proto::{
    node::v1::WorkloadState,
    scheduler::v1::{self as pb, ServerState},
};
use cnlab_service::{Runtime, runtime::TestClock};
use cnlab_testkit::{GENEROUS, wait_until};
use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

use crate::world::{Database, World, ada, ask, launched};

const BEGAN: Timestamp = Timestamp(1_800_000_000_000_000);

fn whole(name: &str) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        ..ask(name)
    }
}

/// A scheduler whose clock stands still.
async fn standing(mut world: World, at: Timestamp) -> (World, TestClock) {
    world.stop().await;
    let clock = TestClock::at(at);
    world.clock = Some(clock.clone());
    world.start_again().await;
    (world, clock)
}

/// Another scheduler on the same database.
async fn beside(first: &World) -> World {
    let config = first.config.clone();
    World::start_with(Database::Postgres, |own| *own = config).await
}

/// The number that this says of the database.
async fn number(db: &Db, sql: &str) -> i64 {
    let statement = Statement::from_string(DbBackend::Postgres, sql);
    let row = db.read().query_one_raw(statement).await.unwrap();
    row.unwrap().try_get_by_index(0).unwrap()
}

const WAIT_FOR_LOCKS: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE wait_event_type = 'Lock' AND datname = current_database()";
const TERM: &str = "SELECT term FROM fences WHERE cell = 1";

/// A transaction of the old leader is on its way while another one takes the lead. Without care
/// the new one reads before it commits, and takes the slice for held for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_deposed_leader_has_begun_is_heard_of() {
    let (mut first, _clock) = standing(World::start(Database::Postgres).await, BEGAN).await;
    let node = first.node("gpu-box", &["H100"]).await;
    let me = ada();
    let held = first.create(&me, whole("held")).await.unwrap();
    first.moves(&node, &held.id, WorkloadState::Ready, "").await;
    let waits = first.create(&me, whole("waits")).await.unwrap();
    assert_eq!(waits.state(), ServerState::Queued);

    // Somebody holds the server's row, so that its end is not written yet.
    let db = Db::connect(&first.config.database).await.unwrap();
    let (hold, held_until) = tokio::sync::oneshot::channel::<()>();
    let held_until = std::sync::Mutex::new(Some(held_until));
    let (tasks, holder, id) = (Runtime::system().tasks, db.clone(), held.id.clone());
    let holding = tasks.spawn("hold", async move {
        holder
            .write(|tx| {
                let (id, until) = (id.clone(), held_until.lock().unwrap().take());
                async move {
                    let sql = format!("SELECT 1 FROM servers WHERE id = '{id}' FOR UPDATE");
                    tx.execute_unprepared(&sql).await?;
                    if let Some(until) = until {
                        let _ = until.await;
                    }
                    Ok::<_, cnlab_db::DbError>(())
                }
            })
            .await
            .unwrap();
    });
    let ended = node.moved(&held.id, WorkloadState::Stopped, "");
    node.state().workloads.remove(&held.id);
    let report = pb::ReportWorkloadRequest {
        node_id: node.id.to_string(),
        workload: Some(ended),
    };
    let mut roster = first.roster();
    let reported = tasks.spawn(
        "report",
        async move { roster.report_workload(report).await },
    );
    wait_until(GENEROUS, "the report to be half-way", async || {
        number(&db, WAIT_FOR_LOCKS).await == 1
    })
    .await
    .unwrap();

    // The lead has run out by the clock of the second one.
    let later = BEGAN.plus(Duration::from_secs(5));
    let term = number(&db, TERM).await;
    let (second, _later) = standing(beside(&first).await, later).await;
    wait_until(GENEROUS, "the second one to take the lead", async || {
        number(&db, TERM).await > term || number(&db, WAIT_FOR_LOCKS).await > 1
    })
    .await
    .unwrap();
    // Time for it to read.
    tokio::time::sleep(Duration::from_millis(500)).await;
    hold.send(()).unwrap();
    holding.await.unwrap();
    reported.await.unwrap().unwrap();
    // It will not lead again.
    first.stop().await;
    second
        .until(&me, &waits.id, ServerState::Provisioning)
        .await;
    launched(&node, &waits.id).await;
}

/// What the old leader begins afterwards, having slept meanwhile, it does not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_deposed_leader_begins_is_refused() {
    let (first, clock) = standing(World::start(Database::Postgres).await, BEGAN).await;
    let node = first.node("gpu-box", &["H100"]).await;
    let me = ada();
    let held = first.create(&me, whole("held")).await.unwrap();
    launched(&node, &held.id).await;
    let waits = first.create(&me, whole("waits")).await.unwrap();

    let db = Db::connect(&first.config.database).await.unwrap();
    let term = number(&db, TERM).await;
    let (mut second, later) =
        standing(beside(&first).await, BEGAN.plus(Duration::from_secs(5))).await;
    wait_until(GENEROUS, "the second one to take the lead", async || {
        number(&db, TERM).await > term
    })
    .await
    .unwrap();
    // The first one's clock stands: it believes that it leads.
    let refused = first.stop_server(&me, &waits.id).await.unwrap_err();
    assert_eq!(refused.reason, "SCHEDULER_STANDBY");
    let refused = first.create(&me, whole("more")).await.unwrap_err();
    assert_eq!(refused.reason, "SCHEDULER_STANDBY");
    assert_eq!(
        second.get(&me, &waits.id).await.unwrap().state(),
        ServerState::Queued
    );
    // It leads again when the second one is gone, and has forgotten nothing.
    second.stop().await;
    clock.set(later_than(&later));
    wait_until(GENEROUS, "the first one to lead again", async || {
        first.stop_server(&me, &held.id).await.is_ok()
    })
    .await
    .unwrap();
    first.until(&me, &waits.id, ServerState::Provisioning).await;
}

fn later_than(clock: &TestClock) -> Timestamp {
    use cnlab_service::runtime::Clock as _;
    clock.now().plus(Duration::from_secs(5))
}

/// A leader whose clock was hours ahead is gone: nobody waits until that time comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lead_of_a_clock_that_was_ahead_ends() {
    let ahead = BEGAN.plus(Duration::from_secs(5 * 3_600));
    let (first, _clock) = standing(World::start(Database::Postgres).await, ahead).await;
    let node = first.node("gpu-box", &["H100"]).await;
    let config = first.config.clone();
    // Killed: it does not give its lead back.
    std::mem::forget(first);
    let second = World::start_with(Database::Postgres, |own| *own = config).await;
    let (second, _standing) = standing(second, BEGAN).await;
    let me = ada();
    wait_until(GENEROUS, "the second one to lead", async || {
        second.create(&me, ask("a")).await.is_ok()
    })
    .await
    .unwrap();
    drop(node);
}
