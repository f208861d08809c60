//! Carries what happens between the caller and the processes that build a sandbox.
//!
//! The request goes to the supervisor's stdin, so that secrets never lie on disk. The answer is
//! a pipe of JSON lines, held open by the supervisor until it has forked, by init until it has
//! forked, and by the command until it is executed; so its end means that nobody is left who
//! could report a failure. A start succeeded if `Executing` came last.

use std::fs::File;
use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Slot};
use crate::error::Fault;
use crate::probe::Isolation;
use crate::proctree::ProcessId;
use crate::spec::SandboxSpec;

/// What the supervisor is asked to start, and what the caller found the machine to allow.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) spec: SandboxSpec,
    pub(crate) isolation: Isolation,
    /// Places for cgroups that the caller found.
    pub(crate) slots: Vec<Slot>,
    /// Sentences of the probe about limits that cannot be set here.
    pub(crate) unenforced: Vec<String>,
}

/// One line of the answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The supervisor has forked init.
    Forked {
        init: ProcessId,
        cgroups: Vec<Cgroup>,
        unenforced: Vec<String>,
    },
    /// The next system call executes the command.
    Executing,
    /// A step was refused; nothing is left when the supervisor has ended.
    Failed {
        step: String,
        problem: String,
        errno: Option<i32>,
    },
    /// The id is taken by live processes.
    Busy { pids: Vec<i32> },
}

impl From<&Fault> for Message {
    fn from(fault: &Fault) -> Self {
        Self::Failed {
            step: fault.step.clone(),
            problem: fault.problem(),
            errno: fault.source.raw_os_error(),
        }
    }
}

/// This process's end of the answer. Forked processes inherit it open and each must close it.
#[derive(Debug)]
pub(crate) struct Reporter(Option<File>);

impl Reporter {
    /// Takes the pipe over, which must be closed on exec.
    pub(crate) fn new(pipe: File) -> Self {
        Self(Some(pipe))
    }

    /// Sends one line. A caller that died in the meantime changes nothing for the workload, so a
    /// broken pipe is not an error.
    pub(crate) fn send(&mut self, message: &Message) {
        if let (Some(pipe), Ok(mut line)) = (&mut self.0, serde_json::to_vec(message)) {
            line.push(b'\n');
            let _caller_may_be_gone = pipe.write_all(&line);
        }
    }

    /// Nothing is left to report from this process.
    pub(crate) fn close(&mut self) {
        self.0 = None;
    }
}

/// Reads the lines of a finished answer; text that is none of ours is passed over.
pub(crate) fn parse(answer: &str) -> Vec<Message> {
    answer
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
