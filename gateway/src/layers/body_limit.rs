//! Bounds the bodies of API requests. Uploads into a notebook are bounded by its volume.

use std::task::{Context, Poll};

use futures_util::future::Either;
use http_body::Body as _;
use tower::Layer;

use crate::{
    error::GatewayError,
    http_types::Call,
    layers::{Checked, Inner, refuse},
};

/// Bounds bodies.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimitLayer {
    bytes: u64,
}

impl BodyLimitLayer {
    /// At most this many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { bytes }
    }
}

impl<S> Layer<S> for BodyLimitLayer {
    type Service = BodyLimit<S>;

    fn layer(&self, inner: S) -> BodyLimit<S> {
        BodyLimit {
            inner,
            bytes: self.bytes,
        }
    }
}

/// See [`BodyLimitLayer`].
#[derive(Debug, Clone)]
pub struct BodyLimit<S> {
    inner: S,
    bytes: u64,
}

impl<S: Inner> tower::Service<Call> for BodyLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Checked<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        if call.site.is_api() {
            // What is announced is refused before a byte of it is read.
            if call.request.body().size_hint().lower() > self.bytes {
                return refuse(call.site, GatewayError::BodyTooLarge { limit: self.bytes });
            }
            call.request.body_mut().limit(self.bytes);
        }
        Either::Right(self.inner.call(call))
    }
}
