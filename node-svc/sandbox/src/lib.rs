//! Starts one workload as its own process tree, as a user of its own, in namespaces of its own.
//!
//! ```text
//!  caller (node-svc, cnlab)        knows an `Identity`, may die and come back
//!    └─ supervisor                 same program, `__sandbox-exec`; own session, host mounts, root
//!         └─ init                  pid 1 of the new namespaces; the workload's user, no capabilities
//!              └─ the command      what `argv` names
//! ```
//!
//! Invariants:
//! - nothing is forked in the caller: it may be multithreaded, so it re-executes its own program;
//! - the caller's death changes nothing for the workload, the supervisor's death ends all of it;
//! - a workload with a [`Lease`] is gone when that ends, whoever lives: the supervisor ends it, and
//!   the kernel a supervisor that does not;
//! - the environment, the open files and the view of the file system are exactly what the
//!   [`SandboxSpec`] lists;
//! - a start that fails says which step failed and leaves no process, mount or cgroup;
//! - what could not be enforced is reported ([`Isolation`], [`Running::unenforced`]), never hidden.
//!
//! Everything here is synchronous; asynchronous callers wrap it.

mod boottime;
mod cgroup;
mod deadline;
mod error;
mod handshake;
mod init;
mod launcher;
mod privileges;
mod probe;
mod proctree;
mod record;
mod renewal;
mod root;
mod running;
mod spec;
mod supervisor;
mod sys;
mod watch;

pub use boottime::Boottime;
pub use cgroup::{Cgroup, CgroupVersion};
pub use deadline::{Deadline, Lease, RuntimeLimit};
pub use error::SandboxError;
pub use launcher::Launcher;
pub use probe::{Capabilities, CgroupSupport, Isolation, Missing, probe};
pub use proctree::ProcessId;
pub use record::{Exit, ExitRecord};
pub use running::{Identity, Running};
pub use spec::{
    Bind, DEFAULT_SYSTEM_DIRS, GeneratedFile, Leased, Limits, PrivateTmpfs, SandboxSpec, Wanted,
};
pub use supervisor::sandbox_exec_main;

/// The first argument that makes a program call [`sandbox_exec_main`] instead of its own main.
pub const EXEC_VERB: &str = "__sandbox-exec";
