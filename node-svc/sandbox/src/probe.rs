//! Finds out by trying what this machine allows, and says every missing thing in words.
//!
//! The trial runs in a thread of its own: what it unshares and mounts belongs to that thread
//! and is gone with it. No process is started.

use std::fmt;
use std::io;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, CgroupVersion, Slot};
use crate::root::NEW_ROOT;
use crate::sys;

/// The namespaces that the supervisor's child enters; the pid namespace is entered by being
/// forked.
pub(crate) const INNER_NAMESPACES: [(CloneFlags, &str); 3] = [
    (CloneFlags::CLONE_NEWNS, "mount namespace"),
    (CloneFlags::CLONE_NEWIPC, "ipc namespace"),
    (CloneFlags::CLONE_NEWUTS, "uts namespace"),
];

/// What this machine allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether the caller runs as root.
    pub root: bool,
    /// What stands against namespaces of the workload's own; empty if nothing does.
    pub isolation_missing: Vec<Missing>,
    /// Which limits can be set, and through which interface.
    pub cgroups: CgroupSupport,
    /// Limits that cannot be set.
    pub limits_missing: Vec<Missing>,
    pub(crate) slots: Vec<Slot>,
}

/// The interface through which each limit is set; `None` if it cannot be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupSupport {
    /// Memory limit, peak and out-of-memory reports.
    pub memory: Option<CgroupVersion>,
    /// Processor time limit.
    pub cpu: Option<CgroupVersion>,
    /// Limit on processes and threads.
    pub pids: Option<CgroupVersion>,
}

/// One thing that this machine does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The thing: `mount namespace`, `memory limit`.
    pub what: String,
    /// Why, as a lowercase fragment.
    pub reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "no {}: {}", self.what, self.reason)
    }
}

/// How a workload is kept apart from the machine and from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A user, mounts, process numbers, ipc objects and a host name of its own.
    Full,
    /// A plain session of processes that sees the machine as the caller does.
    ProcessOnly {
        /// Why not more, one sentence each.
        reasons: Vec<String>,
    },
}

impl fmt::Display for Isolation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(out, "full"),
            Self::ProcessOnly { reasons } => write!(out, "process only: {}", reasons.join("; ")),
        }
    }
}

impl Capabilities {
    /// The most isolation that a workload can get here.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        if self.isolation_missing.is_empty() {
            Isolation::Full
        } else {
            let reasons = self
                .isolation_missing
                .iter()
                .map(Missing::to_string)
                .collect();
            Isolation::ProcessOnly { reasons }
        }
    }
}

/// Tries what this machine allows.
#[must_use]
pub fn probe() -> Capabilities {
    let root = geteuid().is_root();
    let isolation_missing = if root {
        match thread::Builder::new()
            .name("sandbox-probe".into())
            .spawn(try_isolation)
        {
            Ok(trial) => trial
                .join()
                .unwrap_or_else(|_| no_trial("the trial ended early")),
            Err(error) => no_trial(&error.to_string()),
        }
    } else {
        let reason = format!(
            "the service runs as user {}, and only root can separate users",
            geteuid()
        );
        vec![Missing {
            what: "isolation between workloads".into(),
            reason,
        }]
    };
    let found = cgroup::discover();
    let version = |name: &str| {
        let has = |slot: &&Slot| slot.controllers.iter().any(|controller| controller == name);
        found.slots.iter().find(has).map(|slot| slot.version)
    };
    Capabilities {
        root,
        isolation_missing,
        cgroups: CgroupSupport {
            memory: version("memory"),
            cpu: version("cpu"),
            pids: version("pids"),
        },
        limits_missing: found.missing,
        slots: found.slots,
    }
}

fn no_trial(reason: &str) -> Vec<Missing> {
    vec![Missing {
        what: "trial of namespaces".into(),
        reason: reason.to_owned(),
    }]
}

/// Does, on the calling thread, what a start will do. Only for a thread that ends right after.
fn try_isolation() -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut check = |what: &str, result: io::Result<()>| {
        let lacks = result.is_err();
        if let Err(error) = result {
            let reason = explain(&error);
            missing.push(Missing {
                what: what.to_owned(),
                reason,
            });
        }
        !lacks
    };
    // First the mount namespace: nothing below may reach the mounts of the machine.
    let mounts_are_ours = check(
        "mount namespace",
        unshare(CloneFlags::CLONE_NEWNS).map_err(Into::into),
    ) && check("private mounts", make_mounts_private());
    for (flag, what) in INNER_NAMESPACES.into_iter().skip(1) {
        check(what, unshare(flag).map_err(Into::into));
    }
    check(
        "pid namespace",
        unshare(CloneFlags::CLONE_NEWPID).map_err(Into::into),
    );
    if mounts_are_ours {
        check("read-only binds", try_read_only_bind());
        let root = Path::new(NEW_ROOT);
        let none = None::<&str>;
        let tmpfs = mount(none, root, Some("tmpfs"), MsFlags::MS_NOSUID, none);
        check("private folders", tmpfs.map_err(Into::into));
    }
    missing
}

/// Keeps every later mount of this thread or process from reaching the machine.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(
        none,
        "/",
        none,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        none,
    )?)
}

fn try_read_only_bind() -> io::Result<()> {
    use std::os::fd::AsFd;
    let copy = sys::clone_mount(sys::here(), Path::new("/"), false)?;
    sys::restrict_mount(copy.as_fd(), sys::ATTR_RDONLY)
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "not permitted, although this is root (a container without CAP_SYS_ADMIN?)".into()
        }
        Some(libc::ENOSYS) => "the kernel is older than 5.12".into(),
        Some(libc::EINVAL) => "the kernel was built without it".into(),
        Some(libc::ENOSPC | libc::EUSERS) => {
            "the limit in /proc/sys/user/max_*_namespaces is reached".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts() -> String {
        std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap()
    }

    #[test]
    fn probing_leaves_this_thread_and_the_machine_as_they_were() {
        let namespaces =
            |name: &str| std::fs::read_link(format!("/proc/thread-self/ns/{name}")).unwrap();
        let before = (mounts(), namespaces("mnt"), namespaces("pid_for_children"));
        let first = probe();
        assert_eq!(
            (mounts(), namespaces("mnt"), namespaces("pid_for_children")),
            before
        );
        assert_eq!(first, probe());
        assert_eq!(first.root, geteuid().is_root());
    }

    #[test]
    fn reasons_are_sentences() {
        let capabilities = Capabilities {
            root: false,
            isolation_missing: vec![Missing {
                what: "pid namespace".into(),
                reason: "so it is".into(),
            }],
            cgroups: CgroupSupport::default(),
            limits_missing: Vec::new(),
            slots: Vec::new(),
        };
        let text = capabilities.isolation().to_string();
        assert_eq!(text, "process only: no pid namespace: so it is");
    }
}
