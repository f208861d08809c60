//! What a node can be told.

use std::{path::PathBuf, time::Duration};

use cnlab_model::{ByteSize, ServerName};
use cnlab_service::{CommonConfig, ConfigFault, ServiceConfig, Span};
use serde::{Deserialize, Serialize};

/// Configuration of node-svc.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The part that all services share.
    pub common: CommonConfig,
    /// The node's name among the nodes of its cell: letters, digits and dashes.
    pub name: String,
    /// Where other services reach this node; without it, the address that it listens on.
    pub advertise: Option<String>,
    /// Endpoint of the scheduler.
    pub scheduler: String,
    /// Folder of volumes, environments and the node's own state.
    pub data_dir: PathBuf,
    /// Where GPUs come from.
    pub gpu: GpuConfig,
    /// How software environments are built.
    pub environment: EnvironmentConfig,
    /// How processes are run.
    pub process: ProcessConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: CommonConfig::on_port(7102),
            name: "local".to_owned(),
            advertise: None,
            scheduler: "http://127.0.0.1:7101".to_owned(),
            data_dir: PathBuf::from("cnlab-data"),
            gpu: GpuConfig::default(),
            environment: EnvironmentConfig::default(),
            process: ProcessConfig::default(),
        }
    }
}

/// Where GPUs come from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// Which kind of GPUs this node offers.
    pub source: GpuSource,
    /// The simulated set, used when `source` is or falls back to simulated.
    pub simulated: Vec<SimulatedGpu>,
}

impl Default for GpuConfig {
    fn default() -> Self {
        let one = |product: &str, memory: u64| SimulatedGpu {
            product: product.to_owned(),
            memory: ByteSize(memory),
            count: 1,
        };
        Self {
            source: GpuSource::Auto,
            simulated: vec![
                one("H100 80GB", 80 << 30),
                one("A100 80GB", 80 << 30),
                one("L40S 48GB", 48 << 30),
            ],
        }
    }
}

/// Which kind of GPUs a node offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuSource {
    /// Those that the driver knows, else the simulated set.
    Auto,
    /// Those that the driver knows, else an error.
    Nvml,
    /// The simulated set.
    Simulated,
}

/// GPUs that exist only in the simulator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedGpu {
    /// Product name.
    pub product: String,
    /// Memory of each.
    pub memory: ByteSize,
    /// How many.
    #[serde(default = "one")]
    pub count: u16,
}

const fn one() -> u16 {
    1
}

/// How software environments are built.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentConfig {
    /// Folder of the environments; by default `envs` in the data folder.
    pub folder: Option<PathBuf>,
    /// Python 3.9 or newer: a name on the search path, or a path.
    pub python: String,
    /// Package index instead of the one that pip is configured for.
    pub index_url: Option<String>,
    /// Longest time of one build.
    pub build_within: Span,
}

impl Default for EnvironmentConfig {
    fn default() -> Self {
        Self {
            folder: None,
            python: "python3".to_owned(),
            index_url: None,
            build_within: Span(Duration::from_secs(3_600)),
        }
    }
}

/// How processes are run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// The program that builds sandboxes, with the verb of node-sandbox; by default the running
    /// program itself.
    pub launcher: Option<PathBuf>,
    /// How much isolation is insisted on.
    pub isolation: IsolationChoice,
    /// First user id for volumes, when the node runs as root.
    pub first_uid: u32,
    /// How many user ids there are.
    pub uid_count: u32,
    /// Processes and threads of one workload.
    pub pids: u64,
    /// Open files of one process.
    pub open_files: u64,
    /// How long a workload may take to end by itself when asked.
    pub stop_grace: Span,
    /// What an orderly shutdown does with workloads.
    pub at_shutdown: AtShutdown,
    /// How long its page may take to answer.
    pub ready_within: Span,
    /// A log beyond this size is begun anew; the older part is kept once.
    pub log_limit: ByteSize,
    /// What a server does for its first Python kernel before somebody asks for one.
    pub first_kernel: FirstKernel,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            launcher: None,
            isolation: IsolationChoice::Best,
            first_uid: 210_000,
            uid_count: 60_000,
            pids: 4_096,
            open_files: 65_536,
            stop_grace: Span(Duration::from_secs(10)),
            at_shutdown: AtShutdown::End,
            ready_within: Span(Duration::from_secs(180)),
            log_limit: ByteSize(64 << 20),
            first_kernel: FirstKernel::Prepared,
        }
    }
}

