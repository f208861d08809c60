use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use cnlab_model::id::{GrantId, ServerId, VolumeId};
use cnlab_proto::{
    model::v1 as model,
    node::v1::{self as pb, Workload, WorkloadState},
};
use cnlab_service::{Running, Runtime, Secret};
use cnlab_testkit::{ChildGuard, Signal, tied_command, wait_for};
use node_svc::{
    Config, NodeSvc,
    config::{GpuSource, IsolationChoice},
};
use tokio::net::TcpListener;

use super::{NodeClient, Notebook, Scheduler, client, ulid};

pub(crate) const KEY: &str = "the-key-of-the-node-tests-0123456789";
const NODE_SVC: &str = env!("CARGO_BIN_EXE_node-svc");
/// Long enough for a cold environment on a busy machine.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// One environment for all tests: building it is the slow part, and it is built for real once.
pub(crate) fn shared_environments() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-envs")
}

pub(crate) fn config(data: &Path, scheduler: &str) -> Config {
    let mut config = Config::default();
    config.common.internal_key = Secret::new(KEY.to_owned());
    config.scheduler = scheduler.to_owned();
    config.data_dir = data.to_owned();
    config.gpu.source = GpuSource::Simulated;
    config.environment.folder = Some(shared_environments());
    config.process.launcher = Some(PathBuf::from(NODE_SVC));
    config.process.isolation = IsolationChoice::Full;
    config
}

/// A launch on the first quarter of a GPU.
pub(crate) fn launch_request(gpu: &model::Gpu, fence: u64) -> pb::LaunchWorkloadRequest {
    pb::LaunchWorkloadRequest {
        workload_id: ServerId::from_ulid(ulid()).to_string(),
        grant: Some(model::Grant {
            id: GrantId::from_ulid(ulid()).to_string(),
            fence,
            slices: vec![model::Slice {
                gpu_uuid: gpu.uuid.clone(),
                gpu_type: gpu.gpu_type.clone(),
                blocks: vec![model::BlockRange {
                    first: 0,
                    count: 25,
                }],
                vram_bytes: gpu.memory_bytes / 4,
                isolation: model::IsolationClass::Soft.into(),
            }],
        }),
        image: Some(pb::ImageRecipe {
            name: "tests:lab".to_owned(),
            reference: "none".to_owned(),
            packages: vec!["jupyterlab==4.6.6".to_owned()],
            heavy_packages: vec!["torch==2.4.0".to_owned()],
        }),
        install_heavy: false,
        volume_id: VolumeId::from_ulid(ulid()).to_string(),
        storage_bytes: 1 << 30,
        memory_bytes: 2 << 30,
        cpu_milli: 2_000,
        display_name: "first-experiment".to_owned(),
        command: None,
    }
}

/// Ends what a failed test would leave: supervisors of its workloads.
pub(crate) struct Leftovers(pub(crate) Vec<String>);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for id in &self.0 {
            for pid in supervisors(id) {
                let pid = nix::unistd::Pid::from_raw(pid);
                // Ends everything below it too; it may be over by now.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGQUIT);
            }
        }
    }
}

/// Process ids of the supervisors of a workload.
pub(crate) fn supervisors(workload_id: &str) -> Vec<i32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("__sandbox-exec") && line.contains(workload_id)
        })
        .collect()
}

/// A node in this process.
pub(crate) struct InProcess {
    pub(crate) running: Running<NodeSvc>,
    pub(crate) client: NodeClient,
}

impl InProcess {
    pub(crate) async fn start(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let running = cnlab_service::start::<NodeSvc>(config, Runtime::system(), listener)
            .await
            .unwrap();
        let client = client(&running.endpoint());
        Self { running, client }
    }

    pub(crate) fn notebook(&self, workload: &Workload) -> Notebook {
        Notebook::new(self.running.addr(), workload)
    }
}

/// A node in a process of its own, which can be killed.
pub(crate) struct OwnProcess {
    pub(crate) child: ChildGuard,
    pub(crate) client: NodeClient,
    pub(crate) addr: std::net::SocketAddr,
}

impl OwnProcess {
    pub(crate) async fn start(data: &Path, scheduler: &Scheduler, environments: &Path) -> Self {
        let before = scheduler.registrations().len();
        let mut command: Command = tied_command(NODE_SVC, Signal::SIGKILL);
        command.args(["--listen", "127.0.0.1:0"]);
        for (key, value) in [
            ("common.internal_key", KEY),
            ("common.telemetry.log", "node_svc=debug,warn"),
            ("scheduler", &scheduler.endpoint),
            ("data_dir", data.to_str().unwrap()),
            ("gpu.source", "simulated"),
            ("environment.folder", environments.to_str().unwrap()),
            ("process.isolation", "full"),
        ] {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        let child = ChildGuard::spawn(command).unwrap();
        let endpoint = wait_for(LONG, "the node to register", async || {
            let all = scheduler.registrations();
            all.get(before)
                .map(|registered| registered.endpoint.clone())
        })
        .await
        .unwrap();
        Self {
            child,
            client: client(&endpoint),
            addr: endpoint.trim_start_matches("http://").parse().unwrap(),
        }
    }

    /// `kill -9` of the node alone: what it started goes on.
    pub(crate) async fn kill(mut self) {
        self.child.signal(Signal::SIGKILL).unwrap();
        self.child.wait_exit(LONG).await.unwrap();
        // The guard would end the descendants too; there are none that are still below it.
    }
}

/// A machine whose node-svc comes and goes.
pub(crate) struct Machine {
    pub(crate) data: tempfile::TempDir,
    pub(crate) scheduler: Scheduler,
    envs: PathBuf,
}

impl Machine {
    /// One whose leases live for so long.
    pub(crate) async fn with_leases(ttl: Duration) -> Self {
        let scheduler = Scheduler::start().await;
        scheduler.lease(ttl);
        Self {
            data: tempfile::tempdir().unwrap(),
            scheduler,
            envs: shared_environments(),
        }
    }

    pub(crate) async fn node_svc(&self) -> OwnProcess {
        OwnProcess::start(self.data.path(), &self.scheduler, &self.envs).await
    }
}

/// Waits until a workload is in a state; any end that is not waited for fails the test.
pub(crate) async fn until(
    client: &NodeClient,
    workload_id: &str,
    state: WorkloadState,
) -> Workload {
    wait_for(
        LONG,
        &format!("{workload_id} to be {state:?}"),
        async || {
            let request = pb::GetWorkloadRequest {
                workload_id: workload_id.to_owned(),
            };
            let workload = client
                .clone()
                .get_workload(request)
                .await
                .unwrap()
                .into_inner();
            let over = [WorkloadState::Stopped, WorkloadState::Failed].contains(&workload.state());
            assert!(
                !over || workload.state() == state,
                "{workload_id} ended: {:?}",
                workload.failure
            );
            (workload.state() == state).then_some(workload)
        },
    )
    .await
    .unwrap()
}
