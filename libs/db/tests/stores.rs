//! The same promises on SQLite and on PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests cut tasks off, and this crate is below the kit"
)]

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use cnlab_db::{
    Backend, DatabaseConfig, Db, DbError, Tx,
    idempotency::{self, Begun},
    kit_migrations, migrate, outbox, pending,
};
use cnlab_model::{ErrorKind, Fault, Timestamp};
use cnlab_testkit::{PostgresServer, ScratchDir};
use sea_orm::{
    ConnectionTrait, DbErr, Statement,
    sea_query::{ColumnDef, Table},
};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};
use serde_json::json;

struct Counters;

impl MigrationName for Counters {
    fn name(&self) -> &'static str {
        "m20260102_000001_counters"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait::async_trait]
impl MigrationTrait for Counters {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table("counters")
            .col(ColumnDef::new("name").text().not_null().primary_key())
            .col(ColumnDef::new("value").big_integer().not_null())
            .to_owned();
        manager.create_table(table).await?;
        let first = "INSERT INTO counters (name, value) VALUES ('hits', 0), ('other', 0)";
        manager.get_connection().execute_unprepared(first).await?;
        Ok(())
    }
}

struct Broken;

impl MigrationName for Broken {
    fn name(&self) -> &'static str {
        "m20260103_000001_broken"
    }
}

#[expect(
    elided_lifetimes_in_paths,
    reason = "the trait leaves it out, and async_trait wants the same signature"
)]
#[async_trait::async_trait]
impl MigrationTrait for Broken {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection
            .execute_unprepared("CREATE TABLE half (a INTEGER)")
            .await?;
        connection.execute_unprepared("NO SUCH STATEMENT").await?;
        Ok(())
    }
}

struct Tables;

impl MigratorTrait for Tables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = kit_migrations();
        all.push(Box::new(Counters));
        all
    }
}

struct BrokenTables;

impl MigratorTrait for BrokenTables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        let mut all = Tables::migrations();
        all.push(Box::new(Broken));
        all
    }
}

struct OldTables;

impl MigratorTrait for OldTables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        kit_migrations()
    }
}

struct Store {
    config: DatabaseConfig,
    db: Db,
    _dir: Option<ScratchDir>,
}

impl Store {
    async fn sqlite() -> Self {
        let dir = ScratchDir::new("db").unwrap();
        let config = DatabaseConfig::sqlite(&dir.path().join("store.sqlite"));
        Self::open(config, Some(dir)).await
    }

    async fn postgres() -> Self {
        let server = PostgresServer::shared().await.unwrap();
        let url = server.create_database().await.unwrap();
        Self::open(DatabaseConfig { url }, None).await
    }

    async fn open(config: DatabaseConfig, dir: Option<ScratchDir>) -> Self {
        let db = Db::connect(&config).await.unwrap();
        Self {
            config,
            db,
            _dir: dir,
        }
    }

    async fn migrated(self) -> Self {
        migrate::<Tables>(&self.db).await.unwrap();
        self
    }
}

macro_rules! on_both {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Store::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Store::postgres().await).await;
            })*
        }
    };
}

on_both! {
    migrations_apply_once_and_all_or_nothing
    a_newer_schema_is_refused
    readers_cannot_write
    thirty_two_writers_lose_nothing
    domain_errors_abort_without_a_second_try
    a_swallowed_statement_error_fails_the_transaction
    a_kept_transaction_is_refused
    dropped_futures_leave_clean_connections
    readers_do_not_wait_for_a_writer
    unique_violations_are_told_apart
    outbox_keeps_the_order_of_each_aggregate
    outbox_claims_expire_and_retries_wait
    outbox_claimers_never_share_a_message
    outbox_is_part_of_the_transaction
    idempotent_requests_have_one_effect
    idempotency_keys_are_bound_and_expire
    a_closed_database_is_unavailable
}

