//! Passes HTTP/1.1 requests to a workload's notebook: `cnlab-workload-id` and `cnlab-fence` say to
//! which life, and the node adds the notebook's own token.
//!
//! Bodies are streamed in both directions, so that large files and server-sent events pass as they
//! come; after a switch of protocols (WebSockets) the bytes pass unread.
//!
//! **Invariant**: only the exact life that was named is reached; its token leaves the node on no
//! other way than to that life's socket.

mod peer;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use cnlab_service::{GrpcStack, Secret, channel::INTERNAL_KEY_HEADER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use node_core::WorkloadId;
use tonic::body::Body;
use tower::Service;

pub(crate) use peer::Peer;

use crate::app::{Node, life::Life};

/// Header that names the workload.
pub const WORKLOAD_HEADER: &str = "cnlab-workload-id";
/// Header that names the fence of its life.
pub const FENCE_HEADER: &str = "cnlab-fence";
/// Header of an answer that is the node's and not the notebook's: why it was refused. A notebook
/// cannot send it, since nothing that begins with our own prefix passes.
pub const REFUSED_HEADER: &str = "cnlab-refused";
/// Everything that begins so is between services and never reaches a notebook.
const OWN_PREFIX: &str = "cnlab-";

/// Headers that belong to one connection and are not passed on.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The node's port: notebooks for requests that name a workload, gRPC for all others.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    node: Arc<Node>,
    key: Arc<Secret>,
    grpc: GrpcStack,
}

impl Front {
    pub(crate) fn new(node: Arc<Node>, grpc: GrpcStack) -> Self {
        let key = Arc::new(node.config.common.internal_key.clone());
        Self { node, key, grpc }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if !request.headers().contains_key(WORKLOAD_HEADER) {
            return Service::call(&mut self.grpc, request);
        }
        let (node, key) = (Arc::clone(&self.node), Arc::clone(&self.key));
        Box::pin(async move {
            Ok(match pass(&node, &key, request).await {
                Ok(response) => response,
                Err(refusal) => refusal.into_response(),
            })
        })
    }
}

/// Why a request does not reach a notebook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    KeyWrong,
    HeadersWrong,
    NoWorkload,
    OtherFence,
    NotReady,
    Unreachable,
}

impl Refusal {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::KeyWrong => (
                StatusCode::UNAUTHORIZED,
                "INTERNAL_KEY_WRONG",
                "this port is for the services of this deployment",
            ),
            Self::HeadersWrong => (
                StatusCode::BAD_REQUEST,
                "INVALID_FIELD",
                "cnlab-workload-id or cnlab-fence makes no sense",
            ),
            Self::NoWorkload => (
                StatusCode::NOT_FOUND,
                "WORKLOAD_NOT_FOUND",
                "this node knows no such workload",
            ),
            Self::OtherFence => (
                StatusCode::GONE,
                "FENCE_MISMATCH",
                "the workload runs here under another fence, or no longer",
            ),
            Self::NotReady => (
                StatusCode::SERVICE_UNAVAILABLE,
                "NOTEBOOK_NOT_READY",
                "the notebook is not running yet",
            ),
            Self::Unreachable => (
                StatusCode::BAD_GATEWAY,
                "NOTEBOOK_UNREACHABLE",
                "the notebook does not answer",
            ),
        }
    }

    fn into_response(self) -> Response<Body> {
        let (status, reason, message) = self.parts();
        let text = serde_json::json!({ "reason": reason, "message": message }).to_string();
        let mut response = Response::new(Body::new(Full::new(Bytes::from(text))));
        *response.status_mut() = status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        response
            .headers_mut()
            .insert(REFUSED_HEADER, HeaderValue::from_static(reason));
        response
    }
}

