//! The scheduler alone, over real gRPC, on SQLite and on PostgreSQL.
//!
//! Nodes and billing are small servers that speak the same protocol and keep state; nothing of
//! the scheduler is replaced. Needs PostgreSQL and redis-server (Debian packages `postgresql`
//! and `redis-server`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod bad_input;
mod burst;
mod clock;
mod crash;
mod explain;
mod gpus;
mod idempotency;
mod leads;
mod life;
mod nodes;
mod peers;
mod queue;
mod quota;
mod roster;
mod runs;
mod tenants;
mod trace;
mod walk;
mod world;

/// Runs each test on both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::world::Database::Sqlite).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::world::Database::Postgres).await;
            })*
        }
    };
}
pub(crate) use on_both;
