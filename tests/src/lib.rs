//! What the end-to-end suites and benches share: a stack as a user starts it, the command
//! line as a user types it, and a real browser.
//!
//! **Invariant**: everything here drives real binaries and real peers from outside; nothing
//! reaches into a service.

pub mod browser;
pub mod cli;
pub mod lab;
pub mod six;
pub mod stack;
