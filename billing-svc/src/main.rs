//! The binary `billing-svc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnlab_service::main::<billing_svc::Billing>()
}
