//! The migration-svc binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnlab_service::main::<migration_svc::Migration>()
}
