//! The nouns that every CNLab crate shares: ids, names, sizes, blocks, time and error kinds.
//!
//! **Invariant**: no I/O, no clock and no randomness; parsing is strict, and what was parsed
//! prints back as the same text.
#![warn(missing_docs)]

pub mod error;
pub mod gpu;
pub mod id;
pub mod mig;
pub mod name;
pub mod size;
pub mod time;

pub use error::{ErrorKind, Fault};
pub use gpu::{BLOCKS_PER_GPU, Blocks};
pub use name::{ProjectName, RunName, ServerName};
pub use size::ByteSize;
pub use time::Timestamp;
