//! Replays a public cluster trace through placement policies: the published ones, which it
//! must reproduce, and the scheduler's own.
//!
//! ```text
//! openb ──▶ trace ──▶ experiment (seed) ──▶ replay ◀── policy
//!                                             │
//!                                  grid ──▶ report ◀── published
//! ```
//!
//! It is for measuring: nothing of it is shipped.

#![cfg_attr(
    test,
    expect(clippy::float_cmp, reason = "the same operations give the same bits")
)]

pub mod baseline;
pub mod chart;
pub mod contender;
pub mod day;
pub mod experiment;
pub mod figures;
pub mod grid;
pub mod openb;
pub mod options;
pub mod planned;
pub mod prng;
pub mod published;
pub mod queue;
pub mod replay;
pub mod report;
pub mod trace;

#[cfg(test)]
mod tests;
