//! The notebook proxy: one web origin per server, open to its owner alone.
//!
//! ```text
//! browser ─▶ cookie ─▶ session (≤ 4 s old) ─▶ route (≤ 2 s old) ─▶ owner? ─▶ ready? ─▶ node
//! ```
//!
//! **Invariants**: without a valid session of the owner nothing is asked of the node; the
//! session never reaches the notebook; a sign-in code is used up by the POST only.

pub mod cookie;
mod headers;
pub mod pool;
pub mod routes;
pub mod sessions;
mod sign_in;
pub mod tunnel;

use std::sync::Arc;

use cnlab_model::id::ServerId;
use cnlab_service::runtime::Clock;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response as HttpResponse, StatusCode, Uri, Version,
    header,
};
use http_body::Body as _;

use crate::{
    body::{Body, RequestBody, RequestBodyError},
    error::GatewayError,
    http_types::{Call, Response},
    notebook::{
        pool::{PooledBody, Pools, SendError},
        routes::{Route, RouteTable},
        sessions::SessionTable,
        tunnel::{Right, Tunnels},
    },
    page::{self, Page},
    ports::PortError,
};

/// Paths of a server's origin that are ours and never the notebook's.
const OWN_PREFIX: &str = "/_cnlab/";
/// How often a page that waits for its server looks again, in seconds.
const LOOK_AGAIN: u32 = 2;

/// The notebook proxy.
#[derive(Debug)]
pub struct Notebooks {
    routes: Arc<RouteTable>,
    pools: Pools,
    sessions: Arc<SessionTable>,
    tunnels: Tunnels,
    clock: ClockHandle,
    /// The scheme that browsers use, `http` or `https`.
    scheme: HeaderValue,
    /// Makes the node believe what we say of workload and fence.
    key: HeaderValue,
}

struct ClockHandle(Arc<dyn Clock>);

impl std::fmt::Debug for ClockHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Notebooks {
    /// A proxy over these.
    #[must_use]
    pub fn new(
        routes: Arc<RouteTable>,
        pools: Pools,
        sessions: Arc<SessionTable>,
        tunnels: Tunnels,
        clock: Arc<dyn Clock>,
        scheme: HeaderValue,
        key: HeaderValue,
    ) -> Self {
        Self {
            routes,
            pools,
            sessions,
            tunnels,
            clock: ClockHandle(clock),
            scheme,
            key,
        }
    }

    /// Answers a request to a server's origin.
    pub async fn answer(&self, server: ServerId, call: Call) -> Response {
        if call.request.uri().path().starts_with(OWN_PREFIX) {
            return self.own(server, call).await;
        }
        let asks = Asks::of(call.request.method(), call.request.headers());
        let Some(session) = cookie::session(call.request.headers()) else {
            return sign_in::needed(server, asks);
        };
        if !self.may_come_from(&call.request) {
            return page::plain(
                StatusCode::FORBIDDEN,
                GatewayError::ForeignOrigin.to_string(),
            );
        }
        let user = match self.sessions.check(session, server).await {
            Ok(user) => user,
            Err(PortError::Refused) => return sign_in::needed(server, asks),
            Err(PortError::Unavailable) => {
                return away(asks, "CNLab cannot check who you are right now.");
            }
        };
        let route = match self.routes.find(server).await {
            Ok(route) => route,
            Err(PortError::Refused) => return gone(asks),
            Err(PortError::Unavailable) => {
                return away(asks, "CNLab cannot find this server right now.");
            }
        };
        if route.owner != user {
            return sign_in::needed(server, asks);
        }
        if route.target.is_none() {
            return not_ready(asks, &route);
        }
        if asks == Asks::WebSocket {
            let right = Right {
                session: session.to_owned(),
                server,
                owner: user,
            };
            return self.websocket(route, call.request, right).await;
        }
        match self.send(server, route, call.request, asks).await {
            Ok(answer) => to_browser(answer),
            Err(response) => response,
        }
    }

