//! Receives spans over OTLP/gRPC, as a collector would, and keeps them for a test to look at.
//!
//! The server runs on a thread and runtime of its own, so that it answers while the code under
//! test blocks, for example in the flush at shutdown.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::wait::{GENEROUS, wait_until};

/// A finished span, with ids as lower-case hexadecimal text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanRecord {
    /// The trace that it belongs to.
    pub trace_id: String,
    /// Its own id.
    pub span_id: String,
    /// The span that caused it, in this or another process; none for the root.
    pub parent_span_id: Option<String>,
    /// The `service.name` of the process that sent it; empty where it has none.
    pub service: String,
    /// Its name.
    pub name: String,
    /// Its kind, such as `SPAN_KIND_SERVER`.
    pub kind: String,
    /// Start, in nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// End, in nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// Its own attributes as text.
    pub attributes: BTreeMap<String, String>,
    /// Trace and span ids that it links to.
    pub links: Vec<(String, String)>,
    /// What was noted while it was open, in order.
    pub events: Vec<SpanEvent>,
}

/// Something that was noted inside a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanEvent {
    /// What it says.
    pub name: String,
    /// When, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Its attributes as text.
    pub attributes: BTreeMap<String, String>,
}

/// An OTLP/gRPC trace receiver on a loopback port of its own.
#[derive(Debug)]
pub struct OtlpReceiver {
    endpoint: String,
    spans: Arc<Mutex<Vec<SpanRecord>>>,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl OtlpReceiver {
    /// Starts to listen.
    ///
    /// # Errors
    /// When no port or thread can be had.
    pub fn start() -> anyhow::Result<Self> {
        let listener =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening for spans")?;
        listener.set_nonblocking(true)?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("making the receiver's runtime")?;
        let spans = Arc::new(Mutex::new(Vec::new()));
        let service = TraceServiceServer::new(Collector(Arc::clone(&spans)));
        let (stop, stopped) = oneshot::channel::<()>();
        let incoming = {
            let _guard = runtime.enter();
            TcpListenerStream::new(TcpListener::from_std(listener)?)
        };
        let server = std::thread::Builder::new()
            .name("otlp-receiver".to_owned())
            .spawn(move || {
                let serving = Server::builder()
                    .add_service(service)
                    .serve_with_incoming(incoming);
                // Not a graceful end: exporters keep their connection open for as long as they live.
                runtime.block_on(async {
                    tokio::select! {
                        _ = serving => {}
                        _ = stopped => {}
                    }
                });
            })
            .context("starting the receiver's thread")?;
        Ok(Self {
            endpoint,
            spans,
            stop: Some(stop),
            server: Some(server),
        })
    }

    /// Where exporters send to: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// All spans received so far, in order of arrival.
    #[must_use]
    pub fn spans(&self) -> Vec<SpanRecord> {
        self.spans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Forgets the spans received so far.
    pub fn clear(&self) {
        self.spans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Waits until the spans received so far satisfy `enough`, and returns them.
    ///
    /// # Errors
    /// When that has not come true within [`GENEROUS`]; the text lists what came.
    pub async fn wait_for(
        &self,
        what: &str,
        enough: impl Fn(&[SpanRecord]) -> bool,
    ) -> anyhow::Result<Vec<SpanRecord>> {
        wait_until(GENEROUS, what, async || enough(&self.spans()))
            .await
            .map_err(|late| {
                let came: Vec<_> = self
                    .spans()
                    .iter()
                    .map(|span| format!("{} {} ({})", span.trace_id, span.name, span.service))
                    .collect();
                anyhow!("{late}; received {} spans: {}", came.len(), came.join(", "))
            })?;
        Ok(self.spans())
    }
}

impl Drop for OtlpReceiver {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

#[derive(Debug)]
struct Collector(Arc<Mutex<Vec<SpanRecord>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut received = Vec::new();
        for group in request.into_inner().resource_spans {
            let resource = group.resource.map(|resource| resource.attributes);
            let service = text_map(resource.unwrap_or_default())
                .remove("service.name")
                .unwrap_or_default();
            let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
            received.extend(spans.map(|span| record(&service, span)));
        }
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.append(&mut received);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn record(service: &str, span: Span) -> SpanRecord {
    let kind = SpanKind::try_from(span.kind).unwrap_or_default();
    SpanRecord {
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        parent_span_id: Some(hex(&span.parent_span_id)).filter(|id| !id.is_empty()),
        service: service.to_owned(),
        name: span.name,
        kind: kind.as_str_name().to_owned(),
        start_ns: span.start_time_unix_nano,
        end_ns: span.end_time_unix_nano,
        attributes: text_map(span.attributes),
        links: span
            .links
            .iter()
            .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
            .collect(),
        events: span
            .events
            .into_iter()
            .map(|event| SpanEvent {
                name: event.name,
                time_ns: event.time_unix_nano,
                attributes: text_map(event.attributes),
            })
            .collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text_map(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    attributes
        .into_iter()
        .map(|one| (one.key, one.value.map(text).unwrap_or_default()))
        .collect()
}

fn text(value: AnyValue) -> String {
    match value.value {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::BoolValue(value)) => value.to_string(),
        Some(any_value::Value::IntValue(value)) => value.to_string(),
        Some(any_value::Value::DoubleValue(value)) => value.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}
