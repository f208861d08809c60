//! The pure rules of accounts and usage: what a credential looks like, what a held slice adds
//! up to, and who may do what.
//!
//! **Invariants**: no I/O, no async, no clock and no randomness (random bytes come in);
//! integers only.
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

mod account;
pub mod meter;
pub mod policy;
pub mod token;

pub use account::AccountName;
