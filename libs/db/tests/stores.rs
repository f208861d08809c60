//! The same promises on SQLite and on PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests cut tasks off, and this crate is below the kit"
)]

#[path = "stores/fixture.rs"]
mod fixture;
#[path = "stores/tables.rs"]
mod tables;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use cnlab_db::{Backend, DatabaseConfig, Db, DbError, Tx, migrate, pending};
use cnlab_model::{ErrorKind, Fault};
use cnlab_testkit::PostgresServer;
use fixture::{BrokenTables, OldTables, Store, Tables, TestError, all, hit, set, value};
use sea_orm::{ConnectionTrait, Statement};
use tables::{
    idempotency_keys_are_bound_and_expire, idempotent_requests_have_one_effect,
    outbox_claimers_never_share_a_message, outbox_claims_are_renewed_by_who_has_them,
    outbox_claims_expire_and_retries_wait, outbox_claims_keep_to_the_room_of_destinations,
    outbox_claims_of_any_size_are_carried_out, outbox_is_part_of_the_transaction,
    outbox_keeps_the_order_of_each_aggregate,
};

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
    outbox_claims_are_renewed_by_who_has_them
    outbox_claims_keep_to_the_room_of_destinations
    outbox_claims_of_any_size_are_carried_out
    outbox_claimers_never_share_a_message
    outbox_is_part_of_the_transaction
    idempotent_requests_have_one_effect
    idempotency_keys_are_bound_and_expire
    a_closed_database_is_unavailable
}

async fn migrations_apply_once_and_all_or_nothing(store: Store) {
    let db = &store.db;
    assert_eq!(pending::<Tables>(db).await.unwrap().len(), 3);
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
    assert_eq!(applied.iter().sum::<usize>(), 3, "{applied:?}");
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
