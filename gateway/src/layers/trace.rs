//! Opens the span of an API request, as a child of the caller's.
//!
//! A notebook request has no span: thousands a minute of them would hide everything else.

use std::task::{Context, Poll};

use cnlab_service::{status::TRACE_ID_HEADER, trace};
use futures_util::future::Either;
use http::HeaderValue;
use pin_project_lite::pin_project;
use tower::Layer;
use tracing::{Instrument as _, Span, field::Empty, instrument::Instrumented};

use crate::{
    http_types::Call,
    layers::{Answer, Inner, auth::OPEN_PREFIX},
};

/// Opens spans.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceLayer;

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace { inner }
    }
}

/// See [`TraceLayer`].
#[derive(Debug, Clone)]
pub struct Trace<S> {
    inner: S,
}

/// The id to quote for the present request.
#[must_use]
pub fn current_id() -> Option<String> {
    trace::trace_id()
}

/// Gives the span the method's name, once it is known.
pub fn name_span(method: &str) {
    let span = Span::current();
    if !span.is_disabled() {
        span.record("otel.name", format!("gateway.{method}"));
    }
}

impl<S: Inner> tower::Service<Call> for Trace<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Instrumented<Labelled<S::Future>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        // Health and reflection are asked all the time and are no part of anything.
        let is_open = call.request.uri().path().starts_with(OPEN_PREFIX);
        if !call.site.is_api() || is_open {
            return Either::Left(self.inner.call(call));
        }
        let span = tracing::info_span!(
            "http",
            otel.name = Empty,
            otel.kind = "server",
            cnlab.service = "gateway"
        );
        if !span.is_disabled() {
            let name = trace::rpc_name(call.request.uri().path())
                .and_then(|name| {
                    name.split_once('.')
                        .map(|(_, method)| format!("gateway.{method}"))
                })
                .unwrap_or_else(|| format!("gateway.{}", call.request.method()));
            span.record("otel.name", name);
            trace::adopt(&span, call.request.headers());
        }
        // The channel writes the context of this span; the caller's must not go beside it.
        if span.in_scope(trace::trace_id).is_some() {
            call.request.headers_mut().remove("traceparent");
        }
        let inner = span.in_scope(|| self.inner.call(call));
        Either::Right(Labelled { inner }.instrument(span))
    }
}

pin_project! {
    /// Tells the caller the trace's id, also where all went well.
    #[derive(Debug)]
    pub struct Labelled<F> {
        #[pin]
        inner: F,
    }
}

impl<F: Future<Output = Answer>> Future for Labelled<F> {
    type Output = Answer;

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = std::task::ready!(self.project().inner.poll(cx));
        Poll::Ready(answer.map(|mut response| {
            if !response.headers().contains_key(TRACE_ID_HEADER)
                && let Some(id) = current_id()
                && let Ok(id) = HeaderValue::try_from(id)
            {
                response.headers_mut().insert(TRACE_ID_HEADER, id);
            }
            response
        }))
    }
}
