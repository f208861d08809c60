//! The CLI's own root span, where somebody collects them.

use std::process;

use cnlab_service::{
    config::TelemetryConfig,
    telemetry::{self, TelemetryGuard},
};
use tracing::Span;

use crate::environment::Environment;

/// Starts the export of spans where an endpoint is given. Nothing that goes wrong with it is
/// worth failing a command for.
pub(crate) fn start(environment: &Environment) -> Option<TelemetryGuard> {
    let endpoint = environment.otlp.clone()?;
    let config = TelemetryConfig {
        otlp_endpoint: Some(endpoint),
        log: "off".to_owned(),
        ..TelemetryConfig::default()
    };
    telemetry::init_quiet(environment.program.name(), &config).ok()
}

/// The span of a whole command.
pub(crate) fn root(name: &'static str) -> Span {
    tracing::info_span!(
        "command",
        otel.name = name,
        otel.kind = "client",
        process.pid = process::id()
    )
}
