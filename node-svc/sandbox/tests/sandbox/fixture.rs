//! A folder with a volume, and the ways to start workloads on it and to see what is left of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use node_sandbox::{
    Bind, ExitRecord, Identity, Isolation, Launcher, Limits, Running, SandboxError, SandboxSpec,
    probe,
};

/// Longest that any of these workloads may take to start to speak or to end.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);

pub(crate) const UID: u32 = 70_001;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Ends what a failed test left running.
pub(crate) struct Guard(pub(crate) Running);

impl std::ops::Deref for Guard {
    type Target = Running;
    fn deref(&self) -> &Running {
        &self.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.0.terminate(Duration::ZERO) {
            eprintln!("left running: {error}");
        }
    }
}

/// One workload's place on the host. Its folder is closed to everybody but root, like the home
/// folder that a demonstration runs in.
pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) id: String,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let capabilities = probe();
        assert!(
            capabilities.root,
            "these tests start sandboxes: run them as root"
        );
        assert_eq!(
            capabilities.isolation(),
            Isolation::Full,
            "these tests need root in a machine or container that may create namespaces"
        );
        assert!(
            capabilities.limits_missing.is_empty(),
            "these tests need cgroups: {:?}",
            capabilities.limits_missing
        );
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        fs::create_dir(&volume).unwrap();
        chown(&volume, Some(UID), Some(UID)).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o700)).unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("test-{}-{number}", std::process::id());
        Self { folder, id }
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    /// A shell script as a workload with a writable `/workspace`.
    pub(crate) fn script(&self, script: &str) -> SandboxSpec {
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let (log, record) = (
            self.folder.path().join("log"),
            self.folder.path().join("exit.json"),
        );
        let mut spec = SandboxSpec::new(&self.id, argv, "/workspace", log, record);
        (spec.uid, spec.gid) = (UID, UID);
        spec.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        spec.binds = vec![Bind::writable(self.volume(), "/workspace")];
        spec.limits = Limits {
            memory_bytes: Some(256 << 20),
            ..Limits::default()
        };
        spec
    }

    pub(crate) fn start(&self, spec: &SandboxSpec) -> Guard {
        Guard(self.try_start(spec).unwrap())
    }

    pub(crate) fn try_start(&self, spec: &SandboxSpec) -> Result<Running, SandboxError> {
        let launcher = Launcher {
            program: harness(),
            leading_args: Vec::new(),
        };
        launcher.start(spec)
    }

    /// Starts the workload, waits for its end and returns the record and what it wrote.
    pub(crate) fn run(&self, spec: &SandboxSpec) -> (ExitRecord, String) {
        let running = self.start(spec);
        assert!(running.wait(Some(PATIENCE)), "still runs: {}", self.log());
        self.assert_nothing_left(running.identity());
        (
            running.exit_record().unwrap().expect("a record"),
            self.log(),
        )
    }

    pub(crate) fn run_script(&self, script: &str) -> (ExitRecord, String) {
        self.run(&self.script(script))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until the workload has written `text`.
    pub(crate) fn wait_for(&self, running: &Running, text: &str) {
        let seen = until(|| {
            let log = self.log();
            log.contains(text) || running.wait(Some(Duration::ZERO))
        });
        let log = self.log();
        assert!(seen && log.contains(text), "no {text:?} in {log:?}");
    }

    /// No process, no cgroup, and no mount that anybody outside could see.
    pub(crate) fn assert_nothing_left(&self, identity: &Identity) {
        for group in &identity.cgroups {
            assert!(!group.path.exists(), "{} is left", group.path.display());
        }
        assert_eq!(processes_of(&self.id), [0_i32; 0]);
        self.assert_no_mounts();
    }

    pub(crate) fn assert_no_mounts(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = self.folder.path().to_str().unwrap();
        assert!(!mounts.contains(folder), "{mounts}");
    }
}

/// The program that becomes the supervisor, built by cargo beside the tests.
pub(crate) fn harness() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let harness = profile.join("examples/sandbox_harness");
    assert!(
        harness.exists(),
        "{} is missing: cargo builds it for `cargo test -p node-sandbox`, or with --examples",
        harness.display()
    );
    harness
}

/// Repeats until true, or for as long as the tests are patient.
pub(crate) fn until(mut done: impl FnMut() -> bool) -> bool {
    let pause = std::sync::mpsc::channel::<()>();
    let tries = PATIENCE.as_millis() / TICK.as_millis();
    (0..tries).any(|_| {
        let finished = done();
        if !finished {
            // Nothing is ever sent, so this only passes time.
            assert!(pause.1.recv_timeout(TICK).is_err());
        }
        finished
    })
}

/// Supervisors and inits that carry this id in their command line.
pub(crate) fn processes_of(id: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.any(|word| word == b"__sandbox-exec") && words.next() == Some(id.as_bytes())
    })
    .collect()
}

/// Whether a process is there and not a zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
