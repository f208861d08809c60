//! Lets in who has a valid token, and says to the services behind who that is.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cnlab_service::Caller;
use futures_util::future::Either;
use http::header;
use tower::Layer;

use crate::{
    auth::{Tokens, bearer},
    http_types::Call,
    layers::{Answer, Checked, Inner, refusal, refuse},
};

/// Checks tokens.
#[derive(Debug, Clone)]
pub struct AuthLayer {
    tokens: Arc<Tokens>,
}

impl AuthLayer {
    /// Checks with these.
    #[must_use]
    pub const fn new(tokens: Arc<Tokens>) -> Self {
        Self { tokens }
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = Auth<S>;

    fn layer(&self, inner: S) -> Auth<S> {
        Auth {
            inner,
            tokens: Arc::clone(&self.tokens),
        }
    }
}

/// See [`AuthLayer`].
#[derive(Debug, Clone)]
pub struct Auth<S> {
    inner: S,
    tokens: Arc<Tokens>,
}

/// gRPC's own services: they tell nothing of anybody.
pub(crate) const OPEN_PREFIX: &str = "/grpc.";

impl<S> tower::Service<Call> for Auth<S>
where
    S: Inner + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Checked<S::Future>, Pin<Box<dyn Future<Output = Answer> + Send>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        if !call.site.is_api() || call.request.uri().path().starts_with(OPEN_PREFIX) {
            return Either::Left(Either::Right(self.inner.call(call)));
        }
        let token = match bearer(call.request.headers()) {
            Ok(token) => token,
            Err(error) => return Either::Left(refuse(call.site, error)),
        };
        if let Some(caller) = self.tokens.known(token) {
            name_caller(&mut call, &caller);
            return Either::Left(Either::Right(self.inner.call(call)));
        }
        let token = token.to_owned();
        let tokens = Arc::clone(&self.tokens);
        // The clone stays behind; the one that was polled ready is called.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        Either::Right(Box::pin(async move {
            match tokens.ask(&token).await {
                Ok(caller) => {
                    name_caller(&mut call, &caller);
                    inner.call(call).await
                }
                Err(error) => Ok(refusal(call.site, error)),
            }
        }))
    }
}

fn name_caller(call: &mut Call, caller: &Caller) {
    let headers = call.request.headers_mut();
    headers.remove(header::AUTHORIZATION);
    caller.write_to(headers);
}
