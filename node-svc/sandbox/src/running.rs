//! Holds a running workload: watches it, ends it, and finds it again after a restart.
//!
//! The identity is a process number, its start time and the boot: together they never name
//! another process. Dropping a [`Running`] does nothing to the workload.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, Cgroup};
use crate::deadline::Lease;
use crate::error::SandboxError;
use crate::probe::Isolation;
use crate::proctree::{ProcessId, boot_id, descendants, wait_ended};
use crate::record::{self, ExitRecord};
use crate::renewal::Sender;
use crate::sys;

/// How long processes may take to disappear once they are killed.
const DEATH: Duration = Duration::from_secs(10);

/// What must be kept to find a workload again after a restart of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The id of the specification.
    pub id: String,
    /// The process that outlives the caller and records the end.
    pub supervisor: ProcessId,
    /// The first process inside.
    pub init: ProcessId,
    /// The boot in which both were started.
    pub boot_id: String,
    /// What the workload was started with.
    pub isolation: Isolation,
    /// Its groups, empty where the machine has none.
    pub cgroups: Vec<Cgroup>,
    /// Limits that were asked for and could not be set, one sentence each.
    pub unenforced: Vec<String>,
    /// Where the end is recorded.
    pub exit_record: PathBuf,
    /// Where renewals of its lease arrive, if it has one.
    #[serde(default)]
    pub renewals: Option<PathBuf>,
}

impl Identity {
    /// How the workload ended; `None` while it runs, or when its supervisor was killed.
    ///
    /// # Errors
    /// [`SandboxError::Record`] when the file cannot be read.
    pub fn exit_record(&self) -> Result<Option<ExitRecord>, SandboxError> {
        record::read(&self.exit_record)
    }

    /// Ends and removes what a workload left whose supervisor was killed, so that
    /// [`Running::adopt`] refuses it. Does nothing after an orderly end; may be repeated.
    ///
    /// # Errors
    /// [`SandboxError::NotGone`] when processes survive, [`SandboxError::Record`] when a cgroup
    /// cannot be removed.
    pub fn remove_leftovers(&self) -> Result<(), SandboxError> {
        if boot_id().ok().as_ref() != Some(&self.boot_id) {
            return Ok(());
        }
        // Init is dying of its supervisor's death; without a pid namespace it kills the others
        // first, and must be left to do so.
        if let Some(init) = self.init.open() {
            if self.isolation == Isolation::Full {
                let _may_be_over = sys::pidfd_send_signal(init.as_fd(), libc::SIGKILL);
            }
            if !wait_ended(&init, Some(DEATH)) {
                let pids = vec![self.init.pid];
                return Err(SandboxError::NotGone {
                    id: self.id.clone(),
                    pids,
                });
            }
        }
        for pid in self.cgroups.iter().flat_map(Cgroup::pids) {
            if let Ok(pidfd) = sys::pidfd_open(pid) {
                let _may_be_over = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
                wait_ended(&pidfd, Some(DEATH));
            }
        }
        cgroup::remove_all(&self.cgroups).map_err(|(path, source)| {
            let pids: Vec<i32> = self.cgroups.iter().flat_map(Cgroup::pids).collect();
            if pids.is_empty() {
                SandboxError::Record { path, source }
            } else {
                SandboxError::NotGone {
                    id: self.id.clone(),
                    pids,
                }
            }
        })
    }
}

/// A workload that was seen running.
pub struct Running {
    identity: Identity,
    /// Of the supervisor; `None` when it had ended before it could be opened.
    pidfd: Option<OwnedFd>,
    /// Where renewals go; `None` without a lease, or when the workload is over.
    renewals: Option<Sender>,
}

impl fmt::Debug for Running {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Running")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// For the caller that has just started the supervisor and not reaped it.
    pub(crate) fn new(identity: Identity) -> Self {
        let pidfd = identity.supervisor.open();
        if pidfd.is_none() {
            // It has ended, and until here nobody can have been given its number.
            let pid = Pid::from_raw(identity.supervisor.pid);
            let _reaped = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
        let renewals = open_renewals(&identity);
        Self {
            identity,
            pidfd,
            renewals,
        }
    }

    /// Finds a workload again; `None` when its supervisor has ended, also if its number was
    /// given to another process since.
    #[must_use]
    pub fn adopt(identity: &Identity) -> Option<Self> {
        if boot_id().ok()? != identity.boot_id {
            return None;
        }
        let pidfd = Some(identity.supervisor.open()?);
        Some(Self {
            identity: identity.clone(),
            pidfd,
            renewals: open_renewals(identity),
        })
    }

    /// What to keep for a later [`Running::adopt`].
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the workload was started with.
    #[must_use]
    pub fn isolation(&self) -> &Isolation {
        &self.identity.isolation
    }

    /// Limits that were asked for and could not be set, one sentence each.
    #[must_use]
    pub fn unenforced(&self) -> &[String] {
        &self.identity.unenforced
    }

    /// Whether the workload has not ended yet.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.wait(Some(Duration::ZERO))
    }

