//! The HTTP/JSON API, derived from the protos: a route per method that carries the option
//! `cnlab.model.v1.http`.
//!
//! **Invariant**: no method, field or type is named here. What the API offers is what the
//! descriptors say, and a method without the option does not exist for the outside.

pub mod codec;
pub mod decode;
pub mod encode;
pub mod openapi;
pub mod sse;
pub mod table;
mod text;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tonic::{Status, metadata::MetadataMap};

use crate::{
    body::{Body, RequestBody, RequestBodyError},
    error::{GatewayError, problem_of_status},
    http_types::{Call, Response},
    transcode::{
        codec::BytesCodec,
        sse::EventStream,
        table::{Found, Rpc, Table},
    },
    upstream::Upstreams,
};

/// Answers one API request.
pub async fn answer(table: &Table, upstreams: &Upstreams, call: Call) -> Response {
    match transcode(table, upstreams, call).await {
        Ok(response) => response,
        Err(Failed::Here(error)) => error.into_problem(),
        Err(Failed::There(status)) => problem_of_status(&status),
    }
}

enum Failed {
    Here(GatewayError),
    There(Box<Status>),
}

impl From<GatewayError> for Failed {
    fn from(error: GatewayError) -> Self {
        Self::Here(error)
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::There(Box::new(status))
    }
}

async fn transcode(table: &Table, upstreams: &Upstreams, call: Call) -> Result<Response, Failed> {
    let (parts, body) = call.request.into_parts();
    let Found { rpc, variables } = table.find(&parts.method, parts.uri.path())?;
    crate::layers::trace::name_span(rpc.descriptor.name());
    let query = parts.uri.query().unwrap_or_default();
    let message = if rpc.takes_body {
        check_content_type(&parts.headers, &body)?;
        if !query.is_empty() {
            let name = query.split(['=', '&']).next().unwrap_or_default();
            return Err(decode::field(
                name,
                "query parameters are not taken here, the body holds every field",
            )
            .into());
        }
        decode::from_json(&rpc.input, &collect(body).await?, &variables)?
    } else {
        if !body.is_end_stream() {
            return Err(GatewayError::Malformed("this method takes no body").into());
        }
        decode::from_query(&rpc.input, query, &variables)?
    };
    let request = tonic::Request::from_parts(
        MetadataMap::from_headers(metadata(&parts.headers)),
        tonic::Extensions::default(),
        message,
    );
    let mut client = tonic::client::Grpc::new(upstreams.channel(rpc.upstream));
    client
        .ready()
        .await
        .map_err(|_| GatewayError::UpstreamUnavailable(rpc.upstream.name()))?;
    let path = rpc.path.clone();
    if rpc.streams {
        let answer = client.server_streaming(request, path, BytesCodec).await?;
        Ok(events(rpc, answer))
    } else {
        let answer = client.unary(request, path, BytesCodec).await?;
        json(rpc, answer)
    }
}

fn json(rpc: &Rpc, answer: tonic::Response<Bytes>) -> Result<Response, Failed> {
    let (metadata, message, _) = answer.into_parts();
    let mut text = BytesMut::with_capacity(message.len() * 4 + 64);
    encode::to_json(&rpc.output, message, &mut text).map_err(|error| {
        tracing::error!(method = %rpc.path, error, "an answer does not match its descriptor");
        GatewayError::Internal
    })?;
    let mut response = Response::new(Body::full(text.freeze()));
    api_headers(response.headers_mut(), &metadata, "application/json");
    Ok(response)
}

fn events(rpc: &Rpc, answer: tonic::Response<tonic::Streaming<Bytes>>) -> Response {
    let (metadata, stream, _) = answer.into_parts();
    let mut response = Response::new(Body::events(EventStream::new(stream, rpc.output.clone())));
    let headers = response.headers_mut();
    api_headers(headers, &metadata, "text/event-stream");
    // Proxies in front of us must not wait for more.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn api_headers(headers: &mut HeaderMap, metadata: &MetadataMap, content_type: &'static str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(trace) = metadata
        .as_ref()
        .get(cnlab_service::status::TRACE_ID_HEADER)
    {
        headers.insert(cnlab_service::status::TRACE_ID_HEADER, trace.clone());
    }
}

/// What of an HTTP request's head a service gets to see: who calls, the idempotency key and
/// the trace. Everything else means something to HTTP only.
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(8);
    for (name, value) in headers {
        let text = name.as_str();
        if text.starts_with(cnlab_service::caller::RESERVED_PREFIX)
            || text == cnlab_service::caller::IDEMPOTENCY_KEY
            || text == "traceparent"
            || text == "tracestate"
        {
            kept.append(name, value.clone());
        }
    }
    kept
}

fn check_content_type(headers: &HeaderMap, body: &RequestBody) -> Result<(), GatewayError> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = kind
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if essence.eq_ignore_ascii_case("application/json")
        || (body.is_end_stream() && essence.is_empty())
    {
        Ok(())
    } else {
        Err(GatewayError::NotJson)
    }
}

async fn collect(body: RequestBody) -> Result<Bytes, GatewayError> {
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(RequestBodyError::TooLarge { limit }) => Err(GatewayError::BodyTooLarge { limit }),
        Err(RequestBodyError::Stalled) => Err(GatewayError::BodyStalled),
        Err(RequestBodyError::Broken(_)) => Err(GatewayError::BodyBroken),
    }
}
