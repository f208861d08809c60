//! The cloud-svc binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnlab_service::main::<cloud_svc::Cloud>()
}
