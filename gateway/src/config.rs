//! The gateway's configuration.

use std::time::Duration;

use cnlab_service::{CommonConfig, ConfigFault, ServiceConfig, Span};
use serde::{Deserialize, Serialize};

use crate::listener::Limits;

/// Port of the default configuration.
pub const DEFAULT_PORT: u16 = 8080;

/// See the module.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What every service has.
    pub common: CommonConfig,
    /// Endpoint of scheduler-svc.
    pub scheduler: String,
    /// Endpoint of billing-svc.
    pub billing: String,
    /// Where browsers find notebooks.
    pub notebook: NotebookConfig,
    /// Which threads serve the connections.
    pub threads: Threads,
    /// What the port allows.
    pub limits: LimitsConfig,
}

/// Which threads serve the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// Threads of its own, one for every processor that the process may use. A connection and what is asked for it
    /// stay on one thread, so that no other has to be woken.
    Own,
    /// Those of the process, beside everything else that it does.
    Shared,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: CommonConfig::on_port(DEFAULT_PORT),
            scheduler: "http://127.0.0.1:7101".to_owned(),
            billing: "http://127.0.0.1:7105".to_owned(),
            notebook: NotebookConfig::default(),
            threads: Threads::Own,
            limits: LimitsConfig::default(),
        }
    }
}

/// Where browsers find notebooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotebookConfig {
    /// A server's own origin is `srv-….nb.<domain>`, or `srv-….localhost` on one machine.
    /// Deployed, it is a registrable domain that serves nothing else.
    pub domain: String,
    /// What browsers speak, possibly to something in front of the gateway.
    pub scheme: Scheme,
}

impl Default for NotebookConfig {
    fn default() -> Self {
        Self {
            domain: "localhost".to_owned(),
            scheme: Scheme::Http,
        }
    }
}

/// What browsers speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Without TLS: on the local machine.
    Http,
    /// With TLS, which ends in front of the gateway.
    Https,
}

impl Scheme {
    /// As a URL begins.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// What the port allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// A request's head must arrive within this time.
    pub header_read: Span,
    /// A connection may be idle between requests for this long.
    pub keep_alive: Span,
    /// Header fields of one request.
    pub header_fields: usize,
    /// Bytes of one request's header fields.
    pub header_bytes: u32,
    /// A request's body may pause for this long.
    pub body_idle: Span,
    /// Bytes of an API request's body.
    pub api_body_bytes: u64,
    /// Until an API answer begins.
    pub deadline: Span,
    /// API requests under way.
    pub api_requests: usize,
    /// Notebook requests under way, WebSockets not counted.
    pub notebook_requests: usize,
    /// Concurrent requests of one HTTP/2 connection.
    pub streams: u32,
    /// Open connections in all.
    pub connections: usize,
    /// Open connections of one address (IPv6: of one /64).
    pub connections_per_address: usize,
    /// A connection is asked to end after this time; a WebSocket is not.
    pub connection_age: Span,
    /// A WebSocket stays open for this long while billing-svc cannot say whether its session
    /// is still valid.
    pub session_unchecked: Span,
    /// How long open requests and WebSockets may take at shutdown.
    pub drain: Span,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let seconds = |seconds| Span(Duration::from_secs(seconds));
        Self {
            header_read: seconds(10),
            keep_alive: seconds(75),
            header_fields: 100,
            header_bytes: 16 * 1024,
            body_idle: seconds(60),
            api_body_bytes: 1024 * 1024,
            deadline: seconds(30),
            api_requests: 2_000,
            notebook_requests: 10_000,
            streams: 100,
            connections: 10_000,
            connections_per_address: 1_000,
            connection_age: seconds(3_600),
            session_unchecked: seconds(600),
            drain: seconds(5),
        }
    }
}

impl LimitsConfig {
    /// The listener's part.
    #[must_use]
    pub const fn listener(&self) -> Limits {
        Limits {
            header_read: self.header_read.0,
            keep_alive: self.keep_alive.0,
            header_fields: self.header_fields,
            header_bytes: self.header_bytes,
            streams: self.streams,
            connections: self.connections,
            connections_per_address: self.connections_per_address,
            connection_age: self.connection_age.0,
            drain: self.drain.0,
        }
    }

    fn validate(&self) -> Vec<ConfigFault> {
        let positive = [
            ("limits.header_fields", self.header_fields as u64),
            ("limits.api_body_bytes", self.api_body_bytes),
            ("limits.api_requests", self.api_requests as u64),
            ("limits.notebook_requests", self.notebook_requests as u64),
            ("limits.streams", u64::from(self.streams)),
            ("limits.connections", self.connections as u64),
            (
                "limits.connections_per_address",
                self.connections_per_address as u64,
            ),
        ];
        let lasting = [
            ("limits.header_read", self.header_read),
            ("limits.keep_alive", self.keep_alive),
            ("limits.body_idle", self.body_idle),
            ("limits.deadline", self.deadline),
            ("limits.connection_age", self.connection_age),
        ];
        let mut faults: Vec<_> = positive
            .into_iter()
            .filter(|(_, value)| *value == 0)
            .map(|(key, _)| ConfigFault::new(key, "must be at least 1"))
            .chain(
                lasting
                    .into_iter()
                    .filter(|(_, span)| span.0.is_zero())
                    .map(|(key, _)| ConfigFault::new(key, "must be longer than nothing")),
            )
            .collect();
        if !(1_024..=64 * 1024).contains(&self.header_bytes) {
            faults.push(ConfigFault::new(
                "limits.header_bytes",
                "must be from 1024 to 65536",
            ));
        }
        faults
    }
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = self.common.validate();
        for (key, endpoint) in [("scheduler", &self.scheduler), ("billing", &self.billing)] {
            let uri = endpoint.parse::<http::Uri>().ok();
            if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.authority().is_some())
            {
                faults.push(ConfigFault::new(
                    key,
                    "is no endpoint such as http://127.0.0.1:7101",
                ));
            }
        }
        let domain = &self.notebook.domain;
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        if domain.len() > 200 || !domain.split('.').all(label) {
            faults.push(ConfigFault::new(
                "notebook.domain",
                "is no lower-case domain such as example.net",
            ));
        }
        faults.extend(self.limits.validate());
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
    fn the_default_is_a_working_local_value() {
        let mut config = Config::default();
        config.common.internal_key = Secret::new("0123456789abcdef0123456789abcdef".to_owned());
        assert_eq!(config.validate(), []);
    }

    #[test]
    fn every_fault_is_reported() {
        let mut config = Config {
            scheduler: "nowhere".to_owned(),
            ..Config::default()
        };
        config.common.internal_key = Secret::new("0123456789abcdef0123456789abcdef".to_owned());
        config.notebook.domain = "Example..net".to_owned();
        config.limits.streams = 0;
        config.limits.deadline = Span(Duration::ZERO);
        config.limits.header_bytes = 1;
        let keys: Vec<_> = config
            .validate()
            .into_iter()
            .map(|fault| fault.key)
            .collect();
        assert_eq!(
            keys,
            [
                "scheduler",
                "notebook.domain",
                "limits.streams",
                "limits.deadline",
                "limits.header_bytes"
            ]
        );
    }
}
