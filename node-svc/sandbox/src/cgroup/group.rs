//! Makes the groups of one workload, sets its limits, reads what they counted, removes them.
//!
//! Stale groups of the same id are removed first: counters of an earlier start are not this
//! one's. A group with live processes is never touched by a start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Cgroup, CgroupVersion, PARENT, Slot};
use crate::error::{Fault, Step};
use crate::proctree::pause;
use crate::spec::Limits;

const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);
/// The processor time limit is counted in periods of this length.
const CPU_PERIOD_US: u64 = 100_000;

/// Why no groups were made.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// The id is in use.
    Busy(Vec<i32>),
    Fault(Fault),
}

impl From<Fault> for CreateError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What was made, and what of the limits could not be set.
#[derive(Debug, Default)]
pub(crate) struct Created {
    pub(crate) groups: Vec<Cgroup>,
    pub(crate) unenforced: Vec<String>,
}

/// Makes one group per slot and sets the limits. A limit that the machine refuses is reported
/// in words; only groups of live processes are an error.
pub(crate) fn create(slots: &[Slot], id: &str, limits: &Limits) -> Result<Created, CreateError> {
    let mut created = Created::default();
    for slot in slots {
        let path = slot.parent.join(PARENT).join(id);
        let group = Cgroup {
            path,
            version: slot.version,
            controllers: slot.controllers.clone(),
        };
        match group.make(slot) {
            Ok(()) => {}
            Err(CreateError::Busy(pids)) => {
                drop_quietly(&created.groups);
                return Err(CreateError::Busy(pids));
            }
            Err(CreateError::Fault(fault)) => {
                let names = slot.controllers.join(", ");
                created
                    .unenforced
                    .push(format!("{names}: {}: {}", fault.step, fault.problem()));
                continue;
            }
        }
        for (what, result) in group.limit(limits) {
            if let Err(error) = result {
                created.unenforced.push(format!("{what}: {error}"));
            }
        }
        created.groups.push(group);
    }
    Ok(created)
}

fn drop_quietly(groups: &[Cgroup]) {
    // The caller reports why it gives up; an empty group that stays is reused by the next start.
    let _reported_elsewhere = remove_all(groups);
}

/// Removes the groups and, where nobody else uses it, the folder above them.
pub(crate) fn remove_all(groups: &[Cgroup]) -> Result<(), (PathBuf, io::Error)> {
    groups.iter().try_for_each(Cgroup::remove)
}

