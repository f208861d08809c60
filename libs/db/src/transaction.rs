//! Write transactions that are run again when they lose a race, and reads that cannot write.
//!
//! **Invariants**
//! - A lost race (SQLSTATE 40001 or 40P01, SQLITE_BUSY) is remembered by the transaction
//!   itself, so it is retried whatever error the body makes of it; any other error of the body
//!   aborts at once.
//! - Once a statement failed, the transaction does not commit, even when the body says so:
//!   PostgreSQL would silently roll back, SQLite would commit the rest.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, ExecResult,
    IsolationLevel, QueryResult, RuntimeErr, SqliteTransactionMode, Statement, TransactionOptions,
    TransactionTrait,
};
use tokio::{
    sync::{RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};

use crate::{
    connect::{Backend, Db},
    error::{Class, DbError, Placed},
};

/// How often a transaction is tried.
const TRIES: u32 = 20;
/// After so many tries it runs alone.
const TRIES_SIDE_BY_SIDE: u32 = 2;
/// No further try begins after this long.
const TRYING: Duration = Duration::from_secs(10);
/// The first pause is up to this long; each later one up to twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An open write transaction; `&Tx` is what sea-orm's queries take.
///
/// It ends with the body that it was handed to: keeping it is an error.
#[derive(Debug)]
pub struct Tx {
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    transaction: DatabaseTransaction,
    place: Arc<str>,
    /// The first statement that failed.
    failed: Mutex<Option<DbErr>>,
}

/// Statements outside of a transaction, which cannot write.
#[derive(Debug)]
pub struct Reader {
    connection: DatabaseConnection,
    place: Arc<str>,
}

impl Db {
    /// Runs `body` in a write transaction, commits when it says `Ok` and rolls back when it
    /// says `Err`. When the transaction loses a race, `body` runs again from the start (at
    /// most 20 times within 10 s, with random pauses), so it must not have effects elsewhere.
    ///
    /// `body` must not wait for another write of the same database, inside of itself or on
    /// another task: on SQLite that one waits for this one to end.
    ///
    /// When the returned future is dropped, the transaction is rolled back, unless its commit
    /// is under way already.
    ///
    /// # Errors
    /// [`DbError::Unavailable`] leaves open whether the transaction was committed when the
    /// connection broke off while it was; an idempotency key makes the repetition safe.
    /// What `body` says; otherwise, as `E::from`: [`DbError::Busy`] after too many tries, and
    /// what the database says to begin and commit. When a statement failed and `body` said
    /// `Ok` nevertheless, the error of that statement.
    pub async fn write<T, E, F, Fut>(&self, body: F) -> Result<T, E>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send,
        E: From<DbError>,
    {
        self.write_at(IsolationLevel::Serializable, body).await
    }

    /// [`write`](Self::write) with another isolation level on PostgreSQL.
    pub(crate) async fn write_at<T, E, F, Fut>(
        &self,
        isolation: IsolationLevel,
        body: F,
    ) -> Result<T, E>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send,
        E: From<DbError>,
    {
        let mut tries = Tries::new();
        loop {
            let turn = self.turn(&tries).await;
            let lost = match self.attempt(isolation, &body).await {
                Ok(outcome) => return outcome,
                Err(lost) => lost,
            };
            drop(turn);
            tracing::debug!(error = %lost, tries = tries.made, "transaction lost a race");
            tries.again(lost).await?;
        }
    }

    /// Lets a transaction that lost repeatedly run alone in this process, so that a row that
    /// everybody wants does not starve anybody.
    async fn turn(&self, tries: &Tries) -> Turn<'_> {
        if tries.made <= TRIES_SIDE_BY_SIDE {
            Turn::Shared(self.inner.turn.read().await)
        } else {
            Turn::Alone(self.inner.turn.write().await)
        }
    }

    /// The outer error is a lost race.
    async fn attempt<T, E, F, Fut>(
        &self,
        isolation: IsolationLevel,
        body: &F,
    ) -> Result<Result<T, E>, DbErr>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send,
        E: From<DbError>,
    {
        let transaction = match self.begin(isolation).await {
            Ok(transaction) => transaction,
            Err(error) => return self.settle(error),
        };
        let open = Arc::new(Open {
            transaction,
            place: Arc::clone(&self.inner.place),
            failed: Mutex::new(None),
        });
        let outcome = Box::pin(body(Tx {
            open: Arc::clone(&open),
        }))
        .await;
        let Some(open) = Arc::into_inner(open) else {
            return Ok(Err(DbError::TransactionKept.into()));
        };
        let failed = open
            .failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match (failed, outcome) {
            (None, Ok(value)) => match open.transaction.commit().await {
                Ok(()) => Ok(Ok(value)),
                Err(error) => self.settle(error),
            },
            (None, Err(error)) => {
                roll_back(open.transaction).await;
                Ok(Err(error))
            }
            (Some(failed), outcome) => {
                roll_back(open.transaction).await;
                match (Class::of(&failed), outcome) {
                    (Class::Lost, _) => Err(failed),
                    (_, Ok(_)) => Ok(Err(DbError::from(failed).into())),
                    (_, Err(error)) => Ok(Err(error)),
                }
            }
        }
    }

    /// Tells a lost race from an error.
    fn settle<T, E: From<DbError>>(&self, error: DbErr) -> Result<Result<T, E>, DbErr> {
        if Class::of(&error) == Class::Lost {
            return Err(error);
        }
        Ok(Err(DbError::from(self.inner.placed(error)).into()))
    }

    pub(crate) async fn begin(
        &self,
        isolation: IsolationLevel,
    ) -> Result<DatabaseTransaction, DbErr> {
        let writer = self.inner.writer.clone();
        let options = match self.backend() {
            Backend::Sqlite => TransactionOptions {
                sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
                ..TransactionOptions::default()
            },
            Backend::Postgres => TransactionOptions {
                isolation_level: Some(isolation),
                ..TransactionOptions::default()
            },
        };
        // sqlx forgets a transaction whose BEGIN was sent but not yet answered when the future
        // is dropped, and hands the connection out with it (its issue 4393). On a task of its
        // own BEGIN always finishes; a result that nobody takes is rolled back by its drop.
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with BEGIN, and this crate is below the kit"
        )]
        let begun = tokio::spawn(async move { writer.begin_with_options(options).await });
        begun.await.unwrap_or_else(|error| {
            Err(DbErr::Conn(RuntimeErr::Internal(format!(
                "beginning a transaction broke off: {error}"
            ))))
        })
    }
}

