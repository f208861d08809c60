//! The end of the stack: hands a request to who answers it.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cnlab_service::GrpcStack;
use http::{HeaderValue, Method, header};

use crate::{
    body::Body,
    error::GatewayError,
    front::Front,
    http_types::{Call, Response, Site},
    layers::{Answer, auth::OPEN_PREFIX},
    notebook::Notebooks,
    passthrough,
    transcode::{self, table::Table},
    upstream::Upstreams,
};

/// Where the API's description is.
const OPENAPI: &str = "/v1/openapi.json";

/// The end of the stack. Cloned per request, so it is one pointer.
#[derive(Debug, Clone)]
pub struct Route(pub Arc<Ends>);

/// Everybody who answers.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The public methods.
    pub table: Arc<Table>,
    /// The services behind.
    pub upstreams: Upstreams,
    /// The notebook proxy.
    pub notebooks: Arc<Notebooks>,
    /// Landing page, health, redirects.
    pub front: Arc<Front>,
    /// The API's description.
    pub openapi: bytes::Bytes,
    /// Health and reflection of this process.
    pub own: GrpcStack,
}

impl Ends {
    async fn answer(&self, call: Call) -> Response {
        match call.site {
            Site::Notebook(server) => self.notebooks.answer(server, call).await,
            Site::Grpc => self.grpc(call).await,
            Site::Api if call.request.uri().path() == OPENAPI => self.openapi(&call),
            Site::Api => transcode::answer(&self.table, &self.upstreams, call).await,
            Site::Front => self.front.answer(&call).await,
        }
    }

    async fn grpc(&self, call: Call) -> Response {
        if call.request.uri().path().starts_with(OPEN_PREFIX) {
            let mut own = self.own.clone();
            return match tower::Service::call(&mut own, call.request).await {
                Ok(answer) => answer.map(Body::grpc),
                Err(never) => match never {},
            };
        }
        passthrough::answer(&self.table, &self.upstreams, call).await
    }

    fn openapi(&self, call: &Call) -> Response {
        if !matches!(*call.request.method(), Method::GET | Method::HEAD) {
            let error = GatewayError::MethodNotAllowed {
                method: call.request.method().clone(),
                allowed: vec![Method::GET],
            };
            return error.into_problem();
        }
        let mut response = Response::new(Body::full(self.openapi.clone()));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        response
    }
}

impl tower::Service<Call> for Route {
    type Response = Response;
    type Error = Infallible;
    // The one box of the stack: what ends here are futures of many types.
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let ends = Arc::clone(&self.0);
        Box::pin(async move { Ok(ends.answer(call).await) })
    }
}
