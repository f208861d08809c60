//! Typed ids: a prefix and a ULID, for example `srv_01HXAYZ…`.
//!
//! The table at the end of this file is append-only: a prefix, once used, keeps its meaning.

use thiserror::Error;

pub use ulid::Ulid;

/// Why a text is no id of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no {what} id: expected {prefix:?} and 26 upper-case Crockford characters")]
pub struct IdError {
    what: &'static str,
    prefix: &'static str,
    text: String,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Ulid);

        impl $name {
            /// What stands before the ULID.
            pub const PREFIX: &'static str = $prefix;

            /// The id that carries this ULID.
            #[must_use]
            pub const fn from_ulid(ulid: Ulid) -> Self {
                Self(ulid)
            }

            /// The ULID inside.
            #[must_use]
            pub const fn ulid(self) -> Ulid {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}{}", $prefix, self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .and_then(strict_ulid)
                    .map(Self)
                    .ok_or_else(|| IdError { what: stringify!($name), prefix: $prefix, text: text.chars().take(64).collect() })
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
    )*

        /// Every prefix of the table, in its order.
        pub const PREFIXES: &[&str] = &[$($prefix),*];
    };
}

/// Accepts only the canonical form, since two texts for one id would be two keys.
fn strict_ulid(text: &str) -> Option<Ulid> {
    let ulid: Ulid = text.parse().ok()?;
    (ulid.to_string() == text).then_some(ulid)
}

ids! {
    /// An interactive workload.
    ServerId "srv_";
    /// A batch workload.
    RunId "run_";
    /// A named problem: code bundle and official evaluation.
    HillId "hil_";
    /// Work on a hill inside a project.
    ClimbId "clm_";
    /// A server's storage.
    VolumeId "vol_";
    /// A machine or cluster that runs workloads.
    NodeId "node_";
    /// A GPU as the scheduler knows it.
    GpuId "gpu_";
    /// The right to a slice.
    GrantId "grt_";
    /// One live migration.
    MigrationId "mig_";
    /// One machine rented from a cloud.
    RentalId "rnt_";
    /// A group of work that pays together.
    ProjectId "prj_";
    /// A group of users with a share.
    TeamId "team_";
    /// A person's account.
    UserId "usr_";
    /// An API token.
    TokenId "tok_";
    /// One usage interval.
    UsageId "use_";
    /// One ledger entry.
    LedgerId "led_";
}

/// The domain below which every server has a web origin of its own: `nb.<domain>`, so that
/// one wildcard certificate covers them; on one machine `localhost` itself, since browsers
/// resolve only its direct names by themselves on every system.
#[must_use]
pub fn origins_domain(domain: &str) -> String {
    if domain.eq_ignore_ascii_case("localhost") {
        domain.to_owned()
    } else {
        format!("nb.{domain}")
    }
}

/// Whatever runs on a node and holds a slice: a server or a run.
///
/// **Invariant**: 30 ASCII letters, digits and underscores, hence safe as a file name.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
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

impl From<ServerId> for WorkloadId {
    fn from(id: ServerId) -> Self {
        Self::Server(id)
    }
}

impl From<RunId> for WorkloadId {
    fn from(id: RunId) -> Self {
        Self::Run(id)
    }
}

impl ServerId {
    /// The host label of the server's own web origin: `srv-` and the ULID in lower case,
    /// since host names do not keep case.
    #[must_use]
    pub fn host_label(self) -> String {
        format!("srv-{}", self.0.to_string().to_ascii_lowercase())
    }

    /// The id behind a host label, whatever its case.
    #[must_use]
    pub fn from_host_label(label: &str) -> Option<Self> {
        let label = label.to_ascii_uppercase();
        label.strip_prefix("SRV-").and_then(strict_ulid).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_are_distinct() {
        let distinct: BTreeSet<_> = PREFIXES.iter().collect();
        assert_eq!(distinct.len(), PREFIXES.len());
    }

    #[test]
    fn other_prefixes_cases_and_lengths_are_refused() {
        let id = ServerId::from_ulid(Ulid(u128::MAX / 5)).to_string();
        for wrong in [
            id.replace("srv_", "run_"),
            id.to_lowercase(),
            format!("{id}0"),
            id[..id.len() - 1].to_owned(),
            String::new(),
            // The largest ULID begins with 7: this would overflow 128 bits.
            "srv_8ZZZZZZZZZZZZZZZZZZZZZZZZZ".to_owned(),
            "srv_OOOOOOOOOOOOOOOOOOOOOOOOOO".to_owned(),
        ] {
            assert!(wrong.parse::<ServerId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins_live_below_nb_but_for_one_machine() {
        assert_eq!(origins_domain("localhost"), "localhost");
        assert_eq!(origins_domain("example.org"), "nb.example.org");
    }

    proptest! {
        #[test]
        fn text_round_trips(n: u128) {
            let id = ServerId::from_ulid(Ulid(n));
            prop_assert_eq!(id.to_string().parse::<ServerId>().unwrap(), id);
            prop_assert_eq!(ServerId::from_host_label(&id.host_label()), Some(id));
        }

        #[test]
        fn any_text_is_refused_or_canonical(text in ".{0,40}") {
            if let Ok(id) = text.parse::<NodeId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
