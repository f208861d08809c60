//! Says who is alive: leases with a fence and a time to live, and rate counters, in Redis or in memory.
//!
//! Invariants:
//! - A lease is liveness only. The grant row and its fence in the scheduler's database are the
//!   truth, fences are handed in and never made here, and everything here may be lost at any time.
//! - A holder is recognised by its name *and* its fence; a fence below the highest one that ever
//!   held the key is refused, also after the lease has ended.
//! - One clock counts per store: that of the Redis server, or this process's for the embedded one.
//!   No client's clock is compared with another's.
//! - Both stores pass the same [`contract`]; this is the only crate that names redis.
//!
//! ```text
//!   acquire(fence n) ──▶ live ──renew──▶ live ──release──▶ ended: fences <= n are refused
//!                         │ ttl passes
//!                         ▼
//!                       lapsed ──sweep──▶ one expiry event; the same holder and fence may come
//!                                         back, anybody else needs a fence above n
//! ```

pub mod contract;
mod election;
mod embedded;
mod error;
mod ports;
mod redis;
mod watch;

pub use election::{Election, ElectionError, FenceSource, Role, Step};
pub use embedded::EmbeddedStore;
pub use error::LeaseError;
pub use ports::{
    Acquired, Claim, Counter, Cursor, Epoch, FENCE_MEMORY, Lease, LeaseExpired, LeaseStore, Lost,
    MAX_BATCH, MAX_NAME, MAX_TTL, Rate, Renewal, SWEEP_EVERY, Sweep, Taken,
};
pub use redis::{RedisOptions, RedisStore};
pub use watch::{ExpiryWatch, LeaseEvent};
