//! The tower stack: everything that happens to a request, in reading order.

use std::{convert::Infallible, future::Ready, net::IpAddr, sync::Arc, time::Duration};

use cnlab_service::runtime::IdSource;
use futures_util::future::Either;
use hyper::body::Incoming;
use tower::{Service as _, ServiceBuilder};

use crate::{
    auth::Tokens,
    http_types::{Call, Response},
    layers::{
        Answer,
        admit::Admission,
        auth::{Auth, AuthLayer},
        body_limit::{BodyLimit, BodyLimitLayer},
        deadline::{Deadline, DeadlineLayer},
        idempotency::{Idempotency, IdempotencyLayer},
        refusal,
        shed::{Shed, ShedLayer},
        trace::{Trace, TraceLayer},
    },
    route::Route,
};

/// What the layers need.
#[derive(Clone)]
pub struct Parts {
    /// Requests that may be under way.
    pub shed: ShedLayer,
    /// Until an API answer begins.
    pub deadline: Duration,
    /// Bytes of an API request's body.
    pub body_bytes: u64,
    /// Who is behind a token.
    pub tokens: Arc<Tokens>,
    /// Makes idempotency keys.
    pub ids: Arc<dyn IdSource>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

/// The stack as a type.
pub type Stack = Trace<Shed<Deadline<BodyLimit<Auth<Idempotency<Route>>>>>>;

/// Builds the stack, outermost layer first. Before it, [`Admission`] has refused what is
/// ambiguous, removed reserved headers, and said whose the request is.
#[must_use]
pub fn build(parts: Parts, route: Route) -> Stack {
    ServiceBuilder::new()
        // First, so that a refusal by any layer below has the id to quote.
        .layer(TraceLayer)
        // Before anything that waits: when there is too much to do, saying so must be cheap.
        .layer(parts.shed)
        // Around everything that waits, the check of the token included.
        .layer(DeadlineLayer::new(parts.deadline))
        // Before the token is checked, so that nobody makes us read a large body for nothing.
        .layer(BodyLimitLayer::new(parts.body_bytes))
        // Deny by default: nothing below runs for an API request without a caller.
        .layer(AuthLayer::new(parts.tokens))
        // After the caller is known, since keys belong to callers.
        .layer(IdempotencyLayer::new(parts.ids, Arc::clone(&route.0.table)))
        .service(route)
}

/// The stack for one connection.
#[derive(Debug, Clone)]
pub struct FrontDoor {
    admission: Arc<Admission>,
    stack: Stack,
    peer: IpAddr,
}

impl FrontDoor {
    /// For a connection from this address.
    #[must_use]
    pub const fn new(admission: Arc<Admission>, stack: Stack, peer: IpAddr) -> Self {
        Self {
            admission,
            stack,
            peer,
        }
    }
}

impl hyper::service::Service<http::Request<Incoming>> for FrontDoor {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, <Stack as tower::Service<Call>>::Future>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        match self.admission.admit(request, self.peer) {
            // Every layer is ready at all times: who is not refuses instead of waiting.
            Ok(call) => Either::Right(self.stack.clone().call(call)),
            Err((site, error)) => Either::Left(std::future::ready(Ok(refusal(site, error)))),
        }
    }
}
