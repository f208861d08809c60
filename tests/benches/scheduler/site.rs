//! scheduler-svc as a process of its own, with its default configuration, on a cell of
//! registered nodes that exist only as far as they answer.

use std::{fs, net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cnlab_model::id::{NodeId, Ulid};
use cnlab_proto::{
    model::v1::Gpu,
    scheduler::v1::{RegisterNodeRequest, roster_service_client::RosterServiceClient},
};
use cnlab_service::{
    Running, Runtime, Secret,
    channel::{self, UpstreamChannel},
};
use cnlab_testkit::{
    ChildGuard, GENEROUS, ScratchDir, Signal, free_port, tied_command, wait_until,
};
use cnlab_tests::cli;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::{
    peers::{self, Peers},
    say,
};

/// GPUs of one node.
pub(crate) const GPUS: usize = 8;
const GIB: u64 = 1 << 30;
/// One tenth of a GPU, and a whole one.
const PROFILES: &str = r#"
[[profile]]
name = "tenth"
gpu_type = "H100"
percent = 10
memory = "4GiB"
cpu_milli = 1000

[[profile]]
name = "whole"
gpu_type = "H100"
percent = 100
memory = "40GiB"
cpu_milli = 8000
"#;

pub(crate) struct Site {
    pub(crate) nodes: u32,
    pub(crate) channel: UpstreamChannel,
    // Declared before the folder: the process must be gone before it goes.
    process: ChildGuard,
    peers: Running<Peers>,
    _folder: ScratchDir,
}

impl Site {
    /// Starts a scheduler and registers so many nodes.
    pub(crate) async fn start(nodes: u32) -> Result<Self> {
        let folder = ScratchDir::new("scheduler")?;
        let key = Secret::new(Runtime::system().ids.ulid().to_string().repeat(2));
        let peers = peers::start(&key).await?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let (file, profiles, log) = (
            folder.path().join("scheduler.toml"),
            folder.path().join("profiles.toml"),
            folder.path().join("scheduler.log"),
        );
        fs::write(&profiles, PROFILES)?;
        fs::write(
            &file,
            format!(
                "[common]\nlisten = \"{address}\"\ninternal_key = \"{}\"\n\
                 [common.telemetry]\nlog = \"warn\"\n\
                 [database]\nurl = \"sqlite://{}?mode=rwc\"\n\
                 [billing]\nendpoint = \"{}\"\n\
                 [catalog]\nprofiles_file = \"{}\"\n\
                 # Nobody renews while the load runs.\n\
                 [grants]\nttl = \"1h\"\n",
                key.expose(),
                folder.path().join("scheduler.sqlite").display(),
                peers.endpoint(),
                profiles.display(),
            ),
        )?;
        let out = fs::File::create(&log)?;
        let mut command = tied_command(cli::binary("scheduler-svc")?, Signal::SIGKILL);
        command
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let process = ChildGuard::spawn(command)?;
        let channel = channel::connect(&format!("http://{address}"), &key, GENEROUS)?;
        let site = Self {
            nodes,
            channel,
            process,
            peers,
            _folder: folder,
        };
        wait_until(GENEROUS, "scheduler-svc to answer", async || {
            site.register(0).await.is_ok()
        })
        .await
        .with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        say(&format!("registering {nodes} nodes, which is not measured"));
        stream::iter(1..nodes)
            .map(|number| site.register(number))
            .buffer_unordered(16)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(site)
    }

    async fn register(&self, number: u32) -> Result<()> {
        let gpus = (0..GPUS).map(|index| Gpu {
            uuid: format!("GPU-{number}-{index}"),
            gpu_type: "H100".to_owned(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 * GIB,
            simulated: true,
            driver_version: "simulated".to_owned(),
        });
        let request = RegisterNodeRequest {
            node_id: NodeId::from_ulid(Ulid(u128::from(number) + 1)).to_string(),
            name: format!("node-{number}"),
            endpoint: self.peers.endpoint(),
            gpus: gpus.collect(),
            cpu_milli: 128_000,
            memory_bytes: 1024 * GIB,
            disk_bytes: 1_000_000 * GIB,
            disk_free_bytes: 1_000_000 * GIB,
            not_enforced: vec![],
            ready_images: vec!["jupyter:minimal".to_owned()],
        };
        let answer = RosterServiceClient::new(self.channel.clone())
            .register_node(request)
            .await?;
        ensure!(answer.get_ref().lease_ttl.is_some(), "no lease time");
        Ok(())
    }

    /// Processor time that the scheduler has used, in microseconds.
    pub(crate) fn processor_micros(&self) -> Result<f64> {
        let mut nanos = 0_u64;
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.pid()))? {
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
                continue;
            };
            let used = text
                .split_whitespace()
                .next()
                .and_then(|word| word.parse::<u64>().ok());
            nanos += used.with_context(|| format!("schedstat: {text:?}"))?;
        }
        Ok(Duration::from_nanos(nanos).as_secs_f64() * 1e6)
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait_exit(GENEROUS).await?;
        self.peers.stop().await;
        Ok(())
    }
}
