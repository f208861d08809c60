//! On what and from which commit the figures come, and where programs are pinned.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use cnlab_testkit::{Signal, tied_command};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The machine in words.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
}

impl Machine {
    /// This machine.
    pub(crate) fn this() -> Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let field = |text: &str, name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        let memory = fs::read_to_string("/proc/meminfo")?;
        let kibibytes: f64 = field(&memory, "MemTotal")
            .and_then(|text| text.split_whitespace().next()?.parse().ok())
            .context("/proc/meminfo does not say how much memory there is")?;
        Ok(Self {
            cpu: field(&cpus, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cores()?.len(),
            memory_gib: kibibytes / 1024.0 / 1024.0,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
        })
    }
}

/// The processors that this thread may use.
pub(crate) fn cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("asking for the processors")?;
    Ok((0..CpuSet::count())
        .filter(|core| set.is_set(*core).unwrap_or(false))
        .collect())
}

/// One processor for the proxy and one for everything around it.
pub(crate) fn two_cores() -> Result<(usize, usize)> {
    match cores()?.as_slice() {
        [proxy, around, ..] => Ok((*proxy, *around)),
        _ => bail!("the comparison of proxies needs two processors"),
    }
}

/// Keeps this thread, and those that it starts, on one processor.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("keeping a thread on processor {core}"))
}

/// A command that runs the program in its arguments on these processors, whatever those of
/// the thread that starts it are, and ends with this process.
pub(crate) fn pinned(cores: &[usize], at_death: Signal) -> Command {
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let mut command = tied_command("taskset", at_death);
    command.args(["-c", &list.join(",")]);
    command
}

/// Processor time that a process, all its threads and all processes below it have used.
pub(crate) fn cpu_nanos(pid: u32) -> Result<u64> {
    let mut all = 0;
    let pids = std::iter::once(pid).chain(
        cnlab_testkit::tree_of(pid)
            .into_iter()
            .map(|process| process.pid),
    );
    for pid in pids {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between the listing and the look at it.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
                continue;
            };
            let used: Option<u64> = text
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok());
            all += used.with_context(|| format!("schedstat of {pid}: {text:?}"))?;
        }
    }
    Ok(all)
}

/// The day, in UTC.
pub(crate) fn day() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The commit, marked where the tree differs from it.
pub(crate) fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => match git(&["status", "--porcelain", "--untracked-files=no"]).as_deref() {
            Some("") => commit,
            _ => format!("{commit} with changes"),
        },
        None => "unknown (no git)".to_owned(),
    }
}
