//! Starts the supervisor of a workload and waits until the command runs or a step has failed.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::EXEC_VERB;
use crate::error::SandboxError;
use crate::handshake::{Message, Request, parse};
use crate::probe::{Capabilities, Isolation, Missing, probe};
use crate::proctree::{ProcessId, boot_id};
use crate::running::{Identity, Running};
use crate::spec::{SandboxSpec, Wanted};

/// The program that becomes the supervisor: it must call [`crate::sandbox_exec_main`] when
/// [`EXEC_VERB`] follows `leading_args`.
#[derive(Clone)]
pub struct Launcher {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments before the verb.
    pub leading_args: Vec<OsString>,
}

impl fmt::Debug for Launcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Launcher({} {:?})",
            self.program.display(),
            self.leading_args
        )
    }
}

impl Launcher {
    /// The running program itself. It is addressed through `/proc/self/exe`, so a start works
    /// even after the file on disk was replaced or removed.
    ///
    /// # Errors
    /// [`SandboxError::Launcher`] when the program's own path cannot be found.
    pub fn current_exe() -> Result<Self, SandboxError> {
        let program = PathBuf::from("/proc/self/exe");
        program
            .metadata()
            .map_err(failed("find the running program"))?;
        Ok(Self {
            program,
            leading_args: Vec::new(),
        })
    }

    /// Starts the workload. Blocks until its command is executed, usually for milliseconds.
    ///
    /// # Errors
    /// Every [`SandboxError`] but `NotGone`; after one, nothing of this start is left.
    pub fn start(&self, spec: &SandboxSpec) -> Result<Running, SandboxError> {
        spec.validate()?;
        let capabilities = probe();
        let isolation = choose(spec.isolation, &capabilities)?;
        if capabilities.root && (spec.uid == 0 || spec.gid == 0) {
            let problem = "is 0: a workload never runs as root".to_owned();
            return Err(SandboxError::Invalid {
                field: "uid or gid",
                problem,
            });
        }
        let request = Request {
            spec: spec.clone(),
            unenforced: unenforced(spec, &capabilities),
            isolation: isolation.clone(),
            slots: capabilities.slots,
        };
        let boot_id = boot_id().map_err(failed("read the boot id"))?;
        let mut supervisor = self.spawn(spec)?;
        let result = converse(&mut supervisor, &request);
        let answer = match result {
            Ok(answer) => parse(&answer),
            Err(error) => {
                end(&mut supervisor);
                return Err(failed("speak to the supervisor")(error));
            }
        };
        let supervisor_id = i32::try_from(supervisor.id())
            .ok()
            .and_then(|pid| ProcessId::of(pid).ok());
        match (verdict(spec, answer), supervisor_id) {
            (Ok((init, cgroups, unenforced)), Some(supervisor)) => Ok(Running::new(Identity {
                id: spec.id.clone(),
                supervisor,
                init,
                boot_id,
                isolation,
                cgroups,
                unenforced,
                exit_record: spec.exit_record.clone(),
                renewals: spec.lease.as_ref().map(|leased| leased.renewals.clone()),
            })),
            (Ok(_), None) => Err(lost(spec)),
            (Err(error), _) => {
                // It is on its way out; when it is gone, so is everything it made.
                wait(&mut supervisor);
                Err(error)
            }
        }
    }

    fn spawn(&self, spec: &SandboxSpec) -> Result<Child, SandboxError> {
        // So that `ps` shows the program's name also when it is addressed through /proc.
        let name = fs::canonicalize(&self.program).ok();
        let name = name.as_ref().and_then(|path| path.file_name());
        Command::new(&self.program)
            .arg0(name.unwrap_or(self.program.as_os_str()))
            .args(&self.leading_args)
            .arg(EXEC_VERB)
            .arg(&spec.id)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed(&format!("start {}", self.program.display())))
    }
}

