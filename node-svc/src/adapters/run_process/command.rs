//! What the command of a run is told: its environment, and why it could not be started.

use std::path::Path;

use nix::errno::Errno;
use node_sandbox::SandboxError;

use super::notebook_files;
use crate::{failure::Failure, ports::RunPlan};

/// The complete environment of the process: a notebook's, without what is only for notebooks.
pub(super) fn environment(plan: &RunPlan, workspace: &Path) -> Vec<(String, String)> {
    let mut env = notebook_files::environment(plan, workspace, Path::new(super::RUNTIME));
    env.retain(|(name, _)| !matches!(name.as_str(), "JUPYTER_RUNTIME_DIR" | "CNLAB_SERVER_ID"));
    let id = plan.holder.workload.to_string();
    env.push(("CNLAB_RUN_ID".to_owned(), id));
    env
}

/// Why a command could not be started.
pub(super) fn failure(argv: &[String], error: &SandboxError) -> Failure {
    let program = argv.first().map_or("", String::as_str);
    match error {
        SandboxError::Failed {
            step,
            errno: Some(errno),
            problem,
        } if step.starts_with("run ") => match Errno::from_raw(*errno) {
            Errno::ENOENT => Failure::new(
                "COMMAND_NOT_FOUND",
                format!("there is no program {program:?} in the image"),
            )
            .caused_by(problem.clone())
            .try_this(
                "name a program of the image or the machine, such as python; a script is run by \
                 its interpreter",
            ),
            _ => Failure::new(
                "COMMAND_NOT_STARTED",
                format!("the program {program:?} cannot be executed"),
            )
            .caused_by(problem.clone())
            .try_this("see that it is executable and made for this machine"),
        },
        _ => super::failure(error),
    }
}
