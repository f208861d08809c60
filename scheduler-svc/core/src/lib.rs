//! The pure decisions of the scheduler: where a server or run goes, who goes first, how long it
//! takes, what may follow what.
//!
//! **Invariants**: no I/O, no async, no clock and no randomness; the same input gives the
//! same answer, whatever the order in which nodes are named; integers only, but for the
//! published baseline in `fragmentation`.
//!
//! ```text
//! nodes, arrivals, ends, now ──▶ engine::Engine ──▶ Start | Stop | ...   (+ explain::Report)
//!                     plan (who goes when) · index (where) · fairshare · preempt
//! state, event ─────────▶ server::step, run::step ──▶ state | Refused
//! who waits ────────────▶ order::Turn ──▶ who goes first
//! ```
#![warn(
    missing_docs,
    clippy::wildcard_enum_match_arm,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic
)]
#![cfg_attr(
    test,
    expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a panic is how a test fails"
    )
)]

pub mod cluster;
pub mod deadline;
pub mod engine;
pub mod estimate;
pub mod explain;
pub mod fairshare;
pub mod fragmentation;
pub mod history;
pub mod index;
pub mod mig;
pub mod near;
pub mod order;
pub mod packing;
pub mod placement;
pub mod plan;
pub mod preempt;
pub mod profile;
pub mod quota;
mod reason;
pub mod run;
pub mod runtime_estimate;
pub mod server;
pub mod start_estimate;
pub mod timeline;

pub use reason::{QueueReason, RejectReason};
