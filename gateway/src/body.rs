//! The bodies that go through the stack: what a client sends, with its limits, and what it
//! gets, from whichever source.
//!
//! **Invariant**: no body is collected here; a slow reader slows its writer down.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::Sleep;

use crate::{layers::shed::InFlight, notebook::pool::PooledBody, transcode::sse::EventStream};

/// Why a client's body ended early.
#[derive(Debug, Error)]
pub enum RequestBodyError {
    /// Nothing came for as long as the limit allows.
    #[error("the body stalled")]
    Stalled,
    /// More came than the limit allows.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// Bytes that are accepted.
        limit: u64,
    },
    /// The connection broke, or the body's framing did.
    #[error("the body broke off")]
    Broken(#[from] hyper::Error),
}

/// A client's body.
#[derive(Debug)]
pub struct RequestBody {
    inner: Incoming,
    idle: Duration,
    /// Only there while the client keeps us waiting.
    waiting: Option<Pin<Box<Sleep>>>,
    limit: u64,
    seen: u64,
}

impl RequestBody {
    /// A body that may pause for `idle` at most.
    #[must_use]
    pub const fn new(inner: Incoming, idle: Duration) -> Self {
        Self {
            inner,
            idle,
            waiting: None,
            limit: u64::MAX,
            seen: 0,
        }
    }

    /// Accepts this many bytes at most.
    pub const fn limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The most bytes that are accepted.
    #[must_use]
    pub const fn limit_bytes(&self) -> u64 {
        self.limit
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.waiting = None;
                let Some(frame) = frame.transpose()? else {
                    return Poll::Ready(None);
                };
                if let Some(data) = frame.data_ref() {
                    self.seen = self.seen.saturating_add(data.len() as u64);
                    if self.seen > self.limit {
                        return Poll::Ready(Some(Err(RequestBodyError::TooLarge {
                            limit: self.limit,
                        })));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => {
                let idle = self.idle;
                let waiting = self
                    .waiting
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
                ready!(waiting.as_mut().poll(cx));
                Poll::Ready(Some(Err(RequestBodyError::Stalled)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Why an answer's body ended early. The client sees a broken connection or stream; there
/// is no other way to say it once the head is sent.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An answer's body.
#[derive(Debug)]
pub struct Body {
    source: Source,
    /// Counts the request as in flight until its answer is sent.
    in_flight: Option<InFlight>,
}

#[derive(Debug)]
enum Source {
    Empty,
    Full(Bytes),
    Notebook(PooledBody),
    Grpc(tonic::body::Body),
    Events(Box<EventStream>),
}

impl Body {
    const fn from_source(source: Source) -> Self {
        Self {
            source,
            in_flight: None,
        }
    }

    /// Nothing.
    #[must_use]
    pub const fn empty() -> Self {
        Self::from_source(Source::Empty)
    }

    /// These bytes.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::from_source(Source::Full(bytes.into()))
    }

    /// A notebook's answer as it arrives.
    #[must_use]
    pub const fn notebook(body: PooledBody) -> Self {
        Self::from_source(Source::Notebook(body))
    }

    /// A gRPC answer as it arrives, with its trailers.
    #[must_use]
    pub const fn grpc(body: tonic::body::Body) -> Self {
        Self::from_source(Source::Grpc(body))
    }

    /// Server-sent events.
    #[must_use]
    pub fn events(stream: EventStream) -> Self {
        Self::from_source(Source::Events(Box::new(stream)))
    }

    /// Keeps the request counted until this body is sent or dropped.
    pub fn hold(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            Source::Empty => Poll::Ready(None),
            Source::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.source = Source::Empty;
                if bytes.is_empty() {
                    Poll::Ready(None)
                } else {
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
            }
            Source::Notebook(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Source::Grpc(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Source::Events(stream) => Pin::new(stream.as_mut())
                .poll_frame(cx)
                .map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(bytes) => bytes.is_empty(),
            Source::Notebook(body) => body.is_end_stream(),
            Source::Grpc(body) => body.is_end_stream(),
            Source::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(0),
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Notebook(body) => body.size_hint(),
            Source::Grpc(body) => body.size_hint(),
            Source::Events(_) => SizeHint::default(),
        }
    }
}
