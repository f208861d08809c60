//! Logs, traces and metrics of a process: set up once, flushed at the end.

use std::{io::IsTerminal as _, time::Duration};

use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    metrics::SdkMeterProvider,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider},
};
use tracing_subscriber::{
    EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::{LogFormat, TelemetryConfig},
    service::StartError,
};

/// Spans of these libraries would be exported by exporting them, without end.
const QUIET: &str = "h2=off,hyper=off,hyper_util=off,tonic=off,tower=off,opentelemetry=off,opentelemetry_sdk=off,\
                     opentelemetry_otlp=off,reqwest=off";
const FLUSH: Duration = Duration::from_secs(5);

/// Keeps telemetry going; [`TelemetryGuard::shutdown`] sends what is left.
#[derive(Debug)]
pub struct TelemetryGuard(Option<(SdkTracerProvider, SdkMeterProvider)>);

impl TelemetryGuard {
    /// Sends what is left, for at most five seconds.
    pub async fn shutdown(self) {
        let Some((spans, metrics)) = self.0 else {
            return;
        };
        // The exporter needs this runtime, so the wait must not block a worker of it.
        let flushed = tokio::task::spawn_blocking(move || {
            spans
                .shutdown_with_timeout(FLUSH)
                .and(metrics.shutdown_with_timeout(FLUSH))
        })
        .await;
        if let Ok(Err(error)) = flushed {
            tracing::warn!(%error, "some spans or metrics were not sent");
        }
    }
}

/// Sets up logs on stderr and, where an endpoint is given, the export of spans and metrics.
/// Must run inside a tokio runtime.
///
/// # Errors
/// When the filter or the endpoint makes no sense, or telemetry was set up before.
pub fn init(service: &'static str, config: &TelemetryConfig) -> Result<TelemetryGuard, StartError> {
    init_with(service, config, true)
}

/// As [`init`], for a program whose own output goes to the terminal: logs only from `warn`
/// unless the configuration asks for more.
///
/// # Errors
/// As [`init`].
pub fn init_quiet(
    service: &'static str,
    config: &TelemetryConfig,
) -> Result<TelemetryGuard, StartError> {
    init_with(service, config, false)
}

fn filter(directives: &str) -> Result<EnvFilter, StartError> {
    // Own directives last: a more specific one wins over the quiet ones.
    EnvFilter::builder()
        .parse(format!("{QUIET},{directives}"))
        .map_err(|error| {
            StartError::new(format!("the log filter {directives:?} makes no sense"))
                .caused_by(error)
        })
}

fn init_with(
    service: &'static str,
    config: &TelemetryConfig,
    log_target: bool,
) -> Result<TelemetryGuard, StartError> {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let providers = config
        .otlp_endpoint
        .as_deref()
        .map(|endpoint| providers(service, endpoint))
        .transpose()?;
    let export = providers
        .as_ref()
        .map(|(provider, _)| {
            Ok::<_, StartError>(
                tracing_opentelemetry::layer()
                    .with_tracer(provider.tracer(service))
                    // File names of the build machine are nobody's business.
                    .with_location(false)
                    .with_threads(false)
                    .with_tracked_inactivity(false)
                    .with_filter(filter("info")?),
            )
        })
        .transpose()?;
    let logs = match config.log_format {
        LogFormat::Human => tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(log_target)
            .boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(export)
        .with(logs.with_filter(filter(&config.log)?))
        .try_init()
        .map_err(|error| StartError::new("telemetry was set up before").caused_by(error))?;
    if let Some((_, metrics)) = &providers {
        global::set_meter_provider(metrics.clone());
    }
    Ok(TelemetryGuard(providers))
}

fn providers(
    service: &'static str,
    endpoint: &str,
) -> Result<(SdkTracerProvider, SdkMeterProvider), StartError> {
    let fail =
        |error| StartError::new(format!("cannot export telemetry to {endpoint}")).caused_by(error);
    let resource = || Resource::builder().with_service_name(service).build();
    let spans = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(FLUSH)
        .build()
        .map_err(fail)?;
    let metrics = MetricExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(FLUSH)
        .build()
        .map_err(fail)?;
    Ok((
        SdkTracerProvider::builder()
            .with_resource(resource())
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
            .with_batch_exporter(spans)
            .build(),
        SdkMeterProvider::builder()
            .with_resource(resource())
            .with_periodic_exporter(metrics)
            .build(),
    ))
}
