//! The id of whatever runs on a node: a server's or a run's.

use cnlab_model::id::{IdError, RunId, ServerId};
use serde::{Deserialize, Serialize};

/// A server's or run's id.
///
/// **Invariant**: 30 ASCII letters, digits and underscores, hence safe as a file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WorkloadId {
    /// An interactive workload.
    Server(ServerId),
    /// A batch workload.
    Run(RunId),
}

impl std::fmt::Display for WorkloadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(id) => id.fmt(f),
            Self::Run(id) => id.fmt(f),
        }
    }
}

impl std::fmt::Debug for WorkloadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for WorkloadId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.starts_with(RunId::PREFIX) {
            text.parse().map(Self::Run)
        } else {
            text.parse().map(Self::Server)
        }
    }
}

impl TryFrom<String> for WorkloadId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<WorkloadId> for String {
    fn from(id: WorkloadId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_round_trip_and_others_are_refused() {
        for text in [
            "srv_00000000000000000000000007",
            "run_00000000000000000000000007",
        ] {
            assert_eq!(text.parse::<WorkloadId>().unwrap().to_string(), text);
        }
        for wrong in [
            "vol_00000000000000000000000007",
            "../etc",
            "",
            "srv_../../x",
        ] {
            assert!(wrong.parse::<WorkloadId>().is_err(), "{wrong}");
        }
    }
}
