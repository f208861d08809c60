//! What can go wrong with a database, in the few classes that callers tell apart.

use std::{error::Error, fmt, sync::Arc};

use cnlab_model::{ErrorKind, Fault};
use sea_orm::{DbErr, RuntimeErr, SqlxError, SqlxSqliteError, sqlx::error::DatabaseError};
use thiserror::Error;

/// An error of the database.
///
/// `place` is the path of an SQLite file, or the URL of a PostgreSQL database without its
/// password.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DbError {
    /// The file is no database, or is damaged.
    #[error("the database {place} is damaged")]
    Corrupt {
        /// Which database.
        place: Arc<str>,
        /// What the database said.
        source: Cause,
    },
    /// There is no room to write.
    #[error("the disk that holds the database {place} is full")]
    DiskFull {
        /// Which database.
        place: Arc<str>,
        /// What the database said.
        source: Cause,
    },
    /// The database cannot be reached or opened, or broke off.
    #[error("the database {place} is not available")]
    Unavailable {
        /// Which database.
        place: Arc<str>,
        /// What the driver said.
        source: Cause,
    },
    /// A transaction lost against others every time it was tried.
    #[error("the transaction lost against others {tries} times")]
    Busy {
        /// How often it was tried.
        tries: u32,
        /// What the database said last.
        source: Cause,
    },
    /// A row with this key is there already.
    #[error("a row with this key is there already")]
    UniqueViolation {
        /// What the database said, with the name of the constraint.
        source: Cause,
    },
    /// A row refers to one that is not there, or the other way round.
    #[error("a row refers to one that is not there")]
    ForeignKeyViolation {
        /// What the database said.
        source: Cause,
    },
    /// A newer version of the service has changed the tables.
    #[error("the tables were made by a newer version: this one does not know {migration}")]
    SchemaNewer {
        /// The first migration that this version does not know.
        migration: String,
    },
    /// An idempotency key was used before, with another request.
    #[error("this idempotency key was used before, with another request")]
    IdempotencyMismatch,
    /// An idempotency key was begun and committed without a response.
    #[error("the request with this idempotency key has no response yet")]
    IdempotencyUnfinished,
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The body of a transaction kept its handle, so that it cannot be committed.
    #[error("the transaction was kept beyond its end")]
    TransactionKept,
    /// Anything else: a defect of ours.
    #[error("the database refused a statement")]
    Other {
        /// What the database or sea-orm said.
        source: Cause,
    },
}

impl DbError {
    /// Whether a row with this key is there already.
    #[must_use]
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Self::UniqueViolation { .. })
    }

    pub(crate) fn at(place: &Arc<str>, error: DbErr) -> Self {
        let place = Arc::clone(place);
        let class = Class::of(&error);
        let source = Cause(error);
        match class {
            Class::Corrupt => Self::Corrupt { place, source },
            Class::Full => Self::DiskFull { place, source },
            Class::Away => Self::Unavailable { place, source },
            Class::Lost => Self::Busy { tries: 1, source },
            Class::Unique => Self::UniqueViolation { source },
            Class::ForeignKey => Self::ForeignKeyViolation { source },
            Class::Other => Self::Other { source },
        }
    }
}

impl From<DbErr> for DbError {
    fn from(error: DbErr) -> Self {
        match Placed::inside(&error) {
            Some(placed) => Self::at(&placed.place, placed.error.clone()),
            None => Self::at(&Arc::from("of this service"), error),
        }
    }
}

