//! A server or run, as far as it makes no difference which of them it is.

use cnlab_model::{
    ProjectName, Timestamp,
    id::{GrantId, TeamId, VolumeId, WorkloadId},
};
use scheduler_core::{plan::Priority, profile::Profile, run, server};

use crate::store::record::{Run, Server};

/// A server or run that wants a slice or has one.
#[derive(Debug, Clone)]
pub(crate) enum Who {
    Server(Box<Server>),
    Run(Box<Run>),
}

impl Who {
    pub(crate) fn id(&self) -> WorkloadId {
        match self {
            Self::Server(server) => server.id.into(),
            Self::Run(run) => run.id.into(),
        }
    }

    pub(crate) fn profile(&self) -> &Profile {
        match self {
            Self::Server(server) => &server.profile,
            Self::Run(run) => &run.profile,
        }
    }

    /// How many slices of its profile.
    pub(crate) fn gpus(&self) -> u8 {
        match self {
            Self::Server(server) => server.gpus,
            Self::Run(run) => run.gpus,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Server(server) => server.name.as_str(),
            Self::Run(run) => run.name.as_str(),
        }
    }

    pub(crate) fn project(&self) -> &ProjectName {
        match self {
            Self::Server(server) => &server.project,
            Self::Run(run) => &run.project,
        }
    }

    /// Its class; every server has the same.
    pub(crate) fn priority(&self) -> Priority {
        match self {
            Self::Server(_) => Priority::default(),
            Self::Run(run) => run.priority,
        }
    }

    /// By when it is to have ended.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Server(_) => None,
            Self::Run(run) => run.deadline,
        }
    }

    pub(crate) fn state_text(&self) -> String {
        match self {
            Self::Server(server) => server.state.to_string(),
            Self::Run(run) => run.state.to_string(),
        }
    }

    pub(crate) fn image(&self) -> &str {
        match self {
            Self::Server(server) => &server.image,
            Self::Run(run) => &run.image,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Server(server) => server.version,
            Self::Run(run) => run.version,
        }
    }

    pub(crate) fn grant(&self) -> Option<GrantId> {
        match self {
            Self::Server(server) => server.grant,
            Self::Run(run) => run.grant,
        }
    }

    pub(crate) fn team(&self) -> TeamId {
        match self {
            Self::Server(server) => server.team,
            Self::Run(run) => run.team,
        }
    }

    pub(crate) fn volume(&self) -> VolumeId {
        match self {
            Self::Server(server) => server.volume,
            Self::Run(run) => run.volume,
        }
    }

    pub(crate) fn is_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// The trace of the request that it waits for.
    pub(crate) fn traceparent(&self) -> Option<&str> {
        match self {
            Self::Server(server) => server.traceparent.as_deref(),
            Self::Run(run) => run.traceparent.as_deref(),
        }
    }

    /// `<project>/<name>`, which only one of its kind has.
    pub(crate) fn live_name(&self) -> String {
        match self {
            Self::Server(server) => format!("{}/{}", server.project, server.name),
            Self::Run(run) => format!("{}/{}", run.project, run.name),
        }
    }

    /// The same with another profile.
    pub(crate) fn with_profile(mut self, profile: Profile) -> Self {
        match &mut self {
            Self::Server(server) => server.profile = profile,
            Self::Run(run) => run.profile = profile,
        }
        self
    }

    /// Whether it waits for a slice.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::Server(server) => server.state == server::State::Queued,
            Self::Run(run) => run.state == run::State::Queued,
        }
    }

    pub(crate) fn storage_bytes(&self) -> u64 {
        match self {
            Self::Server(server) => server.storage_bytes,
            Self::Run(run) => run.storage_bytes,
        }
    }

    pub(crate) fn install_heavy(&self) -> bool {
        match self {
            Self::Server(server) => server.install_heavy,
            Self::Run(run) => run.install_heavy,
        }
    }

    /// Its age in the queue counts from here.
    pub(crate) fn since(&self) -> Timestamp {
        match self {
            Self::Server(server) => server.queued_at.unwrap_or(server.created_at),
            Self::Run(run) => run.created_at,
        }
    }

    /// What was said to its watchers last: what it waits for, and until when.
    pub(crate) fn told(&self) -> (&str, Option<Timestamp>) {
        match self {
            Self::Server(server) => (&server.phase_detail, server.expected_at),
            Self::Run(run) => (&run.phase_detail, run.expected_at),
        }
    }
}
