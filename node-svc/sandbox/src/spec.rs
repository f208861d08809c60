//! Describes one workload completely: what runs, as whom, what it sees and how much it may use.
//!
//! Nothing is inherited from the caller: what is not listed here does not exist inside.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::deadline::{Lease, RuntimeLimit};
use crate::error::SandboxError;

/// The folders of the host that a workload sees read-only unless the caller says otherwise.
pub const DEFAULT_SYSTEM_DIRS: [&str; 10] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/libx32", "/lib64", "/etc", "/opt", "/nix",
];

/// Devices that every workload has.
pub(crate) const BASE_DEVICES: [&str; 6] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];

const MAX_ID_BYTES: usize = 64;
const MAX_HOSTNAME_BYTES: usize = 64;

/// One workload. Serialised, it holds the workload's secrets (`env`, `files`).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Names the cgroup folder: `[A-Za-z0-9_-]`, 1 to 64 bytes, unique on the machine.
    pub id: String,
    /// The user that the workload runs as; not 0. Without root the caller's own user is kept.
    #[serde(default)]
    pub uid: u32,
    /// The group that the workload runs as, its only one; not 0.
    #[serde(default)]
    pub gid: u32,
    /// Host name inside; empty takes the id.
    #[serde(default)]
    pub hostname: String,
    /// Program and arguments; a program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<String>,
    /// The complete environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working folder, as seen inside.
    pub cwd: PathBuf,
    /// Folders of the host that are bound read-only where they exist; symbolic links are kept.
    #[serde(default = "default_system_dirs")]
    pub system_dirs: Vec<PathBuf>,
    /// Whether `/sys` is visible (read-only).
    #[serde(default)]
    pub sys: bool,
    /// Files and folders of the host, in this order, over the private folders.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// Private folders besides `/tmp`, `/run`, `/var/tmp` and `/dev/shm`.
    #[serde(default)]
    pub tmpfs: Vec<PrivateTmpfs>,
    /// Small files placed last, read-only. Under a read-only folder the target must exist there.
    #[serde(default)]
    pub files: Vec<GeneratedFile>,
    /// Device files besides null, zero, full, random, urandom, tty and ptmx.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// Host file that takes stdout and stderr, opened for appending; its folder must exist. It
    /// becomes the workload's own file, so keep it where only trusted users can reach it.
    pub log: PathBuf,
    /// Host file that takes the [`crate::ExitRecord`] when all is over; its folder must exist.
    pub exit_record: PathBuf,
    /// How much it may use.
    #[serde(default)]
    pub limits: Limits,
    /// How much isolation the caller insists on.
    #[serde(default)]
    pub isolation: Wanted,
    /// For a workload that runs only for as long as somebody renews its lease.
    #[serde(default)]
    pub lease: Option<Leased>,
    /// How long it may run at most.
    #[serde(default)]
    pub max_runtime: Option<RuntimeLimit>,
}

/// A lease, and where renewals of it arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leased {
    /// Until the first renewal.
    pub first: Lease,
    /// Host path of the named pipe that takes renewals; its folder must exist, and be closed to
    /// the workload.
    pub renewals: PathBuf,
}

/// A file or folder of the host made visible inside. Links in `source` are followed, so no
/// folder above it may be writable for a workload; links in `target` are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Path on the host.
    pub source: PathBuf,
    /// Path inside; missing parents are created with mode 0755.
    pub target: PathBuf,
    /// Whether writing is refused.
    pub read_only: bool,
}

impl Bind {
    /// A bind that the workload can only read.
    pub fn read_only(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            read_only: true,
        }
    }

    /// A bind that the workload can write, as far as its user may.
    pub fn writable(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            read_only: false,
        }
    }
}

/// A folder in memory of the workload's own, counted against its memory limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateTmpfs {
    /// Path inside.
    pub target: PathBuf,
    /// Most bytes it can hold; without it half of the machine's memory.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Mode of the folder itself, e.g. 0o1777; it belongs to root.
    pub mode: u32,
}

/// A small file made for this workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratedFile {
    /// Path inside.
    pub target: PathBuf,
    /// What it holds.
    pub content: String,
    /// Mode, e.g. 0o444; it belongs to root, and nobody can write it.
    pub mode: u32,
}

/// Upper bounds; `None` leaves what the machine gives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory in bytes, swap included.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Processor time in thousandths of a core; at least 10.
    #[serde(default)]
    pub cpu_milli: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u64>,
    /// Open files per process.
    #[serde(default)]
    pub open_files: Option<u64>,
}

/// How much isolation the caller insists on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// As much as the machine gives; the start says what it was.
    #[default]
    Best,
    /// Namespaces, or an error.
    Full,
    /// A plain session, even where more is possible.
    ProcessOnly,
}

fn default_system_dirs() -> Vec<PathBuf> {
    DEFAULT_SYSTEM_DIRS.iter().map(PathBuf::from).collect()
}