/// A failed rollback costs the connection, which the pool then drops; nothing is committed.
async fn roll_back(transaction: DatabaseTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "rollback failed");
    }
}

impl Tx {
    fn note(&self, error: DbErr) -> DbErr {
        let error = Placed::add(&self.open.place, error);
        self.open
            .failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.clone());
        error
    }
}

#[async_trait]
impl ConnectionTrait for Tx {
    fn get_database_backend(&self) -> DbBackend {
        self.open.transaction.get_database_backend()
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        let done = self.open.transaction.execute_raw(stmt).await;
        done.map_err(|error| self.note(error))
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let done = self.open.transaction.execute_unprepared(sql).await;
        done.map_err(|error| self.note(error))
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        let row = self.open.transaction.query_one_raw(stmt).await;
        row.map_err(|error| self.note(error))
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        let rows = self.open.transaction.query_all_raw(stmt).await;
        rows.map_err(|error| self.note(error))
    }
}

impl Reader {
    pub(crate) fn new(connection: DatabaseConnection, place: Arc<str>) -> Self {
        Self { connection, place }
    }

    pub(crate) fn connection(&self) -> &DatabaseConnection {
        &self.connection
    }

    fn placed(&self, error: DbErr) -> DbErr {
        Placed::add(&self.place, error)
    }
}

#[async_trait]
impl ConnectionTrait for Reader {
    fn get_database_backend(&self) -> DbBackend {
        self.connection.get_database_backend()
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        let done = self.connection.execute_raw(stmt).await;
        done.map_err(|error| self.placed(error))
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        let done = self.connection.execute_unprepared(sql).await;
        done.map_err(|error| self.placed(error))
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        let row = self.connection.query_one_raw(stmt).await;
        row.map_err(|error| self.placed(error))
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        let rows = self.connection.query_all_raw(stmt).await;
        rows.map_err(|error| self.placed(error))
    }
}

/// Held while a transaction runs.
#[expect(dead_code, reason = "the guards are kept for their drop")]
enum Turn<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

struct Tries {
    made: u32,
    began: Instant,
}

impl Tries {
    fn new() -> Self {
        Self {
            made: 1,
            began: Instant::now(),
        }
    }

    /// Pauses before the next try.
    async fn again(&mut self, lost: DbErr) -> Result<(), DbError> {
        if self.made >= TRIES || self.began.elapsed() >= TRYING {
            return Err(DbError::Busy {
                tries: self.made,
                source: lost.into(),
            });
        }
        let most = FIRST_PAUSE
            .saturating_mul(1 << self.made.min(10))
            .min(LONGEST_PAUSE);
        self.made += 1;
        tokio::time::sleep(random_part(most)).await;
        Ok(())
    }
}

/// Losers that wait equally long meet again, so each waits a random part of the pause.
fn random_part(most: Duration) -> Duration {
    // Without randomness the pause is merely not spread.
    let part = getrandom::u32().unwrap_or(u32::MAX);
    most.mul_f64(f64::from(part) / f64::from(u32::MAX))
}
