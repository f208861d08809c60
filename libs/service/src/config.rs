//! Configuration: defaults, then a file, then the environment, then flags; then every fault
//! at once.

use std::{fmt, net::SocketAddr, path::Path, str::FromStr, time::Duration};

use figment::{
    Figment,
    providers::{Env, Format as _, Serialized, Toml},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

use crate::Secret;

/// What every service's configuration offers.
///
/// `Default` is a working local value; unknown keys are refused.
pub trait ServiceConfig:
    Default + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
    /// Every fault of this configuration, not only the first.
    fn validate(&self) -> Vec<ConfigFault>;
    /// The part that all services share: the table `[common]`.
    fn common(&self) -> &CommonConfig;
}

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The key, such as `common.listen`.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ConfigFault {
    /// A fault of this key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

/// What every service needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommonConfig {
    /// Where the service listens. Port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Shared by the services of one deployment: a caller that does not know it is no
    /// service of ours. At least 32 characters. Certificates replace it later.
    pub internal_key: Secret,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
    /// How long open requests may take at shutdown.
    pub shutdown_grace: Span,
}

impl CommonConfig {
    /// The local default on this port.
    #[must_use]
    pub fn on_port(port: u16) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            internal_key: Secret::default(),
            telemetry: TelemetryConfig::default(),
            shutdown_grace: Span(Duration::from_secs(10)),
        }
    }

    /// Faults of this part.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = Vec::new();
        if self.internal_key.expose().len() < 32 {
            faults.push(ConfigFault::new(
                "common.internal_key",
                "needs at least 32 characters, the same for every service of the deployment",
            ));
        }
        if let Some(endpoint) = &self.telemetry.otlp_endpoint
            && endpoint
                .parse::<http::Uri>()
                .map_or(true, |uri| uri.scheme().is_none())
        {
            faults.push(ConfigFault::new(
                "common.telemetry.otlp_endpoint",
                "is no URL such as http://127.0.0.1:4317",
            ));
        }
        faults
    }
}

impl Default for CommonConfig {
    fn default() -> Self {
        Self::on_port(0)
    }
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Where spans go, as OTLP over gRPC; without it none are exported.
    pub otlp_endpoint: Option<String>,
    /// Filter such as `info` or `scheduler_svc=debug,info`.
    pub log: String,
    /// How a log line looks.
    pub log_format: LogFormat,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            log: "info".to_owned(),
            log_format: LogFormat::Human,
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// A span of time, written `500ms`, `30s`, `5m` or `2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no span of time such as 500ms, 30s, 5m or 2h");
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (digits, unit) = text.split_at(split);
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let millis = match unit {
            "ms" => Some(number),
            "s" => number.checked_mul(1_000),
            "m" => number.checked_mul(60_000),
            "h" => number.checked_mul(3_600_000),
            _ => None,
        };
        millis
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match millis {
            0 => f.write_str("0s"),
            _ if millis.is_multiple_of(3_600_000) => write!(f, "{}h", millis / 3_600_000),
            _ if millis.is_multiple_of(60_000) => write!(f, "{}m", millis / 60_000),
            _ if millis.is_multiple_of(1_000) => write!(f, "{}s", millis / 1_000),
            _ => write!(f, "{millis}ms"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Reads a configuration: defaults < file < environment (`CNLAB_<SERVICE>__A__B`) < flags.
///
/// `flags` are pairs of a dotted key and a value.
///
/// # Errors
/// All faults, each with its key: of reading, else of validation.
pub fn load<C: ServiceConfig>(
    service: &str,
    file: Option<&Path>,
    flags: &[(String, String)],
) -> Result<C, Vec<ConfigFault>> {
    let prefix = format!("CNLAB_{}__", service.replace('-', "_").to_uppercase());
    // Not `Serialized::defaults(C::default())`: secrets serialise as a mask. Missing keys
    // take their default from serde.
    let mut figment = Figment::new();
    if let Some(file) = file {
        if !file.is_file() {
            return Err(vec![ConfigFault::new(
                "--config",
                format!("there is no file {}", file.display()),
            )]);
        }
        figment = figment.merge(Toml::file_exact(file));
    }
    figment = figment.merge(Env::prefixed(&prefix).split("__"));
    for (key, value) in flags {
        // A flag's value is TOML where it can be (numbers, booleans), else a text.
        let value: figment::value::Value = value
            .parse()
            .unwrap_or_else(|_| figment::value::Value::from(value.clone()));
        figment = figment.merge(Serialized::default(key, value));
    }
    // A table `[common]` that leaves `listen` out means this service's own port.
    if figment.find_value("common.listen").is_err() {
        let own = C::default().common().listen.to_string();
        figment = figment.merge(Serialized::default("common.listen", own));
    }
    let config: C = figment.extract().map_err(|errors| {
        errors
            .into_iter()
            .map(|error| {
                let source = error
                    .metadata
                    .as_ref()
                    .map(|from| format!(" ({})", from.name))
                    .unwrap_or_default();
                ConfigFault::new(error.path.join("."), format!("{}{source}", error.kind))
            })
            .collect::<Vec<_>>()
    })?;
    let faults = config.validate();
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Config {
        common: CommonConfig,
        every: Span,
        replicas: u32,
    }

    impl Default for Config {
        fn default() -> Self {
            Self {
                common: CommonConfig::on_port(7),
                every: Span(Duration::from_secs(30)),
                replicas: 1,
            }
        }
    }

    impl ServiceConfig for Config {
        fn validate(&self) -> Vec<ConfigFault> {
            let mut faults = self.common.validate();
            if self.replicas == 0 {
                faults.push(ConfigFault::new("replicas", "must be at least 1"));
            }
            faults
        }

        fn common(&self) -> &CommonConfig {
            &self.common
        }
    }

    fn flags(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn later_sources_win() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(
            &file,
            format!("every = \"5m\"\nreplicas = 2\n[common]\ninternal_key = \"{KEY}\"\n"),
        )
        .unwrap();
        let config: Config = load("x-svc", Some(&file), &flags(&[("replicas", "3")])).unwrap();
        assert_eq!(config.replicas, 3);
        assert_eq!(config.every, Span(Duration::from_secs(300)));
        assert_eq!(config.common.internal_key.expose(), KEY);
        assert_eq!(
            config.common.listen.port(),
            7,
            "a table in the file keeps the port of the service"
        );
    }

    #[test]
    fn every_fault_is_reported_with_its_key() {
        let faults = load::<Config>("x-svc", None, &flags(&[("replicas", "0")])).unwrap_err();
        let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(keys, ["common.internal_key", "replicas"]);
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused() {
        let unknown = load::<Config>("x-svc", None, &flags(&[("replicaz", "1")])).unwrap_err();
        assert!(unknown[0].problem.contains("replicaz"), "{unknown:?}");
        let wrong = load::<Config>("x-svc", None, &flags(&[("every", "soon")])).unwrap_err();
        assert_eq!(wrong[0].key, "every");
    }

    #[test]
    fn spans_round_trip() {
        for text in ["0s", "500ms", "30s", "5m", "2h", "90s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
        assert!("5".parse::<Span>().is_err());
        assert!("5d".parse::<Span>().is_err());
    }
}
