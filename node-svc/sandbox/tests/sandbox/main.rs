//! Starts real workloads as root and looks at them from inside and outside.
//!
//! Needs root with mount, pid, ipc and uts namespaces and cgroup controllers for memory, cpu and
//! pids (version 1 or 2), and sh, coreutils, procps and util-linux. Nothing is skipped: where one
//! of these is missing, the tests fail and say so.

#[cfg(test)]
mod deadlines;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod isolation;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod plain;
