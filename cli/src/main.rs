//! `cnlab`, and `autolab` when called by that name.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A child that is to become a sandboxed process does nothing else.
    #[cfg(feature = "up")]
    if let Some(code) = cnlab_up::dispatch_reexec() {
        return code;
    }
    cnlab::run(
        &cnlab::process_args(),
        &cnlab::environment::Environment::read(),
    )
}