    /// Our own pages on a server's origin.
    async fn own(&self, server: ServerId, call: Call) -> Response {
        let path = call.request.uri().path();
        let method = call.request.method();
        let reads = matches!(*method, Method::GET | Method::HEAD);
        match path {
            page::NOTEBOOK_STYLE_PATH if reads => page::style(),
            page::SCRIPT_PATH if reads => page::open_script(),
            "/_cnlab/open" if reads => sign_in::page(),
            "/_cnlab/session" if *method == Method::POST => {
                if !self.is_own_origin(call.request.headers()) {
                    return GatewayError::ForeignOrigin.into_problem();
                }
                sign_in::redeem(&self.sessions, self.clock.0.now(), server, call.request)
                    .await
                    .unwrap_or_else(GatewayError::into_problem)
            }
            "/_cnlab/session" => GatewayError::MethodNotAllowed {
                method: method.clone(),
                allowed: vec![Method::POST],
            }
            .into_problem(),
            _ => page::plain(StatusCode::NOT_FOUND, "there is no such page"),
        }
    }

    /// Whether the page that asks is of this very origin, as the browser says.
    fn is_own_origin(&self, headers: &HeaderMap) -> bool {
        let (Some(origin), Some(host)) = (headers.get(header::ORIGIN), headers.get(header::HOST))
        else {
            return false;
        };
        origin
            .as_bytes()
            .strip_prefix(self.scheme.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"://"))
            .is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_bytes()))
    }

    /// Whether the page that asks may ask with this browser's session. Other servers' pages
    /// can be of the same *site*, so the cookie's own protection does not hold them back:
    /// from outside one may come here by a link, and that is all.
    fn may_come_from(&self, request: &Request<RequestBody>) -> bool {
        let (method, headers) = (request.method(), request.headers());
        if headers::is_websocket(method, headers) {
            // Browsers disagree on what else they say here; they all say the origin.
            return self.is_own_origin(headers);
        }
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        if !reads && headers.contains_key(header::ORIGIN) && !self.is_own_origin(headers) {
            return false;
        }
        let says = |name| headers.get(name).map(HeaderValue::as_bytes);
        match says("sec-fetch-site") {
            None | Some(b"same-origin" | b"none") => true,
            Some(_) => {
                reads
                    && says("sec-fetch-mode") == Some(b"navigate")
                    && matches!(says("sec-fetch-dest"), None | Some(b"document"))
            }
        }
    }

    /// Sends a request to the node. When the route leads nowhere, it is asked for again.
    async fn send(
        &self,
        server: ServerId,
        mut route: Arc<Route>,
        request: Request<RequestBody>,
        asks: Asks,
    ) -> Result<HttpResponse<PooledBody>, Response> {
        let mut request = self.for_node(request, asks);
        let mut again = true;
        loop {
            let Some(target) = &route.target else {
                return Err(not_ready(asks, &route));
            };
            let Some(pool) = self.pools.to(&target.endpoint) else {
                return Err(away(asks, "This server's node does not answer."));
            };
            headers::address(request.headers_mut(), target);
            match pool.send(request).await {
                Ok(answer) if answer.headers().contains_key(headers::REFUSED) => {
                    // The node runs another workload there, or another life of this one.
                    let reason = answer.headers().get(headers::REFUSED);
                    tracing::info!(%server, ?reason, "a node refused a notebook request");
                    self.routes.forget(server);
                    return Err(away(asks, "This server has just moved."));
                }
                Ok(answer) => return Ok(answer),
                Err(SendError::NotSent(unsent, error)) if again => {
                    tracing::debug!(%server, %error, "the route is asked for again");
                    again = false;
                    request = *unsent;
                    route = self
                        .routes
                        .find_again(server)
                        .await
                        .map_err(|_| away(asks, "This server's node does not answer."))?;
                }
                Err(SendError::Broken(error)) if error.is_user() => {
                    // The browser's own body ended early: that says nothing of the node.
                    return Err(body_fault(&error).into_problem());
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "a notebook request failed");
                    self.routes.forget(server);
                    return Err(away(asks, "This server's node does not answer."));
                }
            }
        }
    }

    fn for_node(&self, request: Request<RequestBody>, asks: Asks) -> Request<RequestBody> {
        let (mut parts, body) = request.into_parts();
        headers::to_node(
            &mut parts.headers,
            &self.scheme,
            &self.key,
            asks == Asks::WebSocket,
        );
        parts.version = Version::HTTP_11;
        if parts.uri.authority().is_some() {
            // From HTTP/2 or a proxy: to the node it is a path like any other.
            parts.uri = parts
                .uri
                .path_and_query()
                .map_or_else(Uri::default, |path| Uri::from(path.clone()));
        }
        Request::from_parts(parts, body)
    }

    async fn websocket(
        &self,
        route: Arc<Route>,
        mut request: Request<RequestBody>,
        right: Right,
    ) -> Response {
        if !request.body().is_end_stream() {
            return page::plain(StatusCode::BAD_REQUEST, "a websocket begins without a body");
        }
        let browser = hyper::upgrade::on(&mut request);
        let mut answer = match self
            .send(right.server, route, request, Asks::WebSocket)
            .await
        {
            Ok(answer) => answer,
            Err(response) => return response,
        };
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return to_browser(answer);
        }
        let node = hyper::upgrade::on(&mut answer);
        self.tunnels.open(browser, node, right);
        let (mut parts, _) = answer.into_parts();
        headers::to_browser(&mut parts.headers, parts.status);
        Response::from_parts(parts, Body::empty())
    }
}

