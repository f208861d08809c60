//! What can go wrong, with a stable reason and what to do about it.

use std::sync::Arc;

use cnlab_db::DbError;
use cnlab_model::{ByteSize, ErrorKind, Fault, id::NodeId, name::NameError};
use cnlab_service::{StartError, status::PublicError};
use scheduler_core::{run, server::Refused};
use thiserror::Error;

/// Errors of the scheduler.
#[derive(Debug, Error)]
pub(crate) enum SchedulerError {
    #[error("there is no server {wanted:?}")]
    ServerUnknown { wanted: String, near: Vec<String> },
    #[error("{name:?} is the name of several of your servers: {}", of.join(", "))]
    ServerAmbiguous { name: String, of: Vec<String> },
    #[error("the project {project} has a server {name} already")]
    NameTaken { name: String, project: String },
    #[error("{0}")]
    NameInvalid(NameError),
    #[error("there is no project {wanted:?} that you may use")]
    ProjectUnknown { wanted: String, yours: Vec<String> },
    #[error("your account has no project")]
    NoProject,
    #[error("there is no image {wanted:?} in the catalogue")]
    ImageUnknown { wanted: String, near: Vec<String> },
    #[error("there is no profile {wanted:?}")]
    ProfileUnknown { wanted: String, near: Vec<String> },
    #[error("the profile {profile} can never start here: {why}")]
    ProfileUnavailable {
        profile: String,
        why: String,
        nearest: Option<String>,
    },
    #[error("{problem}")]
    GpusInvalid { problem: String },
    #[error("no node has {wanted} GPUs of type {family}: the most on one is {most}")]
    GpusTooMany {
        family: String,
        wanted: u8,
        most: u8,
    },
    /// More than its team may hold, whatever else it holds.
    #[error("it needs {needed}% of {of}, and your team may hold {limit}% of them at once")]
    QuotaExceeded {
        /// A type of GPU, or all of them.
        of: String,
        needed: u64,
        limit: u64,
        contact: String,
    },
    #[error("your team has {most} servers and runs waiting for GPUs, which is as many as it may")]
    TooManyWait { most: usize, contact: String },
    #[error("a server needs storage of at least 1 byte")]
    StorageZero,
    #[error("a volume of {} is larger than the largest disk of {}", ByteSize(*wanted), ByteSize(*largest))]
    StorageTooLarge { wanted: u64, largest: u64 },
    #[error("the volume of this server lies on {node}, which cannot run it")]
    VolumeElsewhere { node: NodeId },
    #[error("{0}")]
    NotNow(Refused),
    #[error("there is no run {wanted:?}")]
    RunUnknown { wanted: String, near: Vec<String> },
    #[error("{name:?} is the name of several of your runs: {}", of.join(", "))]
    RunAmbiguous { name: String, of: Vec<String> },
    #[error("the project {project} has a run {name} already")]
    RunNameTaken { name: String, project: String },
    #[error("{0}")]
    RunNameInvalid(NameError),
    #[error("the command of a run {problem}")]
    CommandInvalid { problem: String },
    #[error("the deadline has passed already")]
    DeadlinePast,
    #[error("the deadline cannot be met: {why}")]
    DeadlineUnreachable { why: String },
    #[error("the longest time of a run must be longer than nothing")]
    MaxRuntimeZero,
    #[error("the run has not run on any node yet")]
    RunNeverRan,
    #[error("{0}")]
    RunNotNow(run::Refused),
    #[error("the server is {state}")]
    NotReady { state: String, retry: bool },
    #[error("the server has not run on any node yet")]
    NeverRan,
    #[error("the page token is not one of this list")]
    PageToken,
    #[error("a page has at most 1000 entries")]
    PageSize,
    #[error("{what} is reported by nobody that this cell knows")]
    NodeUnknown { what: String },
    #[error("there is no node {wanted:?}")]
    NoSuchNode { wanted: String, near: Vec<String> },
    /// Somebody cordoned it between the decision and the transaction.
    #[error("{node} was cordoned meanwhile")]
    NodeCordoned { node: NodeId },
    #[error("{name:?} is the name of several nodes: {}", of.join(", "))]
    NodeAmbiguous { name: String, of: Vec<String> },
    /// Somebody else took the blocks between the snapshot and the transaction.
    #[error("the slice was taken meanwhile")]
    SliceTaken,
    #[error("somebody else changed it meanwhile")]
    ChangedMeanwhile,
    /// Another scheduler of this deployment places for this cell.
    #[error("another scheduler leads this cell")]
    NotLeading,
    /// One error for several who asked together.
    #[error("{0}")]
    Shared(Arc<Self>),
    /// A real GPU is in one machine only, and what runs there may still use it.
    #[error("the GPU {uuid} belongs to {node}, which still holds grants on it")]
    GpuElsewhere { uuid: String, node: NodeId },
    /// An open stream ends because this process does.
    #[error("the scheduler is stopping")]
    Closing,
    #[error("{0}")]
    Upstream(CallError),
    #[error("the row {id} of {table} makes no sense: {problem}")]
    Row {
        table: &'static str,
        id: String,
        problem: String,
    },
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Fault for SchedulerError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::ServerUnknown { .. }
            | Self::ProjectUnknown { .. }
            | Self::ImageUnknown { .. }
            | Self::ProfileUnknown { .. }
            | Self::RunUnknown { .. }
            | Self::NodeUnknown { .. }
            | Self::NoSuchNode { .. } => ErrorKind::NotFound,
            Self::NameTaken { .. } | Self::RunNameTaken { .. } => ErrorKind::AlreadyExists,
            Self::ServerAmbiguous { .. }
            | Self::NameInvalid(_)
            | Self::NodeAmbiguous { .. }
            | Self::RunAmbiguous { .. }
            | Self::RunNameInvalid(_)
            | Self::CommandInvalid { .. }
            | Self::DeadlinePast
            | Self::MaxRuntimeZero
            | Self::StorageZero
            | Self::StorageTooLarge { .. }
            | Self::PageToken
            | Self::GpusInvalid { .. }
            | Self::PageSize => ErrorKind::Invalid,
            Self::NoProject
            | Self::ProfileUnavailable { .. }
            | Self::GpusTooMany { .. }
            | Self::VolumeElsewhere { .. }
            | Self::NotNow(_)
            | Self::NotReady { .. }
            | Self::NeverRan
            | Self::DeadlineUnreachable { .. }
            | Self::RunNeverRan
            | Self::RunNotNow(_)
            | Self::GpuElsewhere { .. } => ErrorKind::Precondition,
            Self::Closing | Self::NotLeading => ErrorKind::Unavailable,
            Self::Shared(error) => error.kind(),
            Self::QuotaExceeded { .. } | Self::TooManyWait { .. } => ErrorKind::Exhausted,
            Self::SliceTaken | Self::NodeCordoned { .. } | Self::ChangedMeanwhile => {
                ErrorKind::Conflict
            }
            Self::Upstream(call) => call.error.kind,
            Self::Row { .. } => ErrorKind::Internal,
            Self::Database(error) => error.kind(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::ServerUnknown { .. } => "SERVER_NOT_FOUND",
            Self::ServerAmbiguous { .. } => "SERVER_AMBIGUOUS",
            Self::NameTaken { .. } => "SERVER_NAME_TAKEN",
            Self::NameInvalid(_) => "SERVER_NAME_INVALID",
            Self::ProjectUnknown { .. } => "PROJECT_NOT_FOUND",
            Self::NoProject => "PROJECT_MISSING",
            Self::ImageUnknown { .. } => "IMAGE_NOT_FOUND",
            Self::ProfileUnknown { .. } => "PROFILE_NOT_FOUND",
            Self::ProfileUnavailable { .. } => "PROFILE_UNAVAILABLE",
            Self::GpusInvalid { .. } => "GPUS_INVALID",
            Self::GpusTooMany { .. } => "GPUS_TOO_MANY",
            Self::QuotaExceeded { .. } => "QUOTA_EXCEEDED",
            Self::TooManyWait { .. } => "QUOTA_WAITING_EXCEEDED",
            Self::StorageZero => "STORAGE_INVALID",
            Self::StorageTooLarge { .. } => "STORAGE_TOO_LARGE",
            Self::VolumeElsewhere { .. } => "VOLUME_UNREACHABLE",
            Self::NotNow(_) => "SERVER_STATE",
            Self::NotReady { .. } => "SERVER_NOT_READY",
            Self::NeverRan => "SERVER_NEVER_RAN",
            Self::RunUnknown { .. } => "RUN_NOT_FOUND",
            Self::RunAmbiguous { .. } => "RUN_AMBIGUOUS",
            Self::RunNameTaken { .. } => "RUN_NAME_TAKEN",
            Self::RunNameInvalid(_) => "RUN_NAME_INVALID",
            Self::CommandInvalid { .. } => "COMMAND_INVALID",
            Self::DeadlinePast => "DEADLINE_PAST",
            Self::DeadlineUnreachable { .. } => "DEADLINE_UNREACHABLE",
            Self::MaxRuntimeZero => "MAX_RUNTIME_INVALID",
            Self::RunNeverRan => "RUN_NEVER_RAN",
            Self::RunNotNow(_) => "RUN_STATE",
            Self::PageToken => "PAGE_TOKEN_INVALID",
            Self::PageSize => "PAGE_SIZE_INVALID",
            Self::NodeUnknown { .. } | Self::NoSuchNode { .. } => "NODE_NOT_FOUND",
            Self::NodeAmbiguous { .. } => "NODE_AMBIGUOUS",
            Self::SliceTaken => "SLICE_TAKEN",
            Self::NodeCordoned { .. } => "NODE_CORDONED",
            Self::ChangedMeanwhile => "CHANGED_MEANWHILE",
            Self::NotLeading => "SCHEDULER_STANDBY",
            Self::Shared(error) => error.reason(),
            Self::GpuElsewhere { .. } => "GPU_HELD_ELSEWHERE",
            Self::Closing => "SCHEDULER_STOPPING",
            Self::Upstream(call) => call.reason(),
            Self::Row { .. } => "ROW_UNREADABLE",
            Self::Database(error) => error.reason(),
        }
    }

    fn try_this(&self) -> Option<String> {
        let listed = |near: &[String], else_try: &str| {
            if near.is_empty() {
                else_try.to_owned()
            } else {
                format!("did you mean {}", near.join(" or "))
            }
        };
        let text = match self {
            Self::ServerUnknown { near, .. } => listed(near, "see `cnlab server list`"),
            Self::ServerAmbiguous { of, .. } => match of.first() {
                Some(first) => format!("write one of them in full, for example {first}"),
                None => return None,
            },
            Self::NameTaken { name, .. } => {
                format!("choose another name, or `cnlab server open {name}`")
            }
            Self::NameInvalid(_) => "choose a name such as first-experiment".to_owned(),
            Self::ProjectUnknown { yours, .. } if yours.is_empty() => {
                "ask your admin for a project".to_owned()
            }
            Self::ProjectUnknown { yours, .. } => format!("use {}", yours.join(" or ")),
            Self::NoProject => "ask your admin for a project".to_owned(),
            Self::ImageUnknown { near, .. } => listed(near, "see the list of images"),
            Self::ProfileUnknown { near, .. } => listed(near, "see `cnlab profiles list`"),
            Self::ProfileUnavailable {
                nearest: Some(nearest),
                ..
            } => format!("use the profile {nearest}"),
            Self::ProfileUnavailable { nearest: None, .. } => {
                "see `cnlab profiles list`, or let a node with such a GPU join".to_owned()
            }
            Self::GpusInvalid { .. } => {
                "take a profile that is an entire GPU, such as h100-full, with --gpus".to_owned()
            }
            Self::GpusTooMany { most, .. } => format!("ask for at most --gpus {most}"),
            Self::QuotaExceeded { contact, .. } => {
                format!("choose a smaller profile, or ask {contact} for more")
            }
            Self::TooManyWait { contact, .. } => format!(
                "wait until some have started, cancel what is not needed, or ask {contact} for more"
            ),
            Self::StorageZero => "ask for a size such as --storage 50gb".to_owned(),
            Self::StorageTooLarge { largest, .. } => {
                format!("ask for at most {}", ByteSize(*largest))
            }
            Self::VolumeElsewhere { .. } => {
                "bring that node back, or delete the server and create a new one".to_owned()
            }
            Self::NotNow(_) => {
                "see `cnlab server show`, and try again when that is over".to_owned()
            }
            Self::NotReady { retry: true, .. } => "wait until it is ready".to_owned(),
            Self::NotReady { retry: false, .. } => "start it with `cnlab server start`".to_owned(),
            Self::NeverRan => "wait until it has been started".to_owned(),
            Self::RunUnknown { near, .. } => listed(near, "see `cnlab run list`"),
            Self::RunAmbiguous { of, .. } => match of.first() {
                Some(first) => format!("write one of them in full, for example {first}"),
                None => return None,
            },
            Self::RunNameTaken { name, .. } => {
                format!("choose another name, or `cnlab run delete {name}`")
            }
            Self::RunNameInvalid(_) => "choose a name such as first-run".to_owned(),
            Self::CommandInvalid { .. } => {
                "give a program and its arguments, such as `-- python train.py`".to_owned()
            }
            Self::DeadlinePast => "choose a later one".to_owned(),
            Self::DeadlineUnreachable { .. } => {
                "choose a later one, or let it run late with --on-late accept".to_owned()
            }
            Self::MaxRuntimeZero => "ask for a time such as --max-runtime 2h".to_owned(),
            Self::RunNeverRan => "wait until it has begun".to_owned(),
            Self::RunNotNow(_) => "see `cnlab run show`".to_owned(),
            Self::PageToken => "begin with the first page".to_owned(),
            Self::PageSize => "ask for at most 1000".to_owned(),
            Self::SliceTaken | Self::NodeCordoned { .. } | Self::ChangedMeanwhile => {
                "try again".to_owned()
            }
            Self::NodeUnknown { .. } => "register the node".to_owned(),
            Self::NoSuchNode { near, .. } => listed(near, "see `cnlab node list`"),
            Self::NodeAmbiguous { of, .. } => match of.first() {
                Some(first) => format!("write the id of one of them, for example {first}"),
                None => return None,
            },
            Self::GpuElsewhere { node, .. } => {
                format!("stop the servers that run on {node} first")
            }
            Self::Closing | Self::NotLeading => "ask again in a moment".to_owned(),
            Self::Shared(error) => return error.try_this(),
            Self::Upstream(call) => return call.error.try_this.clone(),
            Self::Database(error) => return error.try_this(),
            Self::Row { .. } => return None,
        };
        Some(text)
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::NameInvalid(_) => Some("name"),
            Self::StorageZero | Self::StorageTooLarge { .. } => Some("storage_bytes"),
            Self::GpusInvalid { .. } | Self::GpusTooMany { .. } => Some("gpus"),
            Self::ImageUnknown { .. } => Some("image"),
            Self::ProfileUnknown { .. } | Self::ProfileUnavailable { .. } => Some("profile"),
            Self::ProjectUnknown { .. } => Some("project"),
            Self::ServerUnknown { .. } | Self::ServerAmbiguous { .. } => Some("server"),
            Self::RunUnknown { .. } | Self::RunAmbiguous { .. } => Some("run"),
            Self::NoSuchNode { .. } | Self::NodeAmbiguous { .. } => Some("node"),
            Self::RunNameInvalid(_) => Some("name"),
            Self::CommandInvalid { .. } => Some("command"),
            Self::DeadlinePast | Self::DeadlineUnreachable { .. } => Some("deadline"),
            Self::MaxRuntimeZero => Some("max_runtime"),
            Self::PageToken => Some("page_token"),
            Self::PageSize => Some("page_size"),
            Self::Shared(error) => error.field(),
            Self::NameTaken { .. }
            | Self::QuotaExceeded { .. }
            | Self::TooManyWait { .. }
            | Self::NoProject
            | Self::VolumeElsewhere { .. }
            | Self::NotNow(_)
            | Self::NotReady { .. }
            | Self::NeverRan
            | Self::RunNameTaken { .. }
            | Self::RunNeverRan
            | Self::RunNotNow(_)
            | Self::NodeUnknown { .. }
            | Self::SliceTaken
            | Self::NodeCordoned { .. }
            | Self::ChangedMeanwhile
            | Self::GpuElsewhere { .. }
            | Self::Closing
            | Self::NotLeading
            | Self::Upstream(_)
            | Self::Row { .. }
            | Self::Database(_) => None,
        }
    }
}