impl Fault for DbError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Corrupt { .. }
            | Self::SchemaNewer { .. }
            | Self::TransactionKept
            | Self::ForeignKeyViolation { .. }
            | Self::Other { .. } => ErrorKind::Internal,
            Self::DiskFull { .. } | Self::Unavailable { .. } | Self::Busy { .. } => {
                ErrorKind::Unavailable
            }
            Self::UniqueViolation { .. } => ErrorKind::AlreadyExists,
            Self::IdempotencyMismatch | Self::Config(_) => ErrorKind::Invalid,
            Self::IdempotencyUnfinished => ErrorKind::Conflict,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Corrupt { .. } => "DATABASE_CORRUPT",
            Self::DiskFull { .. } => "DATABASE_FULL",
            Self::Unavailable { .. } => "DATABASE_UNAVAILABLE",
            Self::Busy { .. } => "DATABASE_BUSY",
            Self::UniqueViolation { .. } => "ALREADY_EXISTS",
            Self::ForeignKeyViolation { .. } => "REFERENCE_MISSING",
            Self::SchemaNewer { .. } => "DATABASE_NEWER",
            Self::IdempotencyMismatch => "IDEMPOTENCY_MISMATCH",
            Self::IdempotencyUnfinished => "IDEMPOTENCY_UNFINISHED",
            Self::Config(_) => "DATABASE_CONFIG",
            Self::TransactionKept | Self::Other { .. } => "DATABASE_ERROR",
        }
    }

    fn try_this(&self) -> Option<String> {
        match self {
            Self::Corrupt { place, .. } if place.contains("://") => Some(
                "stop writing to this PostgreSQL server and restore it from a backup".to_owned(),
            ),
            Self::Corrupt { place, .. } => Some(format!(
                "stop the service and keep a copy of {place}, {place}-wal and {place}-shm; then restore \
                 them from a backup, or move all three aside to begin with an empty database"
            )),
            Self::DiskFull { .. } => Some(
                "free space on that disk and repeat; nothing that was acknowledged is lost"
                    .to_owned(),
            ),
            Self::Unavailable { .. } => Some(
                "check that the database runs, can be reached and may be opened, then repeat"
                    .to_owned(),
            ),
            Self::Busy { .. } => Some("repeat in a moment".to_owned()),
            Self::SchemaNewer { .. } => {
                Some("run the newer version of this service again".to_owned())
            }
            Self::IdempotencyMismatch => Some("use a new idempotency key".to_owned()),
            Self::IdempotencyUnfinished
            | Self::UniqueViolation { .. }
            | Self::ForeignKeyViolation { .. }
            | Self::Config(_)
            | Self::TransactionKept
            | Self::Other { .. } => None,
        }
    }

    fn field(&self) -> Option<&str> {
        matches!(self, Self::Config(_)).then_some("database.url")
    }
}

/// What the database, its driver or sea-orm said, without what they wrap around it.
#[derive(Clone)]
pub struct Cause(DbErr);

