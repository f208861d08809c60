//! Runs a server as a JupyterLab process tree of its own, and a run as the tree of its command,
//! through `node-sandbox`.
//!
//! Inside, `/workspace` is the volume, `/run/cnlab` the life's runtime folder (Jupyter's socket,
//! settings and kernel connections), and the environment lies read-only at its own path. Where
//! the machine does not allow namespaces, the same folders are used at their places on the host.
//!
//! **Invariant**: the notebook's token is in a file that only the workload's user can read; it
//! is on no command line and in no environment.

mod command;
mod notebook_files;
mod orphans;

pub(crate) use notebook_files::SOCKET;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use node_core::Holder;
use node_sandbox::{
    Bind, Capabilities, ExitRecord, GeneratedFile, Identity, Isolation, Launcher, Lease, Leased,
    Limits, Running, SandboxError, SandboxSpec, Wanted,
};

use crate::{
    config::{FirstKernel, IsolationChoice, ProcessConfig},
    failure::Failure,
    ports::{Boundaries, Ended, Exit, Handle, Process, RunPlan, Runner, life_name},
};

/// Where the volume is, inside.
const WORKSPACE: &str = "/workspace";
/// Where the runtime folder is, inside.
const RUNTIME: &str = "/run/cnlab";
/// One wait for the end of a process; bounds how long a shutdown waits for the thread.
const WATCH_SLICE: Duration = Duration::from_millis(500);

/// Starts processes on this machine.
#[derive(Debug)]
pub struct ProcessRunner {
    launcher: Launcher,
    capabilities: Capabilities,
    wanted: Wanted,
    limits: Limits,
    first_kernel: FirstKernel,
}

impl ProcessRunner {
    /// A runner that has tried what the machine allows.
    ///
    /// # Errors
    /// When the program that builds sandboxes cannot be found, or full isolation is insisted on
    /// and impossible.
    pub fn open(config: &ProcessConfig) -> Result<Self, Failure> {
        let launcher = match &config.launcher {
            Some(program) => Launcher {
                program: program.clone(),
                leading_args: Vec::new(),
            },
            None => Launcher::current_exe().map_err(|error| failure(&error))?,
        };
        let capabilities = node_sandbox::probe();
        let wanted = match config.isolation {
            IsolationChoice::Best => Wanted::Best,
            IsolationChoice::Full => Wanted::Full,
            IsolationChoice::Process => Wanted::ProcessOnly,
        };
        if wanted == Wanted::Full
            && let Isolation::ProcessOnly { reasons } = capabilities.isolation()
        {
            return Err(failure(&SandboxError::NotIsolated { reasons }));
        }
        Ok(Self {
            launcher,
            capabilities,
            wanted,
            limits: Limits {
                memory_bytes: None,
                cpu_milli: None,
                pids: Some(config.pids),
                open_files: Some(config.open_files),
            },
            first_kernel: config.first_kernel,
        })
    }

    /// Why workloads are not isolated; `None` when they are.
    fn why_not_isolated(&self) -> Option<String> {
        if self.wanted == Wanted::ProcessOnly {
            return Some("the configuration asks for none".to_owned());
        }
        match self.capabilities.isolation() {
            Isolation::Full => None,
            Isolation::ProcessOnly { reasons } => Some(reasons.join("; ")),
        }
    }