impl Cgroup {
    fn make(&self, slot: &Slot) -> Result<(), CreateError> {
        let step = || format!("create cgroup {}", self.path.display());
        if self.path.exists() {
            let pids = self.pids();
            if !pids.is_empty() {
                return Err(CreateError::Busy(pids));
            }
            self.remove().map_err(|(_, error)| error).step(step)?;
        }
        let middle = slot.parent.join(PARENT);
        if slot.version == CgroupVersion::V2 {
            delegate(&slot.parent, &slot.controllers)?;
        }
        // Another starter may remove the folder in the middle when its last group goes.
        let mut result = Ok(());
        for _ in 0..REMOVE_TRIES {
            result = fs::create_dir_all(&middle).and_then(|()| fs::create_dir(&self.path));
            match &result {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        result.step(step)?;
        if slot.version == CgroupVersion::V2 {
            // The new group has its controllers' files only when the one above gives them.
            if let Err(fault) = delegate(&middle, &slot.controllers) {
                let _reported_as_fault = self.remove();
                return Err(fault.into());
            }
        }
        Ok(())
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    fn limit(&self, limits: &Limits) -> Vec<(&'static str, io::Result<()>)> {
        let mut results = Vec::new();
        if let (Some(bytes), true) = (limits.memory_bytes, self.has("memory")) {
            results.push(("memory limit", self.limit_memory(bytes)));
        }
        if let (Some(milli), true) = (limits.cpu_milli, self.has("cpu")) {
            results.push(("cpu limit", self.limit_cpu(milli)));
        }
        if let (Some(pids), true) = (limits.pids, self.has("pids")) {
            // One more, for our init.
            results.push(("pids limit", self.set("pids.max", pids.saturating_add(1))));
        }
        results
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        match self.version {
            CgroupVersion::V1 => {
                self.set("memory.limit_in_bytes", bytes)?;
                self.set_if_there("memory.memsw.limit_in_bytes", bytes)
            }
            CgroupVersion::V2 => {
                self.set("memory.max", bytes)?;
                self.set_if_there("memory.swap.max", 0)
            }
        }
    }

    fn limit_cpu(&self, milli: u64) -> io::Result<()> {
        let quota = milli.saturating_mul(CPU_PERIOD_US / 1000);
        match self.version {
            CgroupVersion::V1 => {
                self.set("cpu.cfs_period_us", CPU_PERIOD_US)?;
                self.set("cpu.cfs_quota_us", quota)
            }
            CgroupVersion::V2 => write_control(
                &self.path.join("cpu.max"),
                &format!("{quota} {CPU_PERIOD_US}"),
            ),
        }
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        write_control(&self.path.join(file), &value.to_string())
    }

    /// Swap can be counted only where the kernel was built or booted for it.
    fn set_if_there(&self, file: &str, value: u64) -> io::Result<()> {
        if self.path.join(file).exists() {
            self.set(file, value)
        } else {
            Ok(())
        }
    }

    /// Moves the calling process into the group.
    pub(crate) fn join(&self) -> Result<(), Fault> {
        write_control(&self.path.join("cgroup.procs"), "0")
            .step(|| format!("join cgroup {}", self.path.display()))
    }

    /// Host process ids in the group.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.parse().ok())
            .filter(|pid| *pid > 0)
            .collect()
    }

    /// Bytes used now, where the group counts memory.
    pub(crate) fn memory_current(&self) -> Option<u64> {
        self.memory("memory.usage_in_bytes", "memory.current")
    }

    /// Most bytes ever used, where the group counts memory.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        self.memory("memory.max_usage_in_bytes", "memory.peak")
    }

    fn memory(&self, v1: &str, v2: &str) -> Option<u64> {
        if !self.has("memory") {
            return None;
        }
        let file = if self.version == CgroupVersion::V1 {
            v1
        } else {
            v2
        };
        fs::read_to_string(self.path.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// How many processes the memory limit has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        if !self.has("memory") {
            return 0;
        }
        let file = match self.version {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Removes the group; a process that has just ended may hold it for a moment.
    fn remove(&self) -> Result<(), (PathBuf, io::Error)> {
        let mut tries = 0;
        loop {
            match fs::remove_dir(&self.path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if tries >= REMOVE_TRIES => return Err((self.path.clone(), error)),
                Err(_) => tries += 1,
            }
            pause(REMOVE_PAUSE);
        }
        if let Some(middle) = self.path.parent() {
            // Fails while other workloads have groups in it, which is as it should be.
            let _shared = fs::remove_dir(middle);
        }
        Ok(())
    }
}

/// Control files exist or they do not: writing must never create one.
fn write_control(path: &Path, value: &str) -> io::Result<()> {
    use io::Write;
    fs::OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(value.as_bytes())
}

/// Makes a version 2 group give these controllers to the groups below it.
fn delegate(group: &Path, controllers: &[String]) -> Result<(), Fault> {
    let file = group.join("cgroup.subtree_control");
    let given = fs::read_to_string(&file).unwrap_or_default();
    let given: Vec<&str> = given.split_ascii_whitespace().collect();
    for controller in controllers
        .iter()
        .filter(|name| !given.contains(&name.as_str()))
    {
        write_control(&file, &format!("+{controller}"))
            .step(|| format!("enable {controller} in {}", group.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &Path, version: CgroupVersion) -> Cgroup {
        let controllers = ["memory", "cpu", "pids"].map(str::to_owned).to_vec();
        Cgroup {
            path: path.to_path_buf(),
            version,
            controllers,
        }
    }

    fn files(path: &Path, names: &[&str]) {
        for name in names {
            fs::write(path.join(name), "").unwrap();
        }
    }

    fn limits() -> Limits {
        let (memory, cpu, pids) = (Some(1 << 30), Some(1500), Some(10));
        Limits {
            memory_bytes: memory,
            cpu_milli: cpu,
            pids,
            open_files: None,
        }
    }

    fn read(path: &Path, name: &str) -> String {
        fs::read_to_string(path.join(name)).unwrap()
    }

    #[test]
    fn version_1_limits_are_written_to_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        files(
            at,
            &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
        );
        files(at, &["cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max"]);
        let results = group(at, CgroupVersion::V1).limit(&limits());
        assert!(
            results.iter().all(|(_, result)| result.is_ok()),
            "{results:?}"
        );
        assert_eq!(read(at, "memory.memsw.limit_in_bytes"), "1073741824");
        assert_eq!(read(at, "cpu.cfs_quota_us"), "150000");
        assert_eq!(read(at, "pids.max"), "11");
    }

    #[test]
    fn version_2_limits_are_written_to_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        files(
            at,
            &["memory.max", "memory.swap.max", "cpu.max", "pids.max"],
        );
        let results = group(at, CgroupVersion::V2).limit(&limits());
        assert!(
            results.iter().all(|(_, result)| result.is_ok()),
            "{results:?}"
        );
        assert_eq!(read(at, "memory.swap.max"), "0");
        assert_eq!(read(at, "cpu.max"), "150000 100000");
    }

    #[test]
    fn a_limit_without_a_file_is_reported_and_creates_none() {
        let folder = tempfile::tempdir().unwrap();
        let results = group(folder.path(), CgroupVersion::V2).limit(&limits());
        assert!(
            results.iter().all(|(_, result)| result.is_err()),
            "{results:?}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn counters_are_read_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::write(
            at.join("memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        )
        .unwrap();
        fs::write(
            at.join("memory.events"),
            "oom 5\noom_kill 3\noom_group_kill 0\n",
        )
        .unwrap();
        fs::write(at.join("memory.current"), "42\n").unwrap();
        assert_eq!(group(at, CgroupVersion::V1).oom_kills(), 2);
        assert_eq!(group(at, CgroupVersion::V2).oom_kills(), 3);
        assert_eq!(group(at, CgroupVersion::V2).memory_current(), Some(42));
        assert_eq!(group(at, CgroupVersion::V1).memory_current(), None);
    }

    #[test]
    fn version_2_controllers_are_enabled_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::write(at.join("cgroup.subtree_control"), "memory\n").unwrap();
        delegate(at, &["memory".to_owned()]).unwrap();
        assert_eq!(read(at, "cgroup.subtree_control"), "memory\n");
        delegate(at, &["pids".to_owned()]).unwrap();
        assert!(read(at, "cgroup.subtree_control").starts_with("+pids"));
    }
}
