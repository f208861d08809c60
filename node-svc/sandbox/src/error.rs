//! Names what can go wrong between a caller and its sandbox, and which step of a start failed.

use std::io;
use std::path::PathBuf;

/// Why a sandbox could not be started, stopped or read. Texts are lowercase fragments.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The specification cannot be carried out on any machine.
    #[error("invalid sandbox {field}: {problem}")]
    Invalid {
        /// The field of [`crate::SandboxSpec`].
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Full isolation was demanded on a machine that cannot give it.
    #[error("this machine cannot isolate a workload: {}", reasons.join("; "))]
    NotIsolated {
        /// One sentence per missing thing.
        reasons: Vec<String>,
    },
    /// The cgroup of this id still holds live processes of an earlier start.
    #[error("{id} still runs (processes {pids:?})")]
    StillRunning {
        /// The id of the specification.
        id: String,
        /// Host process ids that were found.
        pids: Vec<i32>,
    },
    /// One step of the start was refused by the system; nothing is left of it.
    #[error("{step}: {problem}")]
    Failed {
        /// What was tried, with its object: `mount /usr`, `run /opt/app/bin/server`.
        step: String,
        /// What the system answered, in words.
        problem: String,
        /// Its error number, where there was one.
        errno: Option<i32>,
    },
    /// The program that builds the sandbox could not be started or spoken to.
    #[error("{step}")]
    Launcher {
        /// What was tried.
        step: String,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
    /// The program that builds the sandbox ended without saying why (killed, or not ours).
    #[error("the sandbox of {id} ended before it reported, see {}", log.display())]
    Lost {
        /// The id of the specification.
        id: String,
        /// Where its last words would be.
        log: PathBuf,
    },
    /// Processes survive although they were killed (they hang inside the kernel).
    #[error("processes of {id} do not end after SIGKILL: {pids:?}")]
    NotGone {
        /// The id of the specification.
        id: String,
        /// Host process ids.
        pids: Vec<i32>,
    },
    /// The exit record or a cgroup exists but cannot be read or removed.
    #[error("cannot use {}", path.display())]
    Record {
        /// The file or folder.
        path: PathBuf,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
}

impl SandboxError {
    /// The stable name of the error, for APIs and documentation.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "SANDBOX_SPEC_INVALID",
            Self::NotIsolated { .. } => "SANDBOX_NOT_ISOLATED",
            Self::StillRunning { .. } => "SANDBOX_STILL_RUNNING",
            Self::Failed { .. } => "SANDBOX_STEP_FAILED",
            Self::Launcher { .. } => "SANDBOX_LAUNCHER_FAILED",
            Self::Lost { .. } => "SANDBOX_LAUNCHER_LOST",
            Self::NotGone { .. } => "SANDBOX_NOT_GONE",
            Self::Record { .. } => "SANDBOX_RECORD_UNREADABLE",
        }
    }
}

/// One step inside the new process tree that the system refused.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) step: String,
    pub(crate) source: io::Error,
}

impl Fault {
    /// A step that failed for a reason of ours, without an error number.
    pub(crate) fn new(step: impl Into<String>, problem: &str) -> Self {
        Self {
            step: step.into(),
            source: io::Error::other(problem.to_owned()),
        }
    }

    /// The error in words: the system's text without its number, in lowercase.
    pub(crate) fn problem(&self) -> String {
        match self.source.raw_os_error() {
            Some(number) => nix::errno::Errno::from_raw(number).desc().to_lowercase(),
            None => self.source.to_string(),
        }
    }
}

/// Names the step that a system call was part of.
pub(crate) trait Step<T> {
    /// Turns the error into a [`Fault`] of the step that `name` gives.
    fn step<S: Into<String>>(self, name: impl FnOnce() -> S) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step<S: Into<String>>(self, name: impl FnOnce() -> S) -> Result<T, Fault> {
        self.map_err(|source| Fault {
            step: name().into(),
            source: source.into(),
        })
    }
}
