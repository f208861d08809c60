//! gRPC from the command line tool, passed on by method name.
//!
//! Only methods of the route table are public. Messages are neither read nor collected, and
//! trailers arrive as they were sent.

use http::{HeaderMap, Request};
use tonic::{Code, Status};
use tower::{Service as _, ServiceExt as _};

use crate::{
    body::Body,
    error::GatewayError,
    http_types::{Call, Response, remove_where},
    transcode::table::Table,
    upstream::Upstreams,
};

/// Passes one call on.
pub async fn answer(table: &Table, upstreams: &Upstreams, call: Call) -> Response {
    let (mut parts, body) = call.request.into_parts();
    let Some(rpc) = table.by_grpc_path(parts.uri.path()) else {
        let path = parts.uri.path().chars().take(200).collect();
        return GatewayError::NotPublic(path).into_grpc();
    };
    remove_hop_by_hop(&mut parts.headers);
    let mut request = Request::new(tonic::body::Body::new(body));
    *request.method_mut() = parts.method;
    *request.uri_mut() = rpc.path.clone().into();
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = parts.headers;
    let mut channel = upstreams.channel(rpc.upstream);
    let answer = match channel.ready().await {
        Ok(channel) => channel.call(request).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(answer) => {
            let mut answer = answer.map(|body| Body::grpc(tonic::body::Body::new(body)));
            remove_hop_by_hop(answer.headers_mut());
            answer
        }
        Err(error) => {
            let status = Status::from_error(error.into());
            tracing::debug!(upstream = rpc.upstream.name(), %status, "a call could not be passed on");
            match status.code() {
                Code::DeadlineExceeded | Code::Cancelled => GatewayError::DeadlineExceeded,
                _ => GatewayError::UpstreamUnavailable(rpc.upstream.name()),
            }
            .into_grpc()
        }
    }
}

/// What belongs to one connection and not to the message. `te: trailers` stays, gRPC asks
/// for it.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    remove_where(headers, |name| {
        matches!(
            name,
            "connection"
                | "host"
                | "upgrade"
                | "transfer-encoding"
                | "authorization"
                | "cookie"
                | "keep-alive"
                | "proxy-connection"
        )
    });
}
