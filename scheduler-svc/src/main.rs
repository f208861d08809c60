//! The scheduler as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnlab_service::main::<scheduler_svc::Scheduler>()
}
