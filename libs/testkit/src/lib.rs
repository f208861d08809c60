//! Starts the real peers that tests run against, and watches what a test leaves behind.
//!
//! Invariants:
//! - A peer is a real program (`redis-server`, PostgreSQL); where it is missing the error names the
//!   Debian package, and no caller is offered a way to skip.
//! - Whatever was started here ends with its guard, and also when the test process is killed.
//! - Everything listens on loopback only, on ports that no other test process was given.
//!
//! For tests only: production crates must not depend on it outside `[dev-dependencies]`.

mod otlp;
mod port;
mod postgres;
mod process;
mod redis;
mod scratch;
mod trace;
mod wait;

pub use nix::sys::signal::Signal;

pub use otlp::{OtlpReceiver, SpanEvent, SpanRecord};
pub use port::free_port;
pub use postgres::PostgresServer;
pub use process::{ChildGuard, ProcessEntry, find_program, marked, tied_command, tree_of};
pub use redis::RedisServer;
pub use scratch::ScratchDir;
pub use trace::TraceTree;
pub use wait::{GENEROUS, wait_for, wait_until};