    fn specification(&self, plan: &RunPlan) -> SandboxSpec {
        let isolated = self.why_not_isolated().is_none();
        let (workspace, runtime) = if isolated {
            (PathBuf::from(WORKSPACE), PathBuf::from(RUNTIME))
        } else {
            (
                plan.volume.clone(),
                notebook_files::short_path(&plan.folder),
            )
        };
        let argv = match &plan.command {
            Some(argv) => argv.clone(),
            None => notebook_files::command(&plan.environment.path, &runtime),
        };
        let mut spec = SandboxSpec::new(
            life_name(plan.holder),
            argv,
            &workspace,
            plan.folder.join("log"),
            plan.folder.join("exit.json"),
        );
        spec.uid = plan.uid;
        spec.gid = plan.uid;
        spec.hostname.clone_from(&plan.hostname);
        spec.env = match &plan.command {
            Some(_) => command::environment(plan, &workspace),
            None => notebook_files::environment(plan, &workspace, &runtime),
        };
        spec.devices.clone_from(&plan.gpu.devices);
        spec.isolation = self.wanted;
        spec.lease = plan.lease.map(|first| Leased {
            first,
            renewals: plan.folder.join("renewals"),
        });
        spec.max_runtime = plan.max_runtime;
        spec.limits = Limits {
            memory_bytes: (plan.memory_bytes > 0).then_some(plan.memory_bytes),
            cpu_milli: (plan.cpu_milli > 0).then_some(plan.cpu_milli.into()),
            ..self.limits.clone()
        };
        if isolated {
            let environment = &plan.environment.path;
            spec.binds = vec![
                Bind::writable(&plan.volume, WORKSPACE),
                Bind::read_only(environment, environment),
            ];
            if plan.command.is_none() {
                let runtime = Bind::writable(plan.folder.join("run"), RUNTIME);
                spec.binds.push(runtime);
            }
            // A Python outside the system's folders must be visible, and nothing beside it.
            let base = &plan.environment.base_prefix;
            let seen = |folder: &PathBuf| base.starts_with(folder);
            if !spec.system_dirs.iter().any(seen) && base.parent().is_some() {
                spec.binds.push(Bind::read_only(base, base));
            }
            spec.files = identity_files(plan);
        }
        spec
    }
}

/// Names for the workload's user and machine, so that prompts and `whoami` say where one is.
fn identity_files(plan: &RunPlan) -> Vec<GeneratedFile> {
    let uid = plan.uid;
    let file = |target: &str, content: String| GeneratedFile {
        target: PathBuf::from(target),
        content,
        mode: 0o644,
    };
    vec![
        file(
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/:/usr/sbin/nologin\n\
                 cnlab:x:{uid}:{uid}:CNLab user:{WORKSPACE}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
            ),
        ),
        file(
            "/etc/group",
            format!("root:x:0:\ncnlab:x:{uid}:\nnogroup:x:65534:\n"),
        ),
        file(
            "/etc/hosts",
            format!(
                "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {}\n",
                plan.hostname
            ),
        ),
    ]
}

#[async_trait]
impl Runner for ProcessRunner {
    fn boundaries(&self) -> Boundaries {
        let mut all = Boundaries::default();
        match self.why_not_isolated() {
            None => {
                all.isolated = true;
                all.enforced.extend(
                    [
                        "files: only its own volume can be written, and no other server's is visible",
                        "processes: only its own are visible, under a user of its own",
                    ]
                    .map(str::to_owned),
                );
            }
            Some(why) => {
                all.not_enforced.extend([
                    format!("files: other files of the machine are visible ({why})"),
                    format!("processes: other processes of the machine are visible ({why})"),
                ]);
            }
        }
        all.not_enforced
            .push("network: a server shares the machine's network and its loopback".to_owned());
        let cgroups = &self.capabilities.cgroups;
        for (what, version) in [
            ("memory", cgroups.memory),
            ("processor time", cgroups.cpu),
            ("number of processes", cgroups.pids),
        ] {
            if version.is_some() {
                all.enforced.push(format!("{what}: limited by a cgroup"));
            }
        }
        all.not_enforced.extend(
            self.capabilities
                .limits_missing
                .iter()
                .map(|missing| format!("{}: {}", missing.what, missing.reason)),
        );
        all
    }

    fn needs_own_users(&self) -> bool {
        self.capabilities.root
    }

    async fn start(&self, plan: &RunPlan) -> Result<Arc<dyn Process>, Failure> {
        let spec = self.specification(plan);
        let launcher = self.launcher.clone();
        let plan = plan.clone();
        let isolated = self.why_not_isolated().is_none();
        let first_kernel = self.first_kernel;
        let running = blocking(move || {
            if let Some(argv) = &plan.command {
                let started = launcher.start(&spec);
                return started.map_err(|error| command::failure(argv, &error));
            }
            notebook_files::prepare(&plan, isolated, first_kernel)
                .map_err(|error| Failure::disk("preparing the runtime folder", &error))?;
            launcher.start(&spec).map_err(|error| failure(&error))
        })
        .await?;
        Ok(Arc::new(SandboxedProcess(Arc::new(running))))
    }