/// Sends the request and reads until nobody is left who could report a failure.
fn converse(supervisor: &mut Child, request: &Request) -> io::Result<String> {
    let text = serde_json::to_vec(request)?;
    let (Some(mut stdin), Some(mut stdout)) = (supervisor.stdin.take(), supervisor.stdout.take())
    else {
        return Err(io::Error::other("a pipe is missing"));
    };
    stdin.write_all(&text)?;
    drop(stdin);
    let mut answer = Vec::new();
    stdout.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

type Forked = (ProcessId, Vec<crate::Cgroup>, Vec<String>);

fn verdict(spec: &SandboxSpec, answer: Vec<Message>) -> Result<Forked, SandboxError> {
    let mut forked = None;
    let mut executing = false;
    for message in answer {
        match message {
            Message::Forked {
                init,
                cgroups,
                unenforced,
            } => forked = Some((init, cgroups, unenforced)),
            Message::Executing => executing = true,
            Message::Busy { pids } => {
                return Err(SandboxError::StillRunning {
                    id: spec.id.clone(),
                    pids,
                });
            }
            Message::Failed {
                step,
                problem,
                errno,
            } => {
                return Err(SandboxError::Failed {
                    step,
                    problem,
                    errno,
                });
            }
        }
    }
    forked.filter(|_| executing).ok_or_else(|| lost(spec))
}

fn choose(wanted: Wanted, capabilities: &Capabilities) -> Result<Isolation, SandboxError> {
    match (wanted, capabilities.isolation()) {
        (Wanted::ProcessOnly, _) => {
            let reasons = vec!["the caller asked for a plain process".to_owned()];
            Ok(Isolation::ProcessOnly { reasons })
        }
        (Wanted::Full, Isolation::ProcessOnly { reasons }) => {
            Err(SandboxError::NotIsolated { reasons })
        }
        (_, isolation) => Ok(isolation),
    }
}

/// The limits that were asked for and that this machine cannot set.
fn unenforced(spec: &SandboxSpec, capabilities: &Capabilities) -> Vec<String> {
    let limits = &spec.limits;
    let asked = |missing: &&Missing| match missing.what.as_str() {
        "memory limit" => limits.memory_bytes.is_some(),
        "cpu limit" => limits.cpu_milli.is_some(),
        "pids limit" => limits.pids.is_some(),
        _ => false,
    };
    capabilities
        .limits_missing
        .iter()
        .filter(asked)
        .map(Missing::to_string)
        .collect()
}

fn lost(spec: &SandboxSpec) -> SandboxError {
    SandboxError::Lost {
        id: spec.id.clone(),
        log: spec.log.clone(),
    }
}

fn failed(step: &str) -> impl Fn(io::Error) -> SandboxError {
    let step = step.to_owned();
    move |source| SandboxError::Launcher {
        step: step.clone(),
        source,
    }
}

fn end(supervisor: &mut Child) {
    // Already ended is what is wanted.
    let _ended = supervisor.kill();
    wait(supervisor);
}

fn wait(supervisor: &mut Child) {
    // Fails only when somebody else has reaped it.
    let _reaped = supervisor.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec::new("srv_1", vec!["/bin/true".into()], "/", "/l", "/e")
    }

    #[test]
    fn only_an_executed_command_is_a_start() {
        let init = ProcessId {
            pid: 1,
            start_ticks: 1,
        };
        let forked = || Message::Forked {
            init,
            cgroups: Vec::new(),
            unenforced: Vec::new(),
        };
        let judge = |answer| verdict(&spec(), answer).map_err(|error| error.reason());
        assert_eq!(judge(vec![forked(), Message::Executing]).unwrap().0, init);
        // Init and supervisor write independently of each other.
        assert!(judge(vec![Message::Executing, forked()]).is_ok());
        assert_eq!(judge(vec![]).unwrap_err(), "SANDBOX_LAUNCHER_LOST");
        assert_eq!(judge(vec![forked()]).unwrap_err(), "SANDBOX_LAUNCHER_LOST");
        let failed = Message::Failed {
            step: "run x".into(),
            problem: "no".into(),
            errno: None,
        };
        let answer = vec![forked(), Message::Executing, failed];
        assert_eq!(judge(answer).unwrap_err(), "SANDBOX_STEP_FAILED");
        assert_eq!(
            judge(vec![Message::Busy { pids: vec![7] }]).unwrap_err(),
            "SANDBOX_STILL_RUNNING"
        );
    }

    #[test]
    fn a_program_that_is_no_supervisor_is_found_out() {
        let launcher = Launcher {
            program: "/bin/true".into(),
            leading_args: Vec::new(),
        };
        let mut spec = spec();
        (spec.uid, spec.gid) = (1234, 1234);
        let error = launcher.start(&spec).unwrap_err();
        let reasons = ["SANDBOX_LAUNCHER_LOST", "SANDBOX_LAUNCHER_FAILED"];
        assert!(reasons.contains(&error.reason()), "{error}");
        let launcher = Launcher {
            program: "/nonexistent".into(),
            leading_args: Vec::new(),
        };
        assert_eq!(
            launcher.start(&spec).unwrap_err().reason(),
            "SANDBOX_LAUNCHER_FAILED"
        );
    }
}