impl From<DbErr> for Cause {
    fn from(error: DbErr) -> Self {
        Self(error)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (DbErr::Conn(inner) | DbErr::Exec(inner) | DbErr::Query(inner)) = &self.0 else {
            return self.0.fmt(f);
        };
        match inner {
            RuntimeErr::SqlxError(error) => match error.as_ref() {
                SqlxError::Database(said) => said.fmt(f),
                SqlxError::Io(said) => said.fmt(f),
                SqlxError::Configuration(said) => said.fmt(f),
                other => other.fmt(f),
            },
            RuntimeErr::Internal(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The texts above hold all that the wrapped errors would say again.
impl Error for Cause {}

/// What a driver's error means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Another transaction won: run it again.
    Lost,
    Corrupt,
    Full,
    Away,
    Unique,
    ForeignKey,
    Other,
}

impl Class {
    pub(crate) fn of(error: &DbErr) -> Self {
        match error {
            DbErr::Conn(RuntimeErr::SqlxError(inner))
            | DbErr::Exec(RuntimeErr::SqlxError(inner))
            | DbErr::Query(RuntimeErr::SqlxError(inner)) => Self::of_sqlx(inner),
            DbErr::ConnectionAcquire(_) | DbErr::Conn(RuntimeErr::Internal(_)) => Self::Away,
            _ => Self::Other,
        }
    }

    fn of_sqlx(error: &SqlxError) -> Self {
        match error {
            SqlxError::Database(inner) => Self::of_database(inner.as_ref()),
            SqlxError::Io(inner) if inner.kind() == std::io::ErrorKind::StorageFull => Self::Full,
            SqlxError::Configuration(inner) => inner
                .downcast_ref::<Placed>()
                .map_or(Self::Other, |placed| Self::of(&placed.error)),
            SqlxError::Io(_)
            | SqlxError::Tls(_)
            | SqlxError::Protocol(_)
            | SqlxError::PoolTimedOut
            | SqlxError::PoolClosed
            | SqlxError::BeginFailed
            | SqlxError::WorkerCrashed => Self::Away,
            _ => Self::Other,
        }
    }

    fn of_database(error: &dyn DatabaseError) -> Self {
        let code = error.code().unwrap_or_default();
        if error.try_downcast_ref::<SqlxSqliteError>().is_some() {
            return code.parse().map_or(Self::Other, Self::of_sqlite);
        }
        match code.as_ref() {
            // serialization_failure, deadlock_detected
            "40001" | "40P01" => Self::Lost,
            // disk_full
            "53100" => Self::Full,
            // data_corrupted, index_corrupted
            "XX001" | "XX002" => Self::Corrupt,
            "23505" => Self::Unique,
            "23503" => Self::ForeignKey,
            // too_many_connections; shutdowns and starts; a database or a user that is not there
            "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "3D000" | "28000"
            | "28P01" => Self::Away,
            code if code.starts_with("08") => Self::Away,
            _ => Self::Other,
        }
    }

    /// The numbers are SQLite's extended result codes: the lowest byte is the primary one.
    fn of_sqlite(code: u32) -> Self {
        const IOERR_SHMSIZE: u32 = 10 | (19 << 8);
        const CONSTRAINT_FOREIGNKEY: u32 = 19 | (3 << 8);
        const CONSTRAINT_PRIMARYKEY: u32 = 19 | (6 << 8);
        const CONSTRAINT_UNIQUE: u32 = 19 | (8 << 8);
        match code {
            CONSTRAINT_UNIQUE | CONSTRAINT_PRIMARYKEY => return Self::Unique,
            CONSTRAINT_FOREIGNKEY => return Self::ForeignKey,
            // The shared-memory file could not grow.
            IOERR_SHMSIZE => return Self::Full,
            _ => {}
        }
        match code & 0xff {
            // BUSY, LOCKED
            5 | 6 => Self::Lost,
            // CORRUPT, NOTADB
            11 | 26 => Self::Corrupt,
            // FULL
            13 => Self::Full,
            // READONLY, IOERR, CANTOPEN
            8 | 10 | 14 => Self::Away,
            _ => Self::Other,
        }
    }
}

/// A driver's error together with the place it came from.
///
/// sea-orm's traits fix the error type of every statement, so the place travels inside of it.
#[derive(Debug)]
pub(crate) struct Placed {
    place: Arc<str>,
    error: DbErr,
}

impl Placed {
    /// Adds the place where it matters; other errors stay as they are, so that
    /// `DbErr::sql_err` keeps working.
    pub(crate) fn add(place: &Arc<str>, error: DbErr) -> DbErr {
        match Class::of(&error) {
            Class::Corrupt | Class::Full | Class::Away => {
                let placed = Self {
                    place: Arc::clone(place),
                    error,
                };
                DbErr::Conn(RuntimeErr::SqlxError(Arc::new(SqlxError::Configuration(
                    Box::new(placed),
                ))))
            }
            Class::Lost | Class::Unique | Class::ForeignKey | Class::Other => error,
        }
    }

    fn inside(error: &DbErr) -> Option<&Self> {
        let DbErr::Conn(RuntimeErr::SqlxError(inner)) = error else {
            return None;
        };
        let SqlxError::Configuration(inner) = inner.as_ref() else {
            return None;
        };
        inner.downcast_ref()
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.error)
    }
}

impl Error for Placed {}