/// What was wrong with the browser's body.
fn body_fault(error: &(dyn std::error::Error + 'static)) -> GatewayError {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref() {
            Some(RequestBodyError::Stalled) => return GatewayError::BodyStalled,
            Some(RequestBodyError::TooLarge { limit }) => {
                return GatewayError::BodyTooLarge { limit: *limit };
            }
            Some(RequestBodyError::Broken(_)) => return GatewayError::BodyBroken,
            None => next = error.source(),
        }
    }
    GatewayError::BodyBroken
}

fn to_browser(answer: HttpResponse<PooledBody>) -> Response {
    if answer.status().is_informational() {
        // Nobody asked the node to change protocols.
        return page::plain(
            StatusCode::BAD_GATEWAY,
            "the notebook gave an answer that was not asked for",
        );
    }
    let (mut parts, body) = answer.into_parts();
    headers::to_browser(&mut parts.headers, parts.status);
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Body::notebook(body))
}

/// What a request expects, as far as refusals are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// A person's browser, which shows what comes.
    Page,
    /// A script.
    Data,
    /// A WebSocket.
    WebSocket,
}

impl Asks {
    fn of(method: &Method, headers: &HeaderMap) -> Self {
        if headers::is_websocket(method, headers) {
            return Self::WebSocket;
        }
        let navigates = headers.get("sec-fetch-mode").map_or_else(
            || {
                headers.get(header::ACCEPT).is_some_and(|kinds| {
                    kinds.to_str().is_ok_and(|text| text.contains("text/html"))
                })
            },
            |mode| mode == "navigate",
        );
        if navigates && matches!(*method, Method::GET | Method::HEAD) {
            Self::Page
        } else {
            Self::Data
        }
    }
}

fn not_ready(asks: Asks, route: &Route) -> Response {
    let state = if route.state_text.is_empty() {
        "This server is not running."
    } else {
        &route.state_text
    };
    match asks {
        Asks::Page => Page::new(StatusCode::SERVICE_UNAVAILABLE, "Not ready yet")
            .live_text("state", state)
            .text("This page looks again by itself.")
            .refresh(LOOK_AGAIN)
            .into_response(),
        Asks::Data | Asks::WebSocket => later(page::plain(StatusCode::SERVICE_UNAVAILABLE, state)),
    }
}

fn away(asks: Asks, why: &str) -> Response {
    match asks {
        Asks::Page => Page::new(StatusCode::SERVICE_UNAVAILABLE, "One moment")
            .live_text("state", why)
            .text("This page looks again by itself.")
            .refresh(LOOK_AGAIN)
            .into_response(),
        Asks::Data | Asks::WebSocket => later(page::plain(StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

fn later(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(LOOK_AGAIN));
    response
}

fn gone(asks: Asks) -> Response {
    let text = "This server was deleted.";
    match asks {
        Asks::Page => Page::new(StatusCode::NOT_FOUND, "No such server")
            .text(text)
            .text("See which ones you have:")
            .command("cnlab server list")
            .into_response(),
        Asks::Data | Asks::WebSocket => page::plain(StatusCode::NOT_FOUND, text),
    }
}
