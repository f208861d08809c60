//! Opens the pools behind a [`Db`].
//!
//! **Invariant**: two pools, one that writes and one that cannot. On SQLite the writing pool
//! has one connection, so writers queue in order and readers (WAL) never wait for them.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbErr, RuntimeErr, SqlxError, SqlxPostgresConnector,
    SqlxSqliteConnector,
    sqlx::{
        Connection, Database, Error,
        pool::PoolOptions,
        postgres::PgConnectOptions,
        sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
    },
};

use tokio::sync::RwLock;

use crate::{
    config::{DatabaseConfig, Target},
    error::{DbError, Placed},
    transaction::Reader,
};

/// How long SQLite waits for another process that writes to the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a statement waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long PostgreSQL may take to give a connection; while it is down, a new one is tried
/// again and again until then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Readers of an SQLite file; each is a thread.
const SQLITE_READERS: u32 = 4;
/// Six services with both pools stay below PostgreSQL's default of 100 connections.
const POSTGRES_WRITERS: u32 = 8;
const POSTGRES_READERS: u32 = 4;
/// Ends a session that sits in a transaction, should one ever be left open.
const IDLE_IN_TRANSACTION: &str = "60000";

/// Which database is behind a [`Db`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// One file, one process.
    Sqlite,
    /// A server, several processes.
    Postgres,
}

/// A service's database. Clones share the pools.
#[derive(Clone)]
pub struct Db {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) backend: Backend,
    pub(crate) place: Arc<str>,
    pub(crate) writer: DatabaseConnection,
    /// Shared by transactions that run side by side; exclusive for one that lost repeatedly.
    pub(crate) turn: RwLock<()>,
    reader: Reader,
}

impl Db {
    /// Opens the database and reads its header and table list.
    ///
    /// The cost does not grow with the database, so a damaged page that holds only rows is not
    /// seen here: it surfaces as [`DbError::Corrupt`] when it is read. Nor can anybody see a
    /// write-ahead log whose end was cut off or overwritten: SQLite takes it for the traces of
    /// a crash and continues without what stood there.
    ///
    /// # Errors
    /// [`DbError::Config`] for a URL that cannot be understood, [`DbError::Corrupt`] for a
    /// damaged SQLite file, [`DbError::DiskFull`] and [`DbError::Unavailable`] as they say.
    pub async fn connect(config: &DatabaseConfig) -> Result<Self, DbError> {
        match config.target().map_err(DbError::Config)? {
            Target::Sqlite(options) => Self::open_sqlite(options).await,
            Target::Postgres(options) => Self::open_postgres(options, config.masked().into()).await,
        }
    }

    /// Reads outside of a transaction: each statement sees what is committed when it begins.
    /// A statement that writes is refused by the database.
    #[must_use]
    pub fn read(&self) -> &Reader {
        &self.inner.reader
    }

    /// Which database this is.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.inner.backend
    }

    /// Closes all connections, for all clones; statements that run now end first.
    pub async fn close(&self) {
        // Both are closed by reference and cannot fail.
        for connection in [&self.inner.writer, self.inner.reader.connection()] {
            if let Err(error) = connection.close_by_ref().await {
                tracing::warn!(%error, "closing a database connection failed");
            }
        }
    }

    async fn open_sqlite(options: SqliteConnectOptions) -> Result<Self, DbError> {
        let place: Arc<str> = options.get_filename().to_string_lossy().into();
        let writes = options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let reads = writes.clone().pragma("query_only", "ON");
        check_folder(writes.get_filename()).map_err(|error| DbError::at(&place, error))?;

        let failed = |error| DbError::at(&place, connect_error(error));
        // Connections to a file do not go stale.
        let pool = |size| {
            guarded(PoolOptions::new())
                .max_connections(size)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .idle_timeout(None)
                .max_lifetime(None)
        };
        let writer = pool(1).connect_with(writes).await.map_err(failed)?;
        let reader = pool(SQLITE_READERS).connect_lazy_with(reads);
        let db = Self::new(
            Backend::Sqlite,
            place,
            SqlxSqliteConnector::from_sqlx_sqlite_pool(writer),
            SqlxSqliteConnector::from_sqlx_sqlite_pool(reader),
        );
        // Reads the header, checks it against the length of the file, and parses the tables.
        let seen = db
            .read()
            .execute_unprepared("SELECT count(*) FROM sqlite_schema")
            .await;
        if let Err(error) = seen {
            db.close().await;
            return Err(error.into());
        }
        Ok(db)
    }

    async fn open_postgres(options: PgConnectOptions, place: Arc<str>) -> Result<Self, DbError> {
        let writes = options
            .application_name("cnlab")
            .options([("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION)]);
        let reads = writes
            .clone()
            .options([("default_transaction_read_only", "on")]);
        let failed = |error| DbError::at(&place, connect_error(error));
        let pool = |size| {
            guarded(PoolOptions::new())
                .max_connections(size)
                .acquire_timeout(CONNECT_TIMEOUT)
        };
        let writer = pool(POSTGRES_WRITERS)
            .connect_with(writes)
            .await
            .map_err(failed)?;
        let reader = pool(POSTGRES_READERS).connect_lazy_with(reads);
        Ok(Self::new(
            Backend::Postgres,
            Arc::clone(&place),
            SqlxPostgresConnector::from_sqlx_postgres_pool(writer),
            SqlxPostgresConnector::from_sqlx_postgres_pool(reader),
        ))
    }

    fn new(
        backend: Backend,
        place: Arc<str>,
        writer: DatabaseConnection,
        reader: DatabaseConnection,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                backend,
                reader: Reader::new(reader, Arc::clone(&place)),
                place,
                writer,
                turn: RwLock::new(()),
            }),
        }
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Db").field(&self.inner.place).finish()
    }
}

impl Inner {
    pub(crate) fn placed(&self, error: DbErr) -> DbErr {
        Placed::add(&self.place, error)
    }
}

/// Drops a returned connection that is still inside a transaction.
///
/// sqlx counts the depth itself and can be wrong about it: SQLite ends a transaction by itself
/// when a commit finds the disk full, after which the count stays too high for ever.
fn guarded<D: Database>(options: PoolOptions<D>) -> PoolOptions<D> {
    options.after_release(|connection, _| {
        Box::pin(async move {
            // Carries out a rollback that a dropped transaction has queued.
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}

/// SQLite says no more than "unable to open database file".
fn check_folder(file: &Path) -> Result<(), DbErr> {
    let Some(folder) = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    else {
        return Ok(());
    };
    if folder.is_dir() {
        return Ok(());
    }
    let missing = std::io::Error::new(
        std::io::ErrorKind::NotFound,
        format!("the folder {} does not exist", folder.display()),
    );
    Err(connect_error(SqlxError::Io(missing)))
}

fn connect_error(error: Error) -> DbErr {
    DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error)))
}
