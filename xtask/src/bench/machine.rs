//! On what and from which commit the figures come.

use std::{fs, num::NonZero, path::Path};

use anyhow::{Context as _, Result};

use crate::run::{answer, program};

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
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            memory_gib: kibibytes / 1024.0 / 1024.0,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
        })
    }
}

/// The day, in UTC.
pub(crate) fn day() -> Result<String> {
    answer(program("date", &["-u", "+%F"])).context("date does not answer")
}

/// The commit, marked where the tree differs from it. The pages of the benches themselves
/// do not count: writing them is what a bench is for.
pub(crate) fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let mut git = program("git", arguments);
        git.current_dir(root);
        answer(git)
    };
    let changes = [
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":(exclude)docs/benchmarks",
    ];
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => match git(&changes).as_deref() {
            Some("") => commit,
            _ => format!("{commit} with changes"),
        },
        None => "unknown (no git)".to_owned(),
    }
}
