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
pub struct TelemetryGuard {
    spans: SdkTracerProvider,
    metrics: Option<SdkMeterProvider>,
}

impl TelemetryGuard {
    /// Sends what is left, for at most five seconds.
    pub async fn shutdown(self) {
        let Self { spans, metrics } = self;
        // The exporter needs this runtime, so the wait must not block a worker of it.
        let flushed = tokio::task::spawn_blocking(move || {
            let metrics = metrics.map_or(Ok(()), |metrics| metrics.shutdown_with_timeout(FLUSH));
            spans.shutdown_with_timeout(FLUSH).and(metrics)
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
    let endpoint = config.otlp_endpoint.as_deref();
    let spans = span_provider(service, endpoint)?;
    let metrics = endpoint
        .map(|endpoint| metric_provider(service, endpoint))
        .transpose()?;
    let traces = tracing_opentelemetry::layer()
        .with_tracer(spans.tracer(service))
        // File names of the build machine are nobody's business.
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter("info")?);
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
        .with(traces)
        .with(logs.with_filter(filter(&config.log)?))
        .try_init()
        .map_err(|error| StartError::new("telemetry was set up before").caused_by(error))?;
    if let Some(metrics) = &metrics {
        global::set_meter_provider(metrics.clone());
    }
    Ok(TelemetryGuard { spans, metrics })
}

fn resource(service: &'static str) -> Resource {
    Resource::builder().with_service_name(service).build()
}

fn unreachable_endpoint(
    endpoint: &str,
    error: opentelemetry_otlp::ExporterBuildError,
) -> StartError {
    StartError::new(format!("cannot export telemetry to {endpoint}")).caused_by(error)
}

/// Spans have ids whether or not anybody collects them: an error quotes its trace, and the
/// log tells of it under the same id.
fn span_provider(
    service: &'static str,
    endpoint: Option<&str>,
) -> Result<SdkTracerProvider, StartError> {
    let builder = SdkTracerProvider::builder()
        .with_resource(resource(service))
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
    let Some(endpoint) = endpoint else {
        return Ok(builder.build());
    };
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(FLUSH)
        .build()
        .map_err(|error| unreachable_endpoint(endpoint, error))?;
    Ok(builder.with_batch_exporter(exporter).build())
}

fn metric_provider(service: &'static str, endpoint: &str) -> Result<SdkMeterProvider, StartError> {
    let exporter = MetricExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(FLUSH)
        .build()
        .map_err(|error| unreachable_endpoint(endpoint, error))?;
    Ok(SdkMeterProvider::builder()
        .with_resource(resource(service))
        .with_periodic_exporter(exporter)
        .build())
}
