//! Why a workload failed, in the form that every surface prints.

use serde::{Deserialize, Serialize};

/// A failure of a workload: a fact about it, not an error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable upper-case reason; see `docs/errors.md`.
    pub reason: String,
    /// What happened: lowercase, no full stop.
    pub message: String,
    /// The cause in its own words, possibly empty.
    pub cause: String,
    /// What can be done about it, possibly empty.
    pub try_this: String,
}

impl Failure {
    /// A failure without cause or advice.
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
            cause: String::new(),
            try_this: String::new(),
        }
    }

    /// With its cause.
    #[must_use]
    pub(crate) fn caused_by(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    /// With what to do about it.
    #[must_use]
    pub(crate) fn try_this(mut self, text: impl Into<String>) -> Self {
        self.try_this = text.into();
        self
    }

    /// Something on disk could not be read or written.
    pub(crate) fn disk(what: &str, error: &std::io::Error) -> Self {
        if crate::disk::is_full(error) {
            return Self::new("DISK_FULL", format!("the disk is full: {what}"))
                .caused_by(error.to_string())
                .try_this("free space in the data folder, then start again");
        }
        Self::new("NODE_STORAGE_FAILED", what).caused_by(error.to_string())
    }
}
