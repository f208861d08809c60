//! Where programs are pinned, and the processor time they use.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail};
use cnlab_testkit::{Signal, tied_command};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

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
