//! The layers of the stack, one file each. `stack.rs` says in which order and why.

pub mod admit;
pub mod auth;
pub mod body_limit;
pub mod deadline;
pub mod idempotency;
pub mod shed;
pub mod trace;

use std::{convert::Infallible, future::Ready};

use futures_util::future::Either;

use crate::{
    error::GatewayError,
    http_types::{Call, Response, Site},
};

/// What every layer answers; an error is a response too.
pub type Answer = Result<Response, Infallible>;

/// A service of the stack.
pub trait Inner: tower::Service<Call, Response = Response, Error = Infallible> {}

impl<S> Inner for S where S: tower::Service<Call, Response = Response, Error = Infallible> {}

/// A layer's future that either refuses at once or goes on.
pub type Checked<F> = Either<Ready<Answer>, F>;

/// A refusal in the words of the site: gRPC callers get a status, browsers and scripts a
/// problem.
#[must_use]
pub fn refusal(site: Site, error: GatewayError) -> Response {
    match site {
        Site::Grpc => error.into_grpc(),
        Site::Api | Site::Front | Site::Notebook(_) => error.into_problem(),
    }
}

fn refuse<F>(site: Site, error: GatewayError) -> Checked<F> {
    Either::Left(std::future::ready(Ok(refusal(site, error))))
}