    /// Lets the workload run on for as long as this lease says. Never blocks. A renewal that
    /// comes when the lease was let pass, or is older than one that came before, has no effect.
    ///
    /// # Errors
    /// When the workload has no lease, or the supervisor does not listen.
    pub fn renew(&self, lease: &Lease) -> io::Result<()> {
        match &self.renewals {
            Some(renewals) => renewals.send(lease),
            None => Err(io::Error::other("nobody waits for a renewal")),
        }
    }

    /// Blocks until the workload has ended, at most for `timeout`; whether it has.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let ended = self
            .pidfd
            .as_ref()
            .is_none_or(|pidfd| wait_ended(pidfd, timeout));
        if ended {
            self.reap();
        }
        ended
    }

    /// Takes the ended supervisor off the process table if it is a child of this process.
    fn reap(&self) {
        if let Some(pidfd) = &self.pidfd {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
            // Refused for a supervisor that another process started: no reaping is needed then.
            let _not_our_child = waitid(Id::PIDFd(pidfd.as_fd()), flags);
        }
    }

    /// Asks the command to end (SIGTERM to its process group), kills everything when `grace` has
    /// passed, and returns when all is seen gone.
    ///
    /// # Errors
    /// [`SandboxError::NotGone`] when processes survive SIGKILL, [`SandboxError::Record`] when
    /// what was left cannot be read or removed.
    pub fn terminate(&self, grace: Duration) -> Result<Option<ExitRecord>, SandboxError> {
        self.signal(libc::SIGTERM)?;
        if !self.wait(Some(grace)) {
            self.signal(libc::SIGQUIT)?;
        }
        if !self.wait(Some(DEATH)) {
            self.signal(libc::SIGKILL)?;
            if !self.wait(Some(DEATH)) {
                let pids = self.pids();
                return Err(SandboxError::NotGone {
                    id: self.identity.id.clone(),
                    pids,
                });
            }
        }
        self.identity.remove_leftovers()?;
        self.exit_record()
    }

    fn signal(&self, signal: libc::c_int) -> Result<(), SandboxError> {
        let Some(pidfd) = &self.pidfd else {
            return Ok(());
        };
        match sys::pidfd_send_signal(pidfd.as_fd(), signal) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                Err(SandboxError::Launcher {
                    step: "signal the supervisor".into(),
                    source: error,
                })
            }
            _ => Ok(()),
        }
    }

    /// How the workload ended; `None` while it runs, or when its supervisor was killed.
    ///
    /// # Errors
    /// [`SandboxError::Record`] when the file cannot be read.
    pub fn exit_record(&self) -> Result<Option<ExitRecord>, SandboxError> {
        self.identity.exit_record()
    }

    /// Host process ids of the workload, without supervisor and init. Processes that start
    /// while this looks may be missing.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        if !self.is_alive() {
            return Vec::new();
        }
        let mut pids = descendants(self.identity.supervisor.pid);
        pids.retain(|pid| *pid != self.identity.init.pid);
        pids.sort_unstable();
        pids
    }

    /// Bytes of memory in use; `None` where no cgroup counts it.
    #[must_use]
    pub fn memory_current(&self) -> Option<u64> {
        self.identity
            .cgroups
            .iter()
            .find_map(Cgroup::memory_current)
    }
}

/// Without the pipe nothing can be renewed, and the workload ends in time.
fn open_renewals(identity: &Identity) -> Option<Sender> {
    Sender::open(identity.renewals.as_ref()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(supervisor: ProcessId) -> Identity {
        Identity {
            id: "srv_1".into(),
            supervisor,
            init: ProcessId {
                pid: i32::MAX,
                start_ticks: 1,
            },
            boot_id: boot_id().unwrap(),
            isolation: Isolation::Full,
            cgroups: Vec::new(),
            unenforced: Vec::new(),
            exit_record: "/nonexistent/exit.json".into(),
            renewals: None,
        }
    }

    fn sleeper() -> std::process::Child {
        std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap()
    }

    #[test]
    fn another_process_with_the_same_number_is_not_adopted() {
        let mut child = sleeper();
        let real = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        let running = Running::adopt(&identity(real)).unwrap();
        assert!(running.is_alive());
        assert!(!running.wait(Some(Duration::ZERO)));
        let recycled = ProcessId {
            start_ticks: real.start_ticks - 1,
            ..real
        };
        assert!(Running::adopt(&identity(recycled)).is_none());
        let earlier_boot = Identity {
            boot_id: "x".into(),
            ..identity(real)
        };
        assert!(Running::adopt(&earlier_boot).is_none());
        earlier_boot.remove_leftovers().unwrap();
        child.kill().unwrap();
        assert!(running.wait(None));
        // Reaped through the handle: the number is free, and the child's own wait finds nobody.
        assert!(ProcessId::of(real.pid).is_err());
        assert!(child.wait().is_err());
        assert!(Running::adopt(&identity(real)).is_none());
        assert!(running.pids().is_empty());
        assert_eq!(running.exit_record().unwrap(), None);
    }

    #[test]
    fn an_identity_survives_json() {
        let identity = identity(ProcessId {
            pid: 1,
            start_ticks: 2,
        });
        let text = serde_json::to_string(&identity).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), identity);
    }
}