/// An error as services have: their own facts, and the database's.
#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error("refused")]
    Refused,
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<DbErr> for TestError {
    fn from(error: DbErr) -> Self {
        Self::Db(error.into())
    }
}

async fn value(connection: &impl ConnectionTrait, name: &str) -> Result<i64, DbErr> {
    let sql = format!("SELECT value FROM counters WHERE name = '{name}'");
    let statement = Statement::from_string(connection.get_database_backend(), sql);
    let row = connection.query_one_raw(statement).await?;
    row.ok_or_else(|| DbErr::RecordNotFound(name.to_owned()))?
        .try_get("", "value")
}

async fn set(tx: &Tx, name: &str, value: i64) -> Result<(), DbErr> {
    let sql = format!("UPDATE counters SET value = {value} WHERE name = '{name}'");
    tx.execute_unprepared(&sql).await.map(drop)
}

/// Reads, then writes what it read plus one: wrong unless transactions are serialised.
async fn hit(db: &Db, name: &str) -> Result<i64, TestError> {
    db.write(|tx| async move {
        let next = value(&tx, name).await? + 1;
        set(&tx, name, next).await?;
        Ok(next)
    })
    .await
}

fn message(aggregate: &str, number: u32) -> outbox::NewMessage {
    outbox::NewMessage {
        topic: "test".to_owned(),
        aggregate: aggregate.to_owned(),
        payload: json!({ "number": number }),
        traceparent: Some(format!("trace-{number}")),
        now: Timestamp(1_000),
    }
}

async fn push(db: &Db, aggregate: &str, number: u32) -> i64 {
    db.write(|tx| async move { outbox::push(&tx, message(aggregate, number)).await })
        .await
        .unwrap()
}

async fn all<T>(tasks: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T>
where
    T: Send + 'static,
{
    let mut set = tokio::task::JoinSet::new();
    for task in tasks {
        set.spawn(task);
    }
    set.join_all().await
}

async fn migrations_apply_once_and_all_or_nothing(store: Store) {
    let db = &store.db;
    assert_eq!(pending::<Tables>(db).await.unwrap().len(), 2);
    // Several processes start at once: each opens the database for itself.
    let starts = (0..4).map(|_| {
        let config = store.config.clone();
        async move {
            let db = Db::connect(&config).await.unwrap();
            let applied = migrate::<Tables>(&db).await.unwrap();
            db.close().await;
            applied.len()
        }
    });
    let applied = all(starts.collect()).await;
    assert_eq!(applied.iter().sum::<usize>(), 2, "{applied:?}");
    assert!(pending::<Tables>(db).await.unwrap().is_empty());

    let error = migrate::<BrokenTables>(db).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error:?}");
    assert_eq!(
        pending::<BrokenTables>(db).await.unwrap(),
        ["m20260103_000001_broken"]
    );
    let half = db.read().execute_unprepared("SELECT * FROM half").await;
    half.unwrap_err();
    assert!(migrate::<Tables>(db).await.unwrap().is_empty());
}

async fn a_newer_schema_is_refused(store: Store) {
    let store = store.migrated().await;
    for error in [
        migrate::<OldTables>(&store.db).await.unwrap_err(),
        pending::<OldTables>(&store.db).await.unwrap_err(),
    ] {
        assert_eq!(error.reason(), "DATABASE_NEWER");
        assert!(error.to_string().contains("m20260102_000001_counters"));
    }
}

async fn readers_cannot_write(store: Store) {
    let store = store.migrated().await;
    let written = store
        .db
        .read()
        .execute_unprepared("UPDATE counters SET value = 7");
    written.await.unwrap_err();
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 0);
}

async fn thirty_two_writers_lose_nothing(store: Store) {
    let store = store.migrated().await;
    let writers = (0..32).map(|_| {
        let db = store.db.clone();
        async move {
            for _ in 0..5 {
                hit(&db, "hits").await.unwrap();
            }
        }
    });
    all(writers.collect()).await;
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 160);
}

