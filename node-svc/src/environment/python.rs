//! Finds the Python that environments are made from, and the way it can make them.

use std::{ffi::OsString, path::PathBuf, process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::process::Command;

use crate::failure::Failure;

const PROBE: &str = include_str!("probe.py");
const PROBE_WITHIN: Duration = Duration::from_secs(60);

/// A Python installation.
#[derive(Debug, Clone)]
pub(super) struct Python {
    pub(super) executable: PathBuf,
    pub(super) version: String,
    pub(super) base_prefix: String,
    pub(super) method: Method,
}

/// How an environment that has pip comes into being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Method {
    /// `venv`, then pip from the wheel that comes with Python.
    VenvAndWheel(PathBuf),
    /// `venv`, then pip from Python's own pip.
    VenvAndPip,
    /// The module `virtualenv`.
    VirtualenvModule,
    /// The program `virtualenv`.
    Virtualenv(PathBuf),
    /// The program `uv`.
    Uv(PathBuf),
}

#[derive(Debug, Deserialize)]
struct Report {
    executable: PathBuf,
    version: (u32, u32, u32),
    base_prefix: String,
    venv: bool,
    pip_wheel: Option<PathBuf>,
    pip: bool,
    virtualenv: bool,
}

/// Asks a Python what it can do.
///
/// # Errors
/// When there is none, when it is too old, or when nothing here can make an environment with it.
pub(super) async fn find(program: &str) -> Result<Python, Failure> {
    let report = probe(program).await?;
    let (major, minor, patch) = report.version;
    let version = format!("{major}.{minor}.{patch}");
    if (major, minor) < (3, 9) {
        return Err(Failure::new(
            "PYTHON_TOO_OLD",
            format!("{program} is Python {version}, which is older than 3.9"),
        )
        .try_this("install a newer Python and set environment.python to its path"));
    }
    let method = choose(&report, on_path).ok_or_else(|| {
        Failure::new(
            "PYTHON_WITHOUT_VENV",
            format!("{program} (Python {version}) cannot make virtual environments"),
        )
        .caused_by("it lacks the modules venv and ensurepip, and neither virtualenv nor uv is here")
        .try_this("apt-get install python3-venv")
    })?;
    Ok(Python {
        executable: report.executable,
        version,
        base_prefix: report.base_prefix,
        method,
    })
}

fn choose(report: &Report, on_path: impl Fn(&str) -> Option<PathBuf>) -> Option<Method> {
    if report.venv {
        if let Some(wheel) = &report.pip_wheel {
            return Some(Method::VenvAndWheel(wheel.clone()));
        }
        if report.pip {
            return Some(Method::VenvAndPip);
        }
    }
    if report.virtualenv {
        return Some(Method::VirtualenvModule);
    }
    on_path("virtualenv")
        .map(Method::Virtualenv)
        .or_else(|| on_path("uv").map(Method::Uv))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let (_, path) = std::env::vars_os().find(|(name, _)| name == "PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

async fn probe(program: &str) -> Result<Report, Failure> {
    let unusable = |cause: String| {
        Failure::new("PYTHON_MISSING", format!("{program} is no usable Python 3"))
            .caused_by(cause)
            .try_this(
                "apt-get install python3 python3-venv, or set environment.python to a Python 3",
            )
    };
    let asked = Command::new(program)
        .args([OsString::from("-c"), OsString::from(PROBE)])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PROBE_WITHIN, asked)
        .await
        .map_err(|_| unusable("it does not answer".to_owned()))?
        .map_err(|error| unusable(error.to_string()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().last().unwrap_or("it said nothing").to_owned();
        return Err(unusable(last));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| unusable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            executable: "/usr/bin/python3".into(),
            version: (3, 11, 2),
            base_prefix: "/usr".to_owned(),
            venv: true,
            pip_wheel: Some("/w/pip.whl".into()),
            pip: true,
            virtualenv: true,
        }
    }

    #[test]
    fn the_best_way_that_exists_is_taken() {
        let none = |_: &str| None;
        let all = |program: &str| Some(PathBuf::from(format!("/bin/{program}")));
        let mut it = report();
        assert_eq!(
            choose(&it, none),
            Some(Method::VenvAndWheel("/w/pip.whl".into()))
        );
        it.pip_wheel = None;
        assert_eq!(choose(&it, none), Some(Method::VenvAndPip));
        it.pip = false;
        assert_eq!(choose(&it, none), Some(Method::VirtualenvModule));
        it.virtualenv = false;
        assert_eq!(
            choose(&it, all),
            Some(Method::Virtualenv("/bin/virtualenv".into()))
        );
        let uv = |program: &str| (program == "uv").then(|| PathBuf::from("/bin/uv"));
        assert_eq!(choose(&it, uv), Some(Method::Uv("/bin/uv".into())));
        assert_eq!(choose(&it, none), None);
    }

    #[tokio::test]
    async fn a_program_that_is_no_python_says_what_to_install() {
        for program in ["/nonexistent/python", "/bin/false"] {
            let failure = find(program).await.unwrap_err();
            assert_eq!(failure.reason, "PYTHON_MISSING");
            assert!(failure.try_this.contains("python3-venv"));
        }
    }
}
