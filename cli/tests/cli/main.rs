//! The real `cnlab` program against a real gRPC server that keeps state, over loopback.
//!
//! The golden transcripts in `tests/golden` are run line by line; `REWRITE=1` accepts what they
//! print now. The completion tests run real shells, and name the package of one that is missing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod completion;
mod demo;
mod golden;
mod harness;
mod machine;
mod peer;
mod requests;
mod signing_in;
mod terminal;
mod tracing;
mod waiting;