async fn domain_errors_abort_without_a_second_try(store: Store) {
    let store = store.migrated().await;
    let tries = AtomicU32::new(0);
    let tries = &tries;
    let refused: Result<(), TestError> = store
        .db
        .write(|tx| async move {
            tries.fetch_add(1, Ordering::Relaxed);
            set(&tx, "hits", 99).await?;
            Err(TestError::Refused)
        })
        .await;
    assert!(matches!(refused, Err(TestError::Refused)));
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 0);
}

async fn a_swallowed_statement_error_fails_the_transaction(store: Store) {
    let store = store.migrated().await;
    let result: Result<(), TestError> = store
        .db
        .write(|tx| async move {
            set(&tx, "hits", 5).await?;
            let again = "INSERT INTO counters (name, value) VALUES ('hits', 1)";
            tx.execute_unprepared(again).await.ok();
            Ok(())
        })
        .await;
    match result {
        Err(TestError::Db(error)) => assert!(error.is_unique_violation(), "{error:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 0);
}

async fn a_kept_transaction_is_refused(store: Store) {
    let store = store.migrated().await;
    let kept: Result<Tx, DbError> = store.db.write(|tx| async move { Ok(tx) }).await;
    assert!(matches!(kept, Err(DbError::TransactionKept)), "{kept:?}");
    hit(&store.db, "hits").await.unwrap();
}

/// Polls a future until it has been pending this often, then drops it.
async fn cut_off<T>(future: impl Future<Output = T>, pendings: u32) {
    let mut future = std::pin::pin!(future);
    let mut seen = 0;
    std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        seen += 1;
        if seen >= pendings {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

async fn dropped_futures_leave_clean_connections(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    // In acquiring a connection, in BEGIN, in each statement, in COMMIT.
    for pendings in 1..=12 {
        for _ in 0..10 {
            cut_off(hit(db, "hits"), pendings).await;
        }
        no_open_transactions(db).await;
    }
    let probes = (0..16).map(|_| {
        let db = db.clone();
        async move { hit(&db, "other").await.map(drop) }
    });
    for probe in all(probes.collect()).await {
        probe.unwrap();
    }
    assert_eq!(value(db.read(), "other").await.unwrap(), 16);
}

/// Waits until no session holds a transaction; one that was forgotten would stay for ever.
async fn no_open_transactions(db: &Db) {
    match db.backend() {
        // The one writing connection is the only one that could block this.
        Backend::Sqlite => drop(hit(db, "hits").await.unwrap()),
        Backend::Postgres => {
            let open = "SELECT count(*) AS value FROM pg_stat_activity \
                        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
            // Less than the minute after which the server ends such a session by itself.
            let most = Duration::from_secs(30);
            cnlab_testkit::wait_for(most, "no open transaction", async || {
                let statement = Statement::from_string(sea_orm::DbBackend::Postgres, open);
                let row = db.read().query_one_raw(statement).await.unwrap();
                let count: i64 = row.unwrap().try_get("", "value").unwrap();
                (count == 0).then_some(())
            })
            .await
            .unwrap();
        }
    }
}

async fn readers_do_not_wait_for_a_writer(store: Store) {
    let store = store.migrated().await;
    let reader = &store.db;
    let seen = store
        .db
        .write(|tx| async move {
            set(&tx, "hits", 3).await?;
            // A transaction is open and has written.
            Ok::<_, TestError>(value(reader.read(), "hits").await?)
        })
        .await
        .unwrap();
    assert_eq!(seen, 0);
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 3);
}

async fn unique_violations_are_told_apart(store: Store) {
    let store = store.migrated().await;
    let error = store
        .db
        .write(|tx| async move {
            let again = "INSERT INTO counters (name, value) VALUES ('hits', 1)";
            tx.execute_unprepared(again).await?;
            Ok::<_, DbError>(())
        })
        .await
        .unwrap_err();
    assert!(error.is_unique_violation());
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

async fn outbox_keeps_the_order_of_each_aggregate(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let (first, second) = (push(db, "a", 1).await, push(db, "a", 2).await);
    let other = push(db, "b", 3).await;
    assert_eq!(outbox::waiting(db).await.unwrap(), 3);

    let claim = async |now: i64| {
        let until = Timestamp(now + 100);
        outbox::claim(db, "me", Timestamp(now), until, 10)
            .await
            .unwrap()
    };
    assert!(claim(999).await.is_empty(), "not due before it was pushed");
    let got = claim(1_000).await;
    let ids: Vec<i64> = got.iter().map(|one| one.id).collect();
    assert_eq!(ids, [first, other]);
    assert_eq!(got[0].payload, json!({ "number": 1 }));
    assert_eq!(got[0].traceparent.as_deref(), Some("trace-1"));
    assert_eq!(got[0].created_at, Timestamp(1_000));
    assert_eq!(got[0].attempts, 1);
    assert!(
        claim(1_001).await.is_empty(),
        "the second one waits for the first"
    );
    outbox::done(db, first).await.unwrap();
    outbox::done(db, first).await.unwrap();
    let ids: Vec<i64> = claim(1_002).await.iter().map(|one| one.id).collect();
    assert_eq!(ids, [second]);
}

async fn outbox_claims_expire_and_retries_wait(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let id = push(db, "a", 1).await;
    let claim = async |owner: &str, now: i64| {
        let until = Timestamp(now + 100);
        outbox::claim(db, owner, Timestamp(now), until, 10)
            .await
            .unwrap()
    };
    assert_eq!(claim("dead", 2_000).await.len(), 1);
    assert!(claim("heir", 2_099).await.is_empty());
    let got = claim("heir", 2_100).await;
    assert_eq!((got[0].id, got[0].attempts), (id, 2));
    // The old owner wakes up: it must not take the claim away from the new one.
    outbox::retry(db, id, "dead", Timestamp(0), "late")
        .await
        .unwrap();
    assert!(claim("third", 2_150).await.is_empty());
    outbox::retry(db, id, "heir", Timestamp(3_000), "refused")
        .await
        .unwrap();
    assert!(claim("third", 2_999).await.is_empty());
    assert_eq!(claim("third", 3_000).await[0].attempts, 3);
}

async fn outbox_claimers_never_share_a_message(store: Store) {
    let store = store.migrated().await;
    for number in 0..40 {
        push(&store.db, &format!("aggregate-{}", number % 8), number).await;
    }
    let claimers = (0..4).map(|owner| {
        let db = store.db.clone();
        async move {
            let mut mine = Vec::new();
            while outbox::waiting(&db).await.unwrap() > 0 {
                let (now, until) = (Timestamp(1_000), Timestamp(i64::MAX));
                let owner = format!("owner-{owner}");
                for one in outbox::claim(&db, &owner, now, until, 3).await.unwrap() {
                    mine.push(one.id);
                    outbox::done(&db, one.id).await.unwrap();
                }
            }
            mine
        }
    });
    let got: Vec<i64> = all(claimers.collect())
        .await
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(got.len(), 40);
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 40);
}

async fn outbox_is_part_of_the_transaction(store: Store) {
    let store = store.migrated().await;
    let refused: Result<(), TestError> = store
        .db
        .write(|tx| async move {
            outbox::push(&tx, message("a", 1)).await?;
            Err(TestError::Refused)
        })
        .await;
    refused.unwrap_err();
    assert_eq!(outbox::waiting(&store.db).await.unwrap(), 0);
}

/// One mutation as services write them.
async fn request(
    db: &Db,
    key: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(bool, Vec<u8>), DbError> {
    db.write(|tx| async move {
        let ticket = match idempotency::begin(&tx, "usr", "Hit", key, body, now).await? {
            Begun::Replay(response) => return Ok((false, response)),
            Begun::Fresh(ticket) => ticket,
        };
        let next = value(&tx, "hits").await? + 1;
        set(&tx, "hits", next).await?;
        let response = next.to_string().into_bytes();
        idempotency::finish(&tx, ticket, &response).await?;
        Ok((true, response))
    })
    .await
}

async fn idempotent_requests_have_one_effect(store: Store) {
    let store = store.migrated().await;
    let requests = (0..24).map(|number| {
        let db = store.db.clone();
        let key = format!("key-{}", number % 3);
        async move {
            request(&db, &key, b"body", Timestamp(1))
                .await
                .map(|done| (key, done))
        }
    });
    let mut answers = BTreeSet::new();
    let mut effects = 0;
    for answer in all(requests.collect()).await {
        let (key, (fresh, response)) = answer.unwrap();
        effects += u32::from(fresh);
        answers.insert((key, response));
    }
    assert_eq!(effects, 3);
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 3);
}

async fn idempotency_keys_are_bound_and_expire(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let start = Timestamp(1_000);
    let end = start.plus(idempotency::KEPT);
    assert!(request(db, "k", b"one", start).await.unwrap().0);
    let error = request(db, "k", b"two", start).await.unwrap_err();
    assert_eq!(error.reason(), "IDEMPOTENCY_MISMATCH");
    let last = Timestamp(end.0 - 1);
    assert_eq!(
        request(db, "k", b"one", last).await.unwrap(),
        (false, b"1".to_vec())
    );
    // Expired but not purged, then replayed with its new response, then purged.
    assert_eq!(
        request(db, "k", b"two", end).await.unwrap(),
        (true, b"2".to_vec())
    );
    assert_eq!(
        request(db, "k", b"two", end).await.unwrap(),
        (false, b"2".to_vec())
    );
    assert_eq!(idempotency::purge(db, end).await.unwrap(), 0);
    assert_eq!(
        idempotency::purge(db, end.plus(idempotency::KEPT))
            .await
            .unwrap(),
        1
    );
    assert!(request(db, "k", b"three", end).await.unwrap().0);
}

async fn a_closed_database_is_unavailable(store: Store) {
    let store = store.migrated().await;
    store.db.close().await;
    let error = hit(&store.db, "hits").await.unwrap_err();
    let TestError::Db(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let error: DbError = value(store.db.read(), "hits").await.unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

/// Only PostgreSQL can be away while the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_postgres_is_found_again() {
    let mut server = PostgresServer::start_with(&[]).await.unwrap();
    let url = server.create_database().await.unwrap();
    let db = Db::connect(&DatabaseConfig { url: url.clone() })
        .await
        .unwrap();
    migrate::<Tables>(&db).await.unwrap();
    let acknowledged = Arc::new(AtomicU32::new(0));
    let (writer, count) = (db.clone(), Arc::clone(&acknowledged));
    let writing = tokio::task::spawn(async move {
        while hit(&writer, "hits").await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "some writes", async || {
        (acknowledged.load(Ordering::SeqCst) > 50).then_some(())
    })
    .await
    .unwrap();
    server.kill();
    writing.await.unwrap();
    let kept = acknowledged.load(Ordering::SeqCst);
    let error = hit(&db, "hits").await.unwrap_err();
    assert!(
        matches!(&error, TestError::Db(error) if error.kind() == ErrorKind::Unavailable),
        "{error:?}"
    );
    server.restart().await.unwrap();
    let now = hit(&db, "hits").await.unwrap();
    // The last one may have been committed without its answer arriving.
    let (now, kept) = (now, i64::from(kept));
    assert!(now == kept + 1 || now == kept + 2, "{now} after {kept}");

    let wrong = DatabaseConfig {
        url: url
            .replace("postgres@", "postgres:geheim@")
            .replace("/test_0", "/absent"),
    };
    let error = Db::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(!format!("{error} {error:?}").contains("geheim"));
}