    async fn adopt(&self, handle: &Handle) -> Result<Result<Arc<dyn Process>, Ended>, Failure> {
        let identity: Identity = serde_json::from_value(handle.0.clone()).map_err(|error| {
            Failure::new("NODE_STORAGE_FAILED", "the record of a process is damaged")
                .caused_by(error.to_string())
        })?;
        blocking(move || {
            if let Some(running) = Running::adopt(&identity) {
                let process: Arc<dyn Process> = Arc::new(SandboxedProcess(Arc::new(running)));
                return Ok(Ok(process));
            }
            identity
                .remove_leftovers()
                .map_err(|error| failure(&error))?;
            Ok(Err(how_it_ended(identity.exit_record())))
        })
        .await
    }

    async fn end_lost(&self, holder: Holder) -> Result<(), Failure> {
        blocking(move || orphans::end(&life_name(holder))).await
    }
}

/// A process tree that the sandbox supervises.
#[derive(Debug)]
struct SandboxedProcess(Arc<Running>);

#[async_trait]
impl Process for SandboxedProcess {
    fn handle(&self) -> Handle {
        Handle(serde_json::to_value(self.0.identity()).unwrap_or_default())
    }

    fn unenforced(&self) -> Vec<String> {
        self.0.unenforced().to_vec()
    }

    fn renew(&self, lease: &Lease) -> std::io::Result<()> {
        self.0.renew(lease)
    }

    async fn ended(&self) -> Result<Ended, Failure> {
        loop {
            let running = Arc::clone(&self.0);
            let over = blocking(move || {
                if !running.wait(Some(WATCH_SLICE)) {
                    return Ok(None);
                }
                running
                    .identity()
                    .remove_leftovers()
                    .map_err(|error| failure(&error))?;
                Ok(Some(how_it_ended(running.exit_record())))
            });
            if let Some(ended) = over.await? {
                return Ok(ended);
            }
        }
    }

    async fn terminate(&self, grace: Duration) -> Result<(), Failure> {
        let running = Arc::clone(&self.0);
        blocking(move || {
            running
                .terminate(grace)
                .map(drop)
                .map_err(|error| failure(&error))
        })
        .await
    }
}

fn how_it_ended(record: Result<Option<ExitRecord>, SandboxError>) -> Ended {
    match record {
        Ok(Some(record)) => Ended {
            exit: Some(match record.exit {
                node_sandbox::Exit::Code(code) => Exit::Code(code),
                node_sandbox::Exit::Signal(signal) => Exit::Signal(signal),
            }),
            how: record.exit.to_string(),
            deadline: record.deadline,
            out_of_memory: record.oom_killed,
        },
        Ok(None) => Ended {
            exit: None,
            how: "its supervisor was killed, or the machine was restarted".to_owned(),
            deadline: None,
            out_of_memory: false,
        },
        Err(error) => Ended {
            exit: None,
            how: format!("the record of its end cannot be read ({error})"),
            deadline: None,
            out_of_memory: false,
        },
    }
}

fn failure(error: &SandboxError) -> Failure {
    let failed = Failure::new(error.reason(), "the server's process could not be run")
        .caused_by(cnlab_service::status::chain(error));
    match error {
        SandboxError::NotIsolated { .. } => {
            failed.try_this("run node-svc as root, or set process.isolation to \"best\"")
        }
        SandboxError::Failed { step, .. } if step.starts_with("run ") => failed.try_this(
            "make sure that the workload's user can reach this program: set environment.python \
             to a Python outside of home folders, such as /usr/bin/python3",
        ),
        SandboxError::Failed { .. }
        | SandboxError::Launcher { .. }
        | SandboxError::Lost { .. }
        | SandboxError::Invalid { .. }
        | SandboxError::StillRunning { .. }
        | SandboxError::NotGone { .. }
        | SandboxError::Record { .. } => failed,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new("INTERNAL", "internal error").caused_by(error.to_string()))?
}

/// The runtime folder of a life, on the host.
pub(crate) fn runtime_folder(folder: &Path) -> PathBuf {
    folder.join("run")
}

/// Removes what only a running workload needs. Blocks.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn tidy(folder: &Path) -> std::io::Result<()> {
    notebook_files::remove_short_path(folder)?;
    crate::disk::remove_dir(&runtime_folder(folder))
}
