//! The gateway's binary.

fn main() -> std::process::ExitCode {
    cnlab_service::main::<gateway::Gateway>()
}
