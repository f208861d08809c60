//! Workloads without namespaces: the caller is not root, or asked for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use node_sandbox::{Exit, Identity, Isolation, Running, SandboxSpec, Wanted};

use crate::fixture::{Fixture, Guard, UID, harness, lives, until};

const NOBODY: u32 = 65_534;
const GENEROUS: Duration = Duration::from_secs(60);
const STUBBORN: &str = "trap '' TERM; (setsid sleep 1000 &); (setsid sh -c 'sleep 1000 & wait' &); \
                        echo ready; while :; do sleep 1; done";

/// A caller without root: the harness, copied to where anybody may run it.
struct Nobody {
    fixture: Fixture,
    spec: SandboxSpec,
    caller: Option<Child>,
}

impl Nobody {
    fn new(script: &str) -> Self {
        let fixture = Fixture::new();
        let folder = fixture.folder.path();
        fs::copy(harness(), folder.join("harness")).unwrap();
        for path in [
            folder.to_path_buf(),
            fixture.volume(),
            folder.join("harness"),
        ] {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut spec = fixture.script(script);
        (spec.uid, spec.gid) = (0, 0);
        Self {
            fixture,
            spec,
            caller: None,
        }
    }

    fn command(&self) -> Command {
        let user = NOBODY.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(self.fixture.folder.path().join("harness"));
        command
    }

    fn start(&mut self) -> serde_json::Value {
        let path = self.fixture.folder.path().join("spec.json");
        fs::write(&path, serde_json::to_vec(&self.spec).unwrap()).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        let mut caller = self
            .command()
            .arg("start")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv (util-linux) is needed");
        let mut line = String::new();
        BufReader::new(caller.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        self.caller = Some(caller);
        serde_json::from_str(&line).unwrap()
    }

    fn start_identity(&mut self) -> Identity {
        let answer = self.start();
        serde_json::from_value(answer["identity"].clone()).unwrap_or_else(|_| panic!("{answer}"))
    }

    fn dismiss_caller(&mut self) {
        if let Some(mut caller) = self.caller.take() {
            caller.kill().unwrap();
            caller.wait().unwrap();
        }
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        self.dismiss_caller();
    }
}

#[test]
fn without_root_it_runs_as_a_plain_session_and_says_why() {
    let mut nobody = Nobody::new(
        "pwd; id -u; cat /proc/self/status | grep -E 'NoNewPrivs|CapEff'; tr '\\0' '\\n' < /proc/$$/environ; \
         echo kept > file; echo ready; exec sleep 1000",
    );
    let probed = nobody.command().arg("probe").output().unwrap();
    let probed = String::from_utf8(probed.stdout).unwrap();
    assert!(
        probed.starts_with("process only: ") && probed.contains("user 65534"),
        "{probed}"
    );

    let identity = nobody.start_identity();
    let Isolation::ProcessOnly { reasons } = &identity.isolation else {
        panic!("{:?}", identity.isolation);
    };
    assert_eq!(format!("process only: {}\n", reasons.join("; ")), probed);
    assert!(
        identity
            .unenforced
            .iter()
            .any(|text| text.contains("memory limit")),
        "{identity:?}"
    );
    nobody.dismiss_caller();
    let running = Guard(Running::adopt(&identity).expect("it outlives its caller"));
    nobody.fixture.wait_for(&running, "ready");
    let volume = nobody.fixture.volume();
    let expected = format!(
        "{}\n{NOBODY}\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nPATH=/usr/bin:/bin\n",
        volume.display()
    );
    assert!(
        nobody.fixture.log().starts_with(&expected),
        "{}",
        nobody.fixture.log()
    );
    assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept\n");
    let record = running.terminate(GENEROUS).unwrap().unwrap();
    assert_eq!(record.exit, Exit::Signal(15));
    nobody.fixture.assert_nothing_left(&identity);
}

#[test]
fn without_root_full_isolation_is_refused_with_the_reason() {
    let mut nobody = Nobody::new("exit 0");
    nobody.spec.isolation = Wanted::Full;
    let answer = nobody.start();
    assert_eq!(answer["reason"], "SANDBOX_NOT_ISOLATED");
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("only root can separate users"),
        "{answer}"
    );
}

#[test]
fn without_root_a_missing_program_is_one_clear_error() {
    let mut nobody = Nobody::new("");
    nobody.spec.argv = vec!["/workspace/nothing".into()];
    let expected = format!(
        "run {}: no such file or directory",
        nobody.fixture.volume().join("nothing").display()
    );
    assert_eq!(nobody.start()["error"], expected.as_str());
    assert!(!nobody.spec.exit_record.exists());
}

#[test]
fn without_root_nothing_escapes_from_a_stubborn_command() {
    let mut nobody = Nobody::new(STUBBORN);
    let identity = nobody.start_identity();
    let running = Guard(Running::adopt(&identity).unwrap());
    nobody.fixture.wait_for(&running, "ready");
    assert!(until(|| running.pids().len() >= 4), "{:?}", running.pids());
    let pids = running.pids();
    let record = running
        .terminate(Duration::from_millis(100))
        .unwrap()
        .unwrap();
    assert_eq!(record.exit, Exit::Signal(9));
    assert_eq!(pids.into_iter().filter(|pid| lives(*pid)).count(), 0);
}

#[test]
fn a_plain_session_ends_with_its_supervisor() {
    let fixture = Fixture::new();
    let mut spec = fixture.script(STUBBORN);
    spec.isolation = Wanted::ProcessOnly;
    // The user must be able to reach the volume without a mount.
    fs::set_permissions(fixture.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let running = fixture.start(&spec);
    fixture.wait_for(&running, "ready");
    assert!(until(|| running.pids().len() >= 4), "{:?}", running.pids());
    let pids = running.pids();
    for pid in &pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains(&format!("Uid:\t{UID}\t{UID}")), "{status}");
    }
    let identity = running.identity();
    let supervisor = nix::unistd::Pid::from_raw(identity.supervisor.pid);
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).unwrap();
    identity.remove_leftovers().unwrap();
    assert_eq!(pids.into_iter().filter(|pid| lives(*pid)).count(), 0);
    assert!(!lives(identity.init.pid));
    assert!(!running.is_alive());
    fixture.assert_nothing_left(identity);
}
