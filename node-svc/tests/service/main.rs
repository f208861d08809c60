//! The node as a service: real environments, real JupyterLab servers, real gRPC.
//!
//! Needs root, python3 with venv, and a Python index (PIP_INDEX_URL or pip's own).
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail the test"
)]

mod endings;
mod environments;
mod expiry;
mod first_kernel;
mod gpus;
mod refusals;
mod runs;
mod servers;
mod support;
