//! The program that the integration tests start sandboxes with; it is no part of the product.
//!
//! `start SPEC` starts the workload of a specification file, prints one line of JSON
//! (`{"identity": …}` or `{"reason": …, "error": …}`) and stays until its stdin ends.
//! `probe` prints the isolation that this machine gives to this user.

use std::io::Read;
use std::process::ExitCode;

use node_sandbox::{EXEC_VERB, Launcher, SandboxSpec, probe, sandbox_exec_main};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let verb = arguments.first().and_then(|verb| verb.to_str());
    if verb == Some(EXEC_VERB) {
        return sandbox_exec_main(arguments.into_iter().skip(1));
    }
    match (verb, arguments.get(1)) {
        (Some("probe"), None) => {
            println!("{}", probe().isolation());
            ExitCode::SUCCESS
        }
        (Some("start"), Some(path)) => match start(path.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: sandbox_harness probe | start SPEC");
            ExitCode::FAILURE
        }
    }
}

fn start(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let spec: SandboxSpec = serde_json::from_slice(&std::fs::read(path)?)?;
    let answer = match Launcher::current_exe()?.start(&spec) {
        Ok(running) => serde_json::json!({ "identity": running.identity() }),
        Err(error) => serde_json::json!({ "reason": error.reason(), "error": error.to_string() }),
    };
    println!("{answer}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
