//! What a node needs from outside: GPUs, and something that runs processes.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use cnlab_model::Blocks;
use node_core::{Holder, Slice};
use node_sandbox::{Deadline, Lease, RuntimeLimit};
use thiserror::Error;

use crate::{environment::Environment, failure::Failure};

/// One GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// Driver UUID, or one that starts with `SIM-`.
    pub uuid: String,
    /// Product name as the driver gives it.
    pub product: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether it exists only in the simulator.
    pub simulated: bool,
    /// Version of the driver; `simulated` for a simulated GPU.
    pub driver_version: String,
}

/// What a workload gets to reach its slice, and how far that binds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attachment {
    /// Device files.
    pub devices: Vec<PathBuf>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// One sentence per boundary that holds.
    pub enforced: Vec<String>,
    /// One sentence per boundary that does not, with the reason.
    pub not_enforced: Vec<String>,
}

/// Why a GPU did not do what was asked.
#[derive(Debug, Error)]
pub enum GpuError {
    /// There is no such GPU.
    #[error("there is no GPU {0}")]
    Unknown(String),
    /// Another workload uses one of the blocks.
    #[error("blocks {blocks} of {gpu} are in use by {holder:?}")]
    Busy {
        /// The GPU.
        gpu: String,
        /// The blocks that both want.
        blocks: Blocks,
        /// Who has them.
        holder: Holder,
    },
    /// The memory limits of all slices would exceed the memory.
    #[error("{wanted} bytes of GPU memory are wanted, {left} are left on {gpu}")]
    Memory {
        /// The GPU.
        gpu: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
    /// The driver's library is not usable.
    #[error("the NVIDIA driver library cannot be used")]
    Driver(#[source] nvml_wrapper::error::NvmlError),
    /// The driver found nothing.
    #[error("the NVIDIA driver finds no GPU")]
    None,
    /// The simulator's state cannot be kept.
    #[error("the state of the simulated GPUs cannot be kept")]
    State(#[source] io::Error),
}

/// The GPUs of a node. Every implementation passes `tests/gpu_contract.rs`.
#[async_trait]
pub trait Gpus: fmt::Debug + Send + Sync {
    /// What there is. The list is not empty and does not change.
    fn facts(&self) -> &[GpuFacts];

    /// Makes slices usable for one life of a workload. Doing it twice is doing it once.
    ///
    /// # Errors
    /// See [`GpuError`]; nothing changed.
    async fn attach(&self, holder: Holder, slices: &[Slice]) -> Result<Attachment, GpuError>;

    /// Takes its slices back; a life that has none is no error.
    ///
    /// # Errors
    /// [`GpuError::State`] when that cannot be kept.
    async fn detach(&self, holder: Holder) -> Result<(), GpuError>;

    /// Who has what at this moment.
    async fn attached(&self) -> Vec<(Holder, Slice)>;
}

/// Everything that a runner needs to start one life of a workload.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// Which life.
    pub holder: Holder,
    /// Host name inside.
    pub hostname: String,
    /// Its software.
    pub environment: Environment,
    /// Folder of its volume on this machine.
    pub volume: PathBuf,
    /// User that owns the volume.
    pub uid: u32,
    /// The life's folder, which only the node reaches: log, exit record, runtime folder.
    pub folder: PathBuf,
    /// The notebook's own token; empty for a command.
    pub token: String,
    /// Program and arguments of a run; a server runs a notebook.
    pub command: Option<Vec<String>>,
    /// Of a run: how long it may run unless this is renewed.
    pub lease: Option<Lease>,
    /// Of a run: how long it may run at most.
    pub max_runtime: Option<RuntimeLimit>,
    /// Memory limit in bytes; 0 is none.
    pub memory_bytes: u64,
    /// Processor limit in thousandths of a core; 0 is none.
    pub cpu_milli: u32,
    /// Trace context of the launch.
    pub traceparent: Option<String>,
    /// Its slice.
    pub gpu: Attachment,
}

/// What must be kept to find a process again.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Handle(pub serde_json::Value);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `None`: nobody knows.
    pub exit: Option<Exit>,
    /// `exit code 1`, `signal 9 (SIGKILL)`, or that nobody knows.
    pub how: String,
    /// The deadline that it was ended for, if for one.
    pub deadline: Option<Deadline>,
    /// Whether the memory limit ended it.
    pub out_of_memory: bool,
}

/// What holds of every workload that a runner starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Boundaries {
    /// Whether a workload sees only its own files, processes and devices.
    pub isolated: bool,
    /// One sentence per boundary that is enforced.
    pub enforced: Vec<String>,
    /// One sentence per boundary that is not, with the reason.
    pub not_enforced: Vec<String>,
}

/// Runs workloads.
#[async_trait]
pub trait Runner: fmt::Debug + Send + Sync {
    /// What this runner can enforce on this machine.
    fn boundaries(&self) -> Boundaries;

    /// Whether each volume needs a user of its own; otherwise all belong to the node's user.
    fn needs_own_users(&self) -> bool;

    /// Starts a workload.
    ///
    /// # Errors
    /// A failure of the workload; nothing of the start is left.
    async fn start(&self, plan: &RunPlan) -> Result<Arc<dyn Process>, Failure>;

    /// Finds a process that an earlier run of the node started; `None` when it is over, after
    /// which nothing of it is left.
    ///
    /// # Errors
    /// When something of it survives.
    async fn adopt(&self, handle: &Handle) -> Result<Result<Arc<dyn Process>, Ended>, Failure>;

    /// Ends whatever an interrupted start left of this life, so that it may be started.
    ///
    /// # Errors
    /// When something of it survives.
    async fn end_lost(&self, holder: Holder) -> Result<(), Failure>;
}

/// A process that was seen running.
#[async_trait]
pub trait Process: fmt::Debug + Send + Sync {
    /// What to keep for [`Runner::adopt`].
    fn handle(&self) -> Handle;

    /// Boundaries that were asked for and could not be set, one sentence each.
    fn unenforced(&self) -> Vec<String>;

    /// Lets it run on for as long as this lease says; one whose lease was let pass ends all the
    /// same. Never blocks.
    ///
    /// # Errors
    /// When it has no lease, or nobody listens.
    fn renew(&self, lease: &Lease) -> io::Result<()>;

    /// Waits until it is over and nothing of it is left.
    ///
    /// # Errors
    /// When it is over and something of it survives. The next call tries again to end that.
    async fn ended(&self) -> Result<Ended, Failure>;

    /// Asks it to end, and ends it after the grace; returns when it is seen gone.
    ///
    /// # Errors
    /// When processes survive.
    async fn terminate(&self, grace: Duration) -> Result<(), Failure>;
}

/// Text of a life for folders, cgroups and the process table.
#[must_use]
pub fn life_name(holder: Holder) -> String {
    format!("{}-{}", holder.workload, holder.fence)
}
