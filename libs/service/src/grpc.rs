//! The layers around a service's gRPC methods: trace, internal key, caller.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use cnlab_model::ErrorKind;
use http::{Request, Response};
use tonic::{Status, body::Body, service::Routes};
use tower::Service;

use crate::{
    Secret,
    caller::Caller,
    channel::{INTERNAL_KEY_HEADER, INTERNAL_KEY_WRONG},
    status,
    trace::{Trace, TraceLayer},
};

/// Health and reflection: open to everybody, since they tell nothing of anybody.
const OPEN_PREFIX: &str = "/grpc.";

/// A service's gRPC methods with the kit's layers around them.
#[derive(Clone)]
pub struct GrpcStack(Trace<Guard>);

impl fmt::Debug for GrpcStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrpcStack")
    }
}

impl GrpcStack {
    pub(crate) fn new(service: &'static str, key: Secret, routes: Routes) -> Self {
        use tower::Layer as _;
        Self(TraceLayer::new(service).layer(Guard {
            routes: routes.prepare(),
            key: Arc::new(key),
        }))
    }
}

impl<B> Service<Request<B>> for GrpcStack
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.call(request.map(Body::new))
    }
}

/// Lets in who knows the internal key, and says on whose behalf.
#[derive(Clone)]
struct Guard {
    routes: Routes,
    key: Arc<Secret>,
}

impl Guard {
    fn admit(&self, request: &mut Request<Body>) -> Result<(), Status> {
        if request.uri().path().starts_with(OPEN_PREFIX) {
            return Ok(());
        }
        let given = request.headers_mut().remove(INTERNAL_KEY_HEADER);
        if !given.is_some_and(|given| self.key.matches(given.as_bytes())) {
            return Err(status::plain(
                ErrorKind::Unauthenticated,
                INTERNAL_KEY_WRONG,
                "this port is for the services of this deployment",
                Some("call the gateway"),
            ));
        }
        if let Some(caller) = Caller::read_from(request.headers())? {
            request.extensions_mut().insert(caller);
        }
        Ok(())
    }
}

impl Service<Request<Body>> for Guard {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Routes are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(()) => Box::pin(self.routes.call(request)),
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}