/// What a server does for its first Python kernel before somebody asks for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstKernel {
    /// A process of the server has imported what every kernel imports, and becomes the first one:
    /// about 50 MB of the server's memory until then.
    Prepared,
    /// Nothing: the first kernel starts as every later one does.
    Cold,
}

/// What an orderly shutdown does with workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtShutdown {
    /// They are ended.
    End,
    /// They live on, and the next start finds them: for updates of node-svc.
    Keep,
}

/// How much isolation is insisted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationChoice {
    /// What the machine gives, and it is said what that is.
    Best,
    /// Namespaces, or workloads are refused.
    Full,
    /// None but a process tree of its own, even where more is possible.
    Process,
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = self.common.validate();
        let mut fault = |key: &str, problem: &str| faults.push(ConfigFault::new(key, problem));
        if self.name.parse::<ServerName>().is_err() {
            fault(
                "name",
                "consists of at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
            );
        }
        for (key, endpoint) in [
            ("scheduler", Some(&self.scheduler)),
            ("advertise", self.advertise.as_ref()),
        ] {
            let is_url = |text: &String| {
                text.parse::<http::Uri>()
                    .is_ok_and(|uri| uri.scheme().is_some() && uri.authority().is_some())
            };
            if endpoint.is_some_and(|endpoint| !is_url(endpoint)) {
                fault(key, "is no endpoint such as http://127.0.0.1:7101");
            }
        }
        if self.data_dir.as_os_str().is_empty() {
            fault("data_dir", "names no folder");
        }
        if self.gpu.source != GpuSource::Nvml && self.gpu.simulated.iter().all(|gpu| gpu.count == 0)
        {
            fault("gpu.simulated", "has no GPU");
        }
        if self
            .gpu
            .simulated
            .iter()
            .any(|gpu| gpu.product.trim().is_empty() || gpu.memory.0 < 1 << 20)
        {
            fault(
                "gpu.simulated",
                "needs a product name and at least 1 MiB of memory for each",
            );
        }
        if self.environment.python.trim().is_empty() {
            fault("environment.python", "names no program");
        }
        let process = &self.process;
        if process.first_uid == 0
            || process.uid_count == 0
            || process.first_uid.checked_add(process.uid_count).is_none()
        {
            fault(
                "process.first_uid",
                "and process.uid_count must give a range without 0",
            );
        }
        if process.pids < 64 {
            fault("process.pids", "must be at least 64");
        }
        if process.open_files < 256 {
            fault("process.open_files", "must be at least 256");
        }
        if process.log_limit.0 < 1 << 16 {
            fault("process.log_limit", "must be at least 64 KiB");
        }
        faults
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

#[cfg(test)]
mod tests {
    use cnlab_service::Secret;

    use super::*;

    #[test]
    fn the_default_needs_only_a_key() {
        let mut config = Config::default();
        let keys: Vec<_> = config.validate().into_iter().map(|f| f.key).collect();
        assert_eq!(keys, ["common.internal_key"]);
        config.common.internal_key = Secret::new("k".repeat(32));
        assert!(config.validate().is_empty());
    }

    #[test]
    fn every_fault_is_named() {
        let mut config = Config::default();
        config.common.internal_key = Secret::new("k".repeat(32));
        config.name = "a/b".to_owned();
        config.scheduler = "nowhere".to_owned();
        config.gpu.simulated.clear();
        config.environment.python.clear();
        config.process.first_uid = 0;
        let keys: Vec<_> = config.validate().into_iter().map(|f| f.key).collect();
        assert_eq!(
            keys,
            [
                "name",
                "scheduler",
                "gpu.simulated",
                "environment.python",
                "process.first_uid"
            ]
        );
    }
}
