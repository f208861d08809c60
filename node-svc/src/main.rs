//! The node-svc binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any thread: this process may be meant to become a workload's supervisor.
    node_svc::sandbox_main(std::env::args_os())
        .unwrap_or_else(cnlab_service::main::<node_svc::NodeSvc>)
}