async fn pass(
    node: &Arc<Node>,
    key: &Secret,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let life = find(node, key, request.headers())?;
    let peer = life.peer().ok_or(Refusal::NotReady)?;
    let upgrade = wanted_upgrade(&request);
    let downstream = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let mut response = peer
        .send(upstream_request(request, upgrade.as_ref()))
        .await
        .map_err(|error| {
            tracing::debug!(workload = %life.holder.workload, %error, "notebook unreachable");
            if life.is_over() {
                Refusal::OtherFence
            } else {
                Refusal::Unreachable
            }
        })?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let protocol = response.headers().get(header::UPGRADE).cloned();
    strip(response.headers_mut());
    if switched {
        let (Some(downstream), Some(protocol)) = (downstream, protocol) else {
            return Err(Refusal::Unreachable);
        };
        let upstream = hyper::upgrade::on(&mut response);
        node.runtime.tasks.spawn(
            "notebook-socket",
            join(
                node.runtime.tasks.token().clone(),
                life,
                downstream,
                upstream,
            ),
        );
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    Ok(response.map(Body::new))
}

/// The life that a request names.
fn find(node: &Node, key: &Secret, headers: &HeaderMap) -> Result<Arc<Life>, Refusal> {
    let given = headers.get(INTERNAL_KEY_HEADER).ok_or(Refusal::KeyWrong)?;
    if !key.matches(given.as_bytes()) {
        return Err(Refusal::KeyWrong);
    }
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let workload: WorkloadId = text(WORKLOAD_HEADER)
        .and_then(|text| text.parse().ok())
        .ok_or(Refusal::HeadersWrong)?;
    let fence: u64 = text(FENCE_HEADER)
        .and_then(|text| text.parse().ok())
        .ok_or(Refusal::HeadersWrong)?;
    let life = node.newest(workload).ok_or(Refusal::NoWorkload)?;
    if life.holder.fence != fence || life.is_over() {
        return Err(Refusal::OtherFence);
    }
    Ok(life)
}

/// The protocol that an HTTP/1.1 request wants to switch to.
fn wanted_upgrade(request: &Request<Incoming>) -> Option<HeaderValue> {
    let asks = request.version() == Version::HTTP_11
        && request
            .headers()
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    asks.then(|| request.headers().get(header::UPGRADE).cloned())?
}

fn upstream_request(
    mut request: Request<Incoming>,
    upgrade: Option<&HeaderValue>,
) -> Request<Incoming> {
    // HTTP/2 carries the host in the address; the notebook compares it with the origin.
    let authority = request.uri().authority().map(ToString::to_string);
    let headers = request.headers_mut();
    strip(headers);
    if !headers.contains_key(header::HOST)
        && let Some(host) = authority.and_then(|text| HeaderValue::try_from(text).ok())
    {
        headers.insert(header::HOST, host);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    *request.version_mut() = Version::HTTP_11;
    request
}

/// Removes what belongs to the connection or is between services.
fn strip(headers: &mut HeaderMap) {
    // A connection may name more headers that are for it alone.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let own: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(OWN_PREFIX))
        .cloned()
        .collect();
    for name in named.iter().chain(&own) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(*name);
    }
}

/// Passes bytes between two switched connections until one ends, the life is over, or the node stops.
async fn join(
    stop: tokio_util::sync::CancellationToken,
    life: Arc<Life>,
    downstream: OnUpgrade,
    upstream: OnUpgrade,
) {
    let copied = async {
        let (downstream, upstream) =
            tokio::try_join!(downstream, upstream).map_err(std::io::Error::other)?;
        tokio::io::copy_bidirectional(&mut TokioIo::new(downstream), &mut TokioIo::new(upstream))
            .await
    };
    tokio::select! {
        copied = copied => if let Err(error) = copied {
            tracing::debug!(workload = %life.holder.workload, %error, "a socket of the notebook ended");
        },
        () = life.over() => {}
        () = stop.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_between_services_and_of_the_connection_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, x-only-here"),
            ("keep-alive", "timeout=5"),
            ("x-only-here", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("cnlab-internal-key", "secret"),
            ("cnlab-workload-id", "srv_"),
            ("cnlab-caller-user-id", "usr_"),
            ("cookie", "_xsrf=1"),
            ("sec-websocket-protocol", "v1.kernel.websocket.jupyter.org"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        strip(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["cookie", "sec-websocket-protocol"]);
    }
}
