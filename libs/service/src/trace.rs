//! One trace across services: W3C trace context in and out of headers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use opentelemetry::{
    global, propagation::Extractor, propagation::Injector, trace::TraceContextExt as _,
};
use tower::{Layer, Service};
use tracing::{Instrument as _, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::metrics::Durations;

const TRACEPARENT: &str = "traceparent";

struct HeaderReader<'a>(&'a HeaderMap);

impl Extractor for HeaderReader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeaderWriter<'a>(&'a mut HeaderMap);

impl Injector for HeaderWriter<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

struct OneValue<'a>(&'a str);

impl Extractor for OneValue<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// Writes the present span's context into headers. Without a trace it writes nothing.
pub fn inject(headers: &mut HeaderMap) {
    let context = Span::current().context();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut HeaderWriter(headers));
    });
}

/// Makes the trace context of headers, if they have one, the parent of a span that has not
/// been entered yet.
pub fn adopt(span: &Span, headers: &HeaderMap) {
    let parent =
        global::get_text_map_propagator(|propagator| propagator.extract(&HeaderReader(headers)));
    adopt_context(span, parent);
}

fn adopt_context(span: &Span, parent: opentelemetry::Context) {
    if parent.span().span_context().is_valid()
        && let Err(error) = span.set_parent(parent)
    {
        tracing::debug!(?error, "the span keeps its own parent");
    }
}

/// The present span's context as a `traceparent` value, to be kept with work that outlives
/// the request.
#[must_use]
pub fn current_traceparent() -> Option<String> {
    let mut headers = HeaderMap::new();
    inject(&mut headers);
    headers
        .get(TRACEPARENT)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

/// A span for work that was begun by another: its parent is the kept `traceparent`.
#[must_use]
pub fn span_with_parent(traceparent: Option<&str>, name: &'static str) -> Span {
    let span = tracing::info_span!("work", otel.name = name);
    if let Some(traceparent) = traceparent {
        let parent = global::get_text_map_propagator(|propagator| {
            propagator.extract(&OneValue(traceparent))
        });
        adopt_context(&span, parent);
    }
    span
}

/// The id of the present trace in hexadecimal, if there is one.
#[must_use]
pub fn trace_id() -> Option<String> {
    let context = Span::current().context();
    let span = context.span();
    let span_context = span.span_context();
    span_context
        .is_valid()
        .then(|| span_context.trace_id().to_string())
}

/// The span name of a gRPC path: `scheduler.CreateServer` of
/// `/cnlab.scheduler.v1.ServerService/CreateServer`. None for a path of another form.
#[must_use]
pub fn rpc_name(path: &str) -> Option<String> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let package = service.strip_prefix("cnlab.")?.split('.').next()?;
    Some(format!("{package}.{method}"))
}

/// Opens a span around every gRPC request, as a child of the caller's, and measures it.
#[derive(Debug, Clone)]
pub struct TraceLayer {
    service: &'static str,
    durations: Durations,
}

impl TraceLayer {
    /// Spans that carry this service's name.
    #[must_use]
    pub fn new(service: &'static str) -> Self {
        Self {
            service,
            durations: Durations::named(
                "cnlab_rpc_duration_seconds",
                "How long gRPC methods took until their answer",
            ),
        }
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace {
            inner,
            service: self.service,
            durations: self.durations.clone(),
        }
    }
}

/// See [`TraceLayer`].
#[derive(Debug, Clone)]
pub struct Trace<S> {
    inner: S,
    service: &'static str,
    durations: Durations,
}

impl<S, B, R> Service<Request<B>> for Trace<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(name) = rpc_name(request.uri().path()) else {
            // Health and reflection are asked all the time and are no part of anything.
            return Box::pin(self.inner.call(request));
        };
        let span = tracing::info_span!(
            "rpc",
            otel.name = %name,
            otel.kind = "server",
            cnlab.service = self.service,
            cnlab.server_id = Empty,
            cnlab.node_id = Empty,
            cnlab.lease_fence = Empty,
        );
        adopt(&span, request.headers());
        let began = tokio::time::Instant::now();
        let (durations, service) = (self.durations.clone(), self.service);
        let response = span.in_scope(|| self.inner.call(request));
        Box::pin(
            async move {
                let answer = response.await;
                let code = match &answer {
                    // A stream or a success ends with its code in the trailers.
                    Ok(answer) => answer
                        .headers()
                        .get("grpc-status")
                        .map_or(0, |code| code_number(code.as_bytes())),
                    Err(_) => UNKNOWN,
                };
                let labels = [
                    ("service", service),
                    ("method", &name),
                    ("code", code_name(code)),
                ];
                durations.record(began.elapsed(), &labels);
                answer
            }
            .instrument(span),
        )
    }
}

const UNKNOWN: i32 = 2;

fn code_number(bytes: &[u8]) -> i32 {
    std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(UNKNOWN)
}

fn code_name(code: i32) -> &'static str {
    match tonic::Code::from(code) {
        tonic::Code::Ok => "OK",
        other => crate::status::code_reason(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpc_names() {
        assert_eq!(
            rpc_name("/cnlab.scheduler.v1.ServerService/CreateServer").as_deref(),
            Some("scheduler.CreateServer")
        );
        assert_eq!(rpc_name("/grpc.health.v1.Health/Check"), None);
        assert_eq!(rpc_name("/"), None);
    }
}
