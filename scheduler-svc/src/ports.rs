//! What the scheduler needs from other services.

use std::{pin::Pin, time::Duration};

use async_trait::async_trait;
use cnlab_model::{
    Timestamp,
    id::{GrantId, ServerId, UserId, VolumeId, WorkloadId},
};
use scheduler_core::server::Phase;
use tokio_stream::Stream;

use crate::{
    error::CallError,
    store::record::{Exit, Failure, RuntimeFacts, Slice},
};

/// How a node makes the software of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) reference: String,
    pub(crate) packages: Vec<String>,
    pub(crate) heavy_packages: Vec<String>,
}

/// What a node is asked to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) workload: WorkloadId,
    pub(crate) display_name: String,
    pub(crate) grant: GrantId,
    pub(crate) fence: u64,
    pub(crate) gpu_type: String,
    pub(crate) slices: Vec<Slice>,
    pub(crate) image: Recipe,
    pub(crate) install_heavy: bool,
    pub(crate) volume: VolumeId,
    pub(crate) storage_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_milli: u32,
    /// Of a run; a server runs a notebook.
    pub(crate) command: Option<Command>,
}

/// What a run runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) argv: Vec<String>,
    /// After which the node ends it.
    pub(crate) max_runtime: Option<Duration>,
}

/// How a workload is, as its node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkloadState {
    /// On its way, this far.
    Preparing(Phase),
    /// The page of a server answers.
    Ready,
    /// The command of a run runs.
    Running,
    Stopping,
    /// The command of a run ended with exit code 0.
    Succeeded,
    /// Gone, as was asked.
    Stopped,
    /// Gone, as was not asked.
    Failed(Failure),
}

impl WorkloadState {
    /// Whether its processes are gone.
    pub(crate) const fn is_over(&self) -> bool {
        match self {
            Self::Succeeded | Self::Stopped | Self::Failed(_) => true,
            Self::Preparing(_) | Self::Ready | Self::Running | Self::Stopping => false,
        }
    }
}

/// Why a workload ended, where that is not its own doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// Its longest time was over.
    MaxRuntime,
    /// The node could not renew its grant.
    GrantExpired,
    /// Nobody knows: its supervisor was killed, or the machine was restarted.
    Lost,
}

/// A workload as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) id: WorkloadId,
    pub(crate) fence: u64,
    pub(crate) state: WorkloadState,
    pub(crate) detail: String,
    pub(crate) facts: RuntimeFacts,
    pub(crate) sequence: u64,
    pub(crate) environment_was_ready: bool,
    /// How the command of a run ended.
    pub(crate) exit: Option<Exit>,
    pub(crate) cause: Option<EndCause>,
}

/// Pieces of what a workload wrote.
pub(crate) type Logs = Pin<Box<dyn Stream<Item = Result<Vec<u8>, CallError>> + Send>>;

/// The nodes. Every call may be repeated.
#[async_trait]
pub(crate) trait Nodes: std::fmt::Debug + Send + Sync {
    /// Starts a workload, or finds the one that was started under this fence.
    async fn launch(&self, endpoint: &str, launch: Launch) -> Result<Workload, CallError>;
    /// Ends a workload and answers when it is gone. `None`: the node has no such workload.
    async fn stop(
        &self,
        endpoint: &str,
        workload: WorkloadId,
        fence: u64,
    ) -> Result<Option<Workload>, CallError>;
    /// Removes a volume; one that is gone is no error.
    async fn remove_volume(&self, endpoint: &str, volume: VolumeId) -> Result<(), CallError>;
    /// What a workload wrote.
    async fn logs(
        &self,
        endpoint: &str,
        workload: WorkloadId,
        follow: bool,
        tail_lines: u32,
    ) -> Result<Logs, CallError>;
}

/// The beginning of a usage interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) grant: GrantId,
    pub(crate) owner: UserId,
    pub(crate) project: String,
    pub(crate) workload: WorkloadId,
    pub(crate) gpu_type: String,
    pub(crate) slices: Vec<Slice>,
    pub(crate) started_at: Timestamp,
}

/// A code that signs one browser in, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenCode {
    pub(crate) code: String,
    pub(crate) expires_at: Timestamp,
}

/// The meter and the maker of sign-in codes. Opening and closing may be repeated.
#[async_trait]
pub(crate) trait Billing: std::fmt::Debug + Send + Sync {
    async fn open_usage(&self, usage: Usage) -> Result<(), CallError>;
    async fn close_usage(&self, grant: GrantId, ended_at: Timestamp) -> Result<(), CallError>;
    async fn issue_open_code(&self, user: UserId, server: ServerId) -> Result<OpenCode, CallError>;
}
