//! What can be set, and what holds when nothing is.

use std::{path::PathBuf, time::Duration};

use cnlab_db::DatabaseConfig;
use cnlab_service::{CommonConfig, ConfigFault, Secret, ServiceConfig, Span};
use serde::{Deserialize, Serialize};

mod quota;

pub use quota::{CountLimit, GpuLimit, QuotaConfig, TeamConfig};

/// Where this service listens when nothing else is said.
pub(crate) const PORT: u16 = 7101;

/// Configuration of the scheduler.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What every service needs.
    pub common: CommonConfig,
    /// Where servers, grants and nodes are recorded.
    pub database: DatabaseConfig,
    /// Who is alive.
    pub lease: LeaseConfig,
    /// How notebooks are reached.
    pub notebook: NotebookConfig,
    /// The service that meters usage and makes sign-in codes.
    pub billing: UpstreamConfig,
    /// What servers can be made of.
    pub catalog: CatalogConfig,
    /// How long a grant lives without renewal, and how often nodes renew.
    pub grants: GrantConfig,
    /// What teams may hold and ask for.
    pub quota: QuotaConfig,
}

/// Where liveness is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseConfig {
    /// Which store.
    pub store: LeaseStoreKind,
    /// `redis://…` of the server, for `store = "redis"`.
    pub url: Secret,
    /// Name of this deployment's keys in that server.
    pub space: String,
}

/// Which store keeps leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseStoreKind {
    /// In the memory of this process.
    Embedded,
    /// In a Redis server.
    Redis,
}

/// How the printed addresses of notebooks are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotebookConfig {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host under which `nb.` and `srv-….` are found.
    pub domain: String,
    /// The gateway's port.
    pub port: u16,
}

/// How browsers reach the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// In the clear; browsers treat loopback as secure.
    Http,
    /// With TLS.
    Https,
}

/// Another service of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// `http://host:port`.
    pub endpoint: String,
}

/// Files in place of the built-in catalogues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogConfig {
    /// Profiles; see `data/profiles.toml`.
    pub profiles_file: Option<PathBuf>,
    /// Images; see `data/images.toml`.
    pub images_file: Option<PathBuf>,
}

/// The rhythm of grants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrantConfig {
    /// A node that was not heard of for so long is silent: it keeps what it has and
    /// gets nothing new.
    pub ttl: Span,
    /// How often nodes renew.
    pub renew_every: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: CommonConfig::on_port(PORT),
            database: DatabaseConfig {
                url: "sqlite://scheduler-svc.sqlite?mode=rwc".to_owned(),
            },
            lease: LeaseConfig::default(),
            notebook: NotebookConfig::default(),
            billing: UpstreamConfig {
                endpoint: "http://127.0.0.1:7105".to_owned(),
            },
            catalog: CatalogConfig::default(),
            grants: GrantConfig::default(),
            quota: QuotaConfig::default(),
        }
    }
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            store: LeaseStoreKind::Embedded,
            url: Secret::default(),
            space: "scheduler".to_owned(),
        }
    }
}

impl Default for NotebookConfig {
    fn default() -> Self {
        Self {
            scheme: Scheme::Http,
            domain: "localhost".to_owned(),
            port: 8080,
        }
    }
}

impl Default for GrantConfig {
    fn default() -> Self {
        Self {
            ttl: Span(Duration::from_secs(30)),
            renew_every: Span(Duration::from_secs(10)),
        }
    }
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = self.common.validate();
        let mut fault = |key: &str, problem: &str| faults.push(ConfigFault::new(key, problem));
        if let Err(problem) = self.database.validate() {
            fault("database.url", &problem);
        }
        if self.lease.store == LeaseStoreKind::Redis && self.lease.url.is_empty() {
            fault("lease.url", "is needed for store = \"redis\"");
        }
        if self.lease.space.is_empty() || self.lease.space.contains(['{', '}']) {
            fault("lease.space", "is a name without braces");
        }
        if !is_host(&self.notebook.domain) {
            fault("notebook.domain", "is no host name");
        }
        if self
            .billing
            .endpoint
            .parse::<http::Uri>()
            .map_or(true, |uri| uri.scheme().is_none())
        {
            fault(
                "billing.endpoint",
                "is no endpoint such as http://host:port",
            );
        }
        if self.grants.renew_every.0.is_zero() {
            fault("grants.renew_every", "must be longer than nothing");
        }
        if self.grants.ttl.0 < self.grants.renew_every.0.saturating_mul(2) {
            fault(
                "grants.ttl",
                "must be at least twice grants.renew_every, so that one lost renewal ends nothing",
            );
        }
        faults.extend(self.quota.validate());
        faults
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|label| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
}

impl NotebookConfig {
    /// The origin of a host, without a port where the scheme implies it.
    fn origin(&self, host: &str) -> String {
        let (scheme, usual) = match self.scheme {
            Scheme::Http => ("http", 80),
            Scheme::Https => ("https", 443),
        };
        if self.port == usual {
            format!("{scheme}://{host}")
        } else {
            format!("{scheme}://{host}:{}", self.port)
        }
    }

    /// The address to print; it redirects to the server's own origin.
    pub(crate) fn url(&self, server: cnlab_model::id::ServerId) -> String {
        format!("{}/{server}", self.origin(&format!("nb.{}", self.domain)))
    }

    /// The link that signs one browser in. The code stands behind `#`, which browsers never
    /// send to a server, so no log on the way can hold it.
    pub(crate) fn open_link(&self, server: cnlab_model::id::ServerId, code: &str) -> String {
        let host = format!(
            "{}.{}",
            server.host_label(),
            cnlab_model::id::origins_domain(&self.domain)
        );
        format!("{}/_cnlab/open#{code}", self.origin(&host))
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::{ServerId, Ulid};

    use super::*;

    #[test]
    fn addresses_leave_out_the_usual_port() {
        let server = ServerId::from_ulid(Ulid(7));
        let mut notebook = NotebookConfig::default();
        assert_eq!(
            notebook.url(server),
            "http://nb.localhost:8080/srv_00000000000000000000000007"
        );
        assert_eq!(
            notebook.open_link(server, "abc"),
            "http://srv-00000000000000000000000007.localhost:8080/_cnlab/open#abc"
        );
        notebook.scheme = Scheme::Https;
        notebook.port = 443;
        notebook.domain = "example.org".to_owned();
        assert_eq!(
            notebook.url(server),
            "https://nb.example.org/srv_00000000000000000000000007"
        );
        assert_eq!(
            notebook.open_link(server, "abc"),
            "https://srv-00000000000000000000000007.nb.example.org/_cnlab/open#abc"
        );
    }

    #[test]
    fn every_fault_is_named() {
        let config = Config {
            lease: LeaseConfig {
                store: LeaseStoreKind::Redis,
                space: "a{b}".to_owned(),
                ..LeaseConfig::default()
            },
            notebook: NotebookConfig {
                domain: "no host".to_owned(),
                ..NotebookConfig::default()
            },
            billing: UpstreamConfig {
                endpoint: "billing".to_owned(),
            },
            grants: GrantConfig {
                ttl: Span(Duration::from_secs(1)),
                ..GrantConfig::default()
            },
            ..Config::default()
        };
        let keys: Vec<String> = config
            .validate()
            .into_iter()
            .map(|fault| fault.key)
            .collect();
        for key in [
            "common.internal_key",
            "lease.url",
            "lease.space",
            "notebook.domain",
            "billing.endpoint",
            "grants.ttl",
        ] {
            assert!(keys.iter().any(|found| found == key), "{key}: {keys:?}");
        }
    }
}