impl SandboxSpec {
    /// A workload with no binds, no limits and an empty environment; set the fields it needs.
    pub fn new(
        id: impl Into<String>,
        argv: Vec<String>,
        cwd: impl Into<PathBuf>,
        log: impl Into<PathBuf>,
        exit_record: impl Into<PathBuf>,
    ) -> Self {
        Self {
            id: id.into(),
            uid: 0,
            gid: 0,
            hostname: String::new(),
            argv,
            env: Vec::new(),
            cwd: cwd.into(),
            system_dirs: default_system_dirs(),
            sys: false,
            binds: Vec::new(),
            tmpfs: Vec::new(),
            files: Vec::new(),
            devices: Vec::new(),
            log: log.into(),
            exit_record: exit_record.into(),
            limits: Limits::default(),
            isolation: Wanted::default(),
            lease: None,
            max_runtime: None,
        }
    }

    /// Where a path of the inside lies on the host, by the longest bind that covers it; paths
    /// that no bind covers are returned as they are.
    #[must_use]
    pub fn host_path(&self, inside: &Path) -> PathBuf {
        self.binds
            .iter()
            .filter_map(|bind| Some((bind, inside.strip_prefix(&bind.target).ok()?)))
            .max_by_key(|(bind, _)| bind.target.components().count())
            .map_or_else(
                || inside.to_path_buf(),
                |(bind, rest)| {
                    if rest.as_os_str().is_empty() {
                        bind.source.clone()
                    } else {
                        bind.source.join(rest)
                    }
                },
            )
    }

    /// The name that the workload's machine calls itself.
    pub(crate) fn effective_hostname(&self) -> &str {
        if self.hostname.is_empty() {
            &self.id
        } else {
            &self.hostname
        }
    }

    /// Checks everything that does not depend on the machine.
    ///
    /// # Errors
    /// [`SandboxError::Invalid`] names the first field that cannot be carried out.
    pub fn validate(&self) -> Result<(), SandboxError> {
        let id_ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if self.id.is_empty() || self.id.len() > MAX_ID_BYTES || !self.id.bytes().all(id_ok) {
            return invalid("id", "takes 1 to 64 letters, digits, '_' and '-'");
        }
        let host_ok = |byte: u8| id_ok(byte) || byte == b'.';
        if self.hostname.len() > MAX_HOSTNAME_BYTES || !self.hostname.bytes().all(host_ok) {
            return invalid(
                "hostname",
                "takes at most 64 letters, digits, '_', '-' and '.'",
            );
        }
        if self.argv.first().is_none_or(String::is_empty) {
            return invalid("argv", "names no program");
        }
        if self.argv.iter().any(|argument| argument.contains('\0')) {
            return invalid("argv", "holds a zero byte");
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid("env", &format!("{name:?} is not a variable"));
            }
        }
        if self
            .limits
            .memory_bytes
            .is_some_and(|bytes| bytes < 1 << 20)
        {
            return invalid("limits.memory_bytes", "is below 1 MiB");
        }
        if self.limits.cpu_milli.is_some_and(|milli| milli < 10) {
            return invalid("limits.cpu_milli", "is below 10");
        }
        if self.limits.pids == Some(0) || self.limits.open_files.is_some_and(|files| files < 16) {
            return invalid("limits", "leave no process or fewer than 16 open files");
        }
        let renewals = self.lease.as_ref().map(|leased| &leased.renewals);
        for (field, path) in [("log", &self.log), ("exit_record", &self.exit_record)]
            .into_iter()
            .chain(renewals.map(|path| ("lease.renewals", path)))
        {
            if !is_plain(path) {
                return invalid(
                    field,
                    &format!("{} is not an absolute path", path.display()),
                );
            }
        }
        if self
            .lease
            .as_ref()
            .is_some_and(|leased| !leased.first.is_ordered())
        {
            return invalid("lease.first", "ends before it begins");
        }
        if !is_plain(&self.cwd) {
            return invalid(
                "cwd",
                &format!("{} is not an absolute path", self.cwd.display()),
            );
        }
        for device in &self.devices {
            if !is_plain(device) || !device.starts_with("/dev") || device == Path::new("/dev") {
                return invalid(
                    "devices",
                    &format!("{} is not below /dev", device.display()),
                );
            }
        }
        if let Some(dir) = self.system_dirs.iter().find(|dir| !is_mountable(dir)) {
            return invalid("system_dirs", &format!("cannot bind {}", dir.display()));
        }
        let relative = self.binds.iter().find(|bind| !bind.source.is_absolute());
        if let Some(bind) = relative {
            return invalid(
                "binds",
                &format!("source {} is relative", bind.source.display()),
            );
        }
        for (field, target) in self.targets() {
            if !is_mountable(target) {
                return invalid(field, &format!("cannot mount at {}", target.display()));
            }
        }
        Ok(())
    }

    fn targets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let binds = self
            .binds
            .iter()
            .map(|bind| ("binds", bind.target.as_path()));
        let tmpfs = self
            .tmpfs
            .iter()
            .map(|tmpfs| ("tmpfs", tmpfs.target.as_path()));
        let files = self
            .files
            .iter()
            .map(|file| ("files", file.target.as_path()));
        binds.chain(tmpfs).chain(files)
    }
}

