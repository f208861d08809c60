//! Opens a service's database (SQLite or PostgreSQL) and keeps the tables that every service shares.
//!
//! ```text
//!  config ─▶ Db ─┬─ read()  ─▶ Reader   statements that cannot write
//!                └─ write() ─▶ Tx       one transaction, run again when it loses a race
//!                               ├─ idempotency   the same request twice has one effect
//!                               └─ outbox        what other services are to be told
//! ```
//!
//! **Invariants**
//! - Every write is part of a transaction: SQLite has one writer at a time (`BEGIN IMMEDIATE`),
//!   PostgreSQL runs them SERIALIZABLE. What was acknowledged survives a crash of the machine.
//! - A transaction in which a statement failed is never committed, on either database.
//! - A future that is dropped half-way leaves no open transaction behind. Its outcome is
//!   unknown to whoever dropped it, so request handlers run detached from their connection.
//! - Only this crate, and the `store` of a service, name sea-orm.
#![warn(missing_docs)]

mod config;
mod connect;
mod error;
pub mod idempotency;
mod m20260101_000001_outbox_and_idempotency;
mod m20260101_000003_outbox_destination;
mod migrate;
pub mod outbox;
mod transaction;

pub use config::DatabaseConfig;
pub use connect::{Backend, Db};
pub use error::{Cause, DbError};
pub use migrate::{kit_migrations, migrate, pending};
pub use transaction::{Reader, Tx};