/// What another service answered instead of what was asked for.
#[derive(Debug, Clone, Error)]
#[error("{service}: {}", error.message)]
pub(crate) struct CallError {
    /// Which service.
    pub(crate) service: &'static str,
    /// Its error.
    pub(crate) error: Box<PublicError>,
}

impl CallError {
    /// Whether the service promises that what was asked for had no effect and never will. An
    /// error of another kind may have come after the effect: an answer that cannot be read, a
    /// failure half-way, a refusal by somebody in between.
    pub(crate) fn is_without_effect(&self) -> bool {
        matches!(
            self.error.reason.as_str(),
            "FENCE_TOO_LOW"
                | "GPU_NOT_FOUND"
                | "GRANT_INVALID"
                | "GPU_MEMORY_EXHAUSTED"
                | "DISK_FULL"
                | "INVALID_FIELD"
        )
    }

    /// Whether asking again cannot help.
    pub(crate) fn is_final(&self) -> bool {
        match self.error.kind {
            ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Conflict => false,
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::Invalid
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
            | ErrorKind::Precondition
            | ErrorKind::Exhausted
            | ErrorKind::Internal => true,
        }
    }

    /// The service is the one who knows the reason; ours only says that it was asked.
    const fn reason(&self) -> &'static str {
        match self.error.kind {
            ErrorKind::Unavailable => "UPSTREAM_UNAVAILABLE",
            ErrorKind::Deadline => "UPSTREAM_SLOW",
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::Invalid
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
            | ErrorKind::Conflict
            | ErrorKind::Precondition
            | ErrorKind::Exhausted
            | ErrorKind::Internal => "UPSTREAM_REFUSED",
        }
    }
}

/// A catalogue file that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum CatalogError {
    #[error("cannot read {path}")]
    Unreadable {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is no {what} file")]
    Syntax {
        path: String,
        what: &'static str,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("{path}: {problem}")]
    Content { path: String, problem: String },
}

impl From<CatalogError> for StartError {
    fn from(error: CatalogError) -> Self {
        let mut start = Self::new(error.to_string());
        if let Some(source) = std::error::Error::source(&error) {
            start = start.caused_by(source.to_string());
        }
        start.try_this("compare it with the files under scheduler-svc/data")
    }
}
