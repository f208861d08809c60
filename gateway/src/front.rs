//! The gateway's own few addresses: the landing page, health, and the redirect from a
//! printed address to the server's own origin.

use std::time::Duration;

use cnlab_model::id::ServerId;
use http::{HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery};
use prost::Message as _;
use tonic::Request;

use crate::{
    body::Body,
    http_types::{Call, Response},
    layers::admit::Hosts,
    page::{self, Page},
    transcode::codec::BytesCodec,
    upstream::{Upstream, Upstreams},
};

const READY_WITHIN: Duration = Duration::from_secs(2);

/// Answers what is neither the API's nor a notebook's.
#[derive(Debug)]
pub struct Front {
    hosts: Hosts,
    scheme: &'static str,
    upstreams: Upstreams,
}

impl Front {
    /// For these host names, under this scheme.
    #[must_use]
    pub const fn new(hosts: Hosts, scheme: &'static str, upstreams: Upstreams) -> Self {
        Self {
            hosts,
            scheme,
            upstreams,
        }
    }

    /// Answers a request.
    pub async fn answer(&self, call: &Call) -> Response {
        let uri = call.request.uri();
        if !matches!(*call.request.method(), Method::GET | Method::HEAD) {
            let mut response =
                page::plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is possible here");
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match uri.path() {
            "/" => landing(),
            page::STYLE_PATH => page::style(),
            "/healthz" => page::plain(StatusCode::OK, "ok"),
            "/readyz" => self.ready().await,
            _ => {
                let host = call
                    .request
                    .headers()
                    .get(header::HOST)
                    .and_then(|host| host.to_str().ok());
                self.redirect(uri, host.unwrap_or_default())
                    .unwrap_or_else(missing)
            }
        }
    }

    /// From `/srv_…[/path]` to the server's own origin, on the port that was asked.
    fn redirect(&self, uri: &Uri, host: &str) -> Option<Response> {
        let path = uri.path().strip_prefix('/')?;
        let (id, rest) = path
            .find('/')
            .map_or((path, ""), |slash| path.split_at(slash));
        let server: ServerId = id.parse().ok()?;
        let rest = if rest.is_empty() { "/" } else { rest };
        let query = uri
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        let port = host
            .rsplit_once(':')
            .map(|(_, port)| port)
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let to = format!(
            "{}://{}{port}{rest}{query}",
            self.scheme,
            self.hosts.of_server(server)
        );
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::FOUND;
        response
            .headers_mut()
            .insert(header::LOCATION, HeaderValue::try_from(to).ok()?);
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }

    /// Whether the services behind answer.
    async fn ready(&self) -> Response {
        for upstream in [Upstream::Scheduler, Upstream::Billing] {
            let name = upstream.name();
            let problem = match self.health(upstream).await {
                Some(SERVING) => continue,
                // A scheduler that stands by answers, and does nothing else.
                Some(_) => format!("{name} does not serve at present"),
                None => format!("{name} does not answer"),
            };
            return page::plain(StatusCode::SERVICE_UNAVAILABLE, problem);
        }
        page::plain(StatusCode::OK, "ready")
    }

    /// What a service says of its own health; `None` where it says nothing.
    async fn health(&self, upstream: Upstream) -> Option<i32> {
        let question = HealthQuestion {
            service: upstream.name().to_owned(),
        };
        let check = async {
            let mut client = tonic::client::Grpc::new(self.upstreams.channel(upstream));
            client
                .ready()
                .await
                .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
            client
                .unary(
                    Request::new(question.encode_to_vec().into()),
                    path,
                    BytesCodec,
                )
                .await
        };
        let answer = tokio::time::timeout(READY_WITHIN, check).await.ok()?.ok()?;
        let health = HealthAnswer::decode(answer.into_inner()).ok()?;
        Some(health.status)
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthQuestion {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`; its status is an open enum.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthAnswer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SERVING` of `grpc.health.v1`.
const SERVING: i32 = 1;

fn landing() -> Response {
    Page::new(StatusCode::OK, "CNLab")
        .on_own_host()
        .text("CNLab shares the GPUs of your machines: a notebook on a slice of one, in a minute. You work from the terminal.")
        .text("See what there is, and start a server:")
        .command("cnlab profiles list\ncnlab server create --name first-experiment --image pytorch:2.4-cuda12.4 --profile h100-25pct --storage 50gb")
        .text("Open it in this browser, and stop it when you are done:")
        .command("cnlab server open first-experiment\ncnlab server stop first-experiment")
        .text("The same is possible over HTTP with a token: see /v1/openapi.json.")
        .into_response()
}

fn missing() -> Response {
    Page::new(StatusCode::NOT_FOUND, "There is no such page")
        .on_own_host()
        .text("The addresses of your servers are listed by:")
        .command("cnlab server list")
        .into_response()
}
