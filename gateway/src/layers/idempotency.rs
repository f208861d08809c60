//! Gives every call that changes something an idempotency key, so that a service can tell a
//! repetition from a second wish. A caller's own key passes.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use cnlab_service::{caller::IDEMPOTENCY_KEY, runtime::IdSource};
use futures_util::future::Either;
use http::{HeaderValue, Method};
use tower::Layer;

use crate::{
    error::GatewayError,
    http_types::{Call, Site},
    layers::{Checked, Inner, refuse},
    transcode::table::Table,
};

/// Services refuse longer ones.
const LONGEST: usize = 128;

/// Gives keys.
#[derive(Clone)]
pub struct IdempotencyLayer {
    ids: Arc<dyn IdSource>,
    table: Arc<Table>,
}

impl IdempotencyLayer {
    /// Keys from this source, for the calls that this table says change something.
    #[must_use]
    pub fn new(ids: Arc<dyn IdSource>, table: Arc<Table>) -> Self {
        Self { ids, table }
    }

    fn changes_something(&self, call: &Call) -> bool {
        match call.site {
            Site::Api => !matches!(*call.request.method(), Method::GET | Method::HEAD),
            Site::Grpc => self
                .table
                .by_grpc_path(call.request.uri().path())
                .is_some_and(|rpc| rpc.method != Method::GET),
            Site::Notebook(_) | Site::Front => false,
        }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyLayer")
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency {
            inner,
            keys: self.clone(),
        }
    }
}

/// See [`IdempotencyLayer`].
#[derive(Debug, Clone)]
pub struct Idempotency<S> {
    inner: S,
    keys: IdempotencyLayer,
}

impl<S: Inner> tower::Service<Call> for Idempotency<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Checked<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        if self.keys.changes_something(&call) {
            match call.request.headers().get(IDEMPOTENCY_KEY) {
                Some(key) if key.is_empty() || key.len() > LONGEST || key.to_str().is_err() => {
                    let problem = format!("a key has 1 to {LONGEST} printable ASCII characters");
                    let error = GatewayError::Field {
                        field: IDEMPOTENCY_KEY.to_owned(),
                        problem,
                    };
                    return refuse(call.site, error);
                }
                Some(_) => {}
                None => {
                    if let Ok(key) = HeaderValue::try_from(self.keys.ids.ulid().to_string()) {
                        call.request.headers_mut().insert(IDEMPOTENCY_KEY, key);
                    }
                }
            }
        }
        Either::Right(self.inner.call(call))
    }
}