fn invalid(field: &'static str, problem: &str) -> Result<(), SandboxError> {
    Err(SandboxError::Invalid {
        field,
        problem: problem.to_owned(),
    })
}

/// Absolute, without `.` or `..`, so that a prefix test on it is true.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .skip(1)
            .all(|part| matches!(part, Component::Normal(_)))
        && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// A place inside that the caller may fill: not the root and not what this crate itself mounts.
fn is_mountable(path: &Path) -> bool {
    is_plain(path)
        && path != Path::new("/")
        && !["/proc", "/sys", "/dev"]
            .iter()
            .any(|own| path.starts_with(own))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::boottime::Boottime;

    fn spec() -> SandboxSpec {
        SandboxSpec::new(
            "srv_1",
            vec!["/bin/true".into()],
            "/",
            "/var/log/a",
            "/var/lib/a",
        )
    }

    /// A lease of a few seconds, asked at this one.
    fn leased(renewals: &str, ask_at: u64) -> Leased {
        let at = |seconds| Boottime::after_boot(Duration::from_secs(seconds));
        Leased {
            first: Lease {
                renewed_at: at(0),
                ask_at: at(ask_at),
                kill_at: at(2),
                gone_by: at(3),
            },
            renewals: renewals.into(),
        }
    }

    #[test]
    fn a_lease_in_order_is_valid() {
        let mut spec = spec();
        spec.lease = Some(leased("/var/lib/renewals", 1));
        spec.validate().unwrap();
    }

    #[test]
    fn a_plain_spec_is_valid_and_survives_json() {
        let spec = spec();
        spec.validate().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        let back: SandboxSpec = serde_json::from_str(&text).unwrap();
        assert_eq!(back.system_dirs, spec.system_dirs);
        let short = r#"{"id":"a","argv":["x"],"cwd":"/","log":"/l","exit_record":"/e"}"#;
        let back: SandboxSpec = serde_json::from_str(short).unwrap();
        assert_eq!(back.system_dirs.len(), DEFAULT_SYSTEM_DIRS.len());
        assert!(serde_json::from_str::<SandboxSpec>(&short.replace("cwd", "dir")).is_err());
    }

    #[test]
    fn host_path_takes_the_longest_bind() {
        let mut spec = spec();
        spec.binds = vec![
            Bind::writable("/data/v1", "/workspace"),
            Bind::read_only("/data/env", "/workspace/env"),
        ];
        let mapped = |path: &str| spec.host_path(Path::new(path));
        assert_eq!(mapped("/workspace"), Path::new("/data/v1"));
        assert_eq!(mapped("/workspace/a/b"), Path::new("/data/v1/a/b"));
        assert_eq!(mapped("/workspace/env/bin"), Path::new("/data/env/bin"));
        assert_eq!(mapped("/workspaces"), Path::new("/workspaces"));
    }

    #[test]
    fn what_cannot_be_carried_out_is_named() {
        type Change = fn(&mut SandboxSpec);
        let cases: [(&str, Change); 16] = [
            ("id", |spec| spec.id = "a/b".into()),
            ("id", |spec| spec.id = "..".into()),
            ("id", |spec| spec.id = "x".repeat(65)),
            ("hostname", |spec| spec.hostname = "a b".into()),
            ("argv", |spec| spec.argv.clear()),
            ("argv", |spec| spec.argv.push("a\0b".into())),
            ("env", |spec| spec.env.push(("A=B".into(), String::new()))),
            ("cwd", |spec| spec.cwd = "a".into()),
            ("lease.renewals", |spec| spec.lease = Some(leased("a", 1))),
            ("lease.first", |spec| spec.lease = Some(leased("/a", 9))),
            ("binds", |spec| spec.binds.push(Bind::writable("/a", "/"))),
            ("binds", |spec| {
                spec.binds.push(Bind::writable("/a", "/x/../etc"))
            }),
            ("binds", |spec| spec.binds.push(Bind::writable("a", "/x"))),
            ("files", |spec| {
                let target = "/proc/1".into();
                spec.files.push(GeneratedFile {
                    target,
                    content: String::new(),
                    mode: 0o444,
                });
            }),
            ("devices", |spec| spec.devices.push("/etc/passwd".into())),
            ("limits.cpu_milli", |spec| spec.limits.cpu_milli = Some(1)),
        ];
        for (expected, change) in cases {
            let mut spec = spec();
            change(&mut spec);
            match spec.validate() {
                Err(SandboxError::Invalid { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
}
