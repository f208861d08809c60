//! Every CNLab service in one process, over real loopback gRPC: what `cnlab up` and the
//! tests start.
//!
//! ```text
//! browser, cnlab ──▶ gateway :8080 ──▶ scheduler-svc ──▶ node-svc ──▶ JupyterLab
//!                        │                 │   ▲            │
//!                        └──▶ billing-svc ◀┘   └────────────┘      migration-svc, cloud-svc
//! ```
//!
//! **Invariant**: this is the only crate beside the tests that sees every service, and it
//! decides nothing: it makes configurations and starts services.
#![warn(missing_docs)]

mod data_folder;
mod stack;

use std::process::ExitCode;

pub use stack::{GpuChoice, Stack, UpConfig};

/// Whether this process was started to become a sandbox; then its exit code. To be asked
/// first thing in `main`, before any thread is started.
#[must_use]
pub fn dispatch_reexec() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == node_sandbox::EXEC_VERB)
        .then(|| node_sandbox::sandbox_exec_main(arguments))
}
