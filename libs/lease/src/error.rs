//! What can go wrong between a caller and a store.

use cnlab_model::{ErrorKind, Fault};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The request may or may not have been carried out. Repeat it with the same holder and
    /// fence: every operation on leases gives the same end state when it is done twice.
    #[error("the outcome of {operation} is unknown")]
    Unknown {
        /// Which operation.
        operation: &'static str,
        /// What was seen.
        #[source]
        cause: Cause,
    },
    /// The store cannot be reached or does not take requests now; nothing was changed.
    #[error("the lease store is unavailable")]
    Unavailable {
        /// What was seen.
        #[source]
        cause: Cause,
    },
    /// The store answered with something that this code does not understand.
    #[error("the lease store failed at {operation}")]
    Fault {
        /// Which operation.
        operation: &'static str,
        /// What was seen.
        #[source]
        cause: Cause,
    },
    /// An argument is out of bounds; a defect of the caller.
    #[error("invalid {argument}: {why}")]
    Invalid {
        /// Which argument.
        argument: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl LeaseError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Unavailable { .. })
    }

    pub(crate) fn invalid(argument: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid {
            argument,
            why: why.into(),
        }
    }
}

impl Fault for LeaseError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::Deadline,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::Fault { .. } | Self::Invalid { .. } => ErrorKind::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "LEASE_OUTCOME_UNKNOWN",
            Self::Unavailable { .. } => "LEASE_STORE_UNAVAILABLE",
            Self::Fault { .. } => "LEASE_STORE_FAULT",
            Self::Invalid { .. } => "LEASE_ARGUMENT_INVALID",
        }
    }
}
