//! The decisions of a node, without I/O: who holds which blocks, and where a workload is in its life.
//!
//! **Invariants**
//! - Of two live claims on one block, the one with the higher fence holds it and the other leaves.
//! - A fence that is not newer than one seen for a block is never executed, for ever.
//! - Every event is answered in every state of a workload's life.
//!
//! The shell persists what [`book::carve`] returns before it starts anything, and starts nothing
//! while [`book::Book::in_the_way`] still names somebody.
#![warn(missing_docs)]
#![warn(clippy::wildcard_enum_match_arm)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

pub mod book;
pub mod expiry;
pub mod id;
pub mod workload;

pub use book::{Ask, Book, Effects, GpuSize, Holder, Refused, Slice, carve};
pub use id::WorkloadId;
pub use workload::{Event, Phase, step};
