//! The kit on which every CNLab service runs: configuration, telemetry, health, reflection,
//! status codes, tasks, listeners and channels, so that all services look alike inside.
//!
//! A service implements [`Service`]; its `main` is one call of [`main`]. `cnlab up` and the
//! tests call [`start`] instead and get the same service on a listener of their choice.
//!
//! **Invariant**: only this crate reads the environment, the wall clock and the source of
//! randomness; everybody else takes them from [`Runtime`].
#![warn(missing_docs)]

pub mod caller;
pub mod channel;
pub mod config;
mod grpc;
pub mod metrics;
pub mod net;
pub mod run;
pub mod runtime;
pub mod secret;
mod service;
pub mod status;
pub mod task;
pub mod telemetry;
pub mod trace;

pub use caller::Caller;
pub use config::{CommonConfig, ConfigFault, ServiceConfig, Span};
pub use grpc::GrpcStack;
pub use run::main;
pub use runtime::Runtime;
pub use secret::Secret;
pub use service::{Running, Service, StartError, start};
pub use task::{Next, Wake, Worker};
