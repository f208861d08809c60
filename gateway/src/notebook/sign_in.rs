//! From a single-use code to a session cookie.
//!
//! **Invariant**: a code travels behind the `#` of the link and in the body of one POST. It
//! is in no path and no query, and no GET uses it up: link previews and prefetches are
//! harmless.

use cnlab_model::{Timestamp, id::ServerId};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde::Deserialize;

use crate::{
    body::{Body, RequestBody},
    error::GatewayError,
    http_types::Response,
    notebook::{Asks, cookie, sessions::SessionTable},
    page::{self, Page},
    ports::PortError,
};

/// A code and the JSON around it.
const LONGEST_BODY: u64 = 4096;
/// How long it may take to arrive.
const LONGEST_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

/// What a visitor without a session is told. Nothing of the server is looked up for him, so
/// he does not even learn whether there is one.
pub(super) fn needed(server: ServerId, asks: Asks) -> Response {
    match asks {
        Asks::Page => Page::new(StatusCode::UNAUTHORIZED, "Sign in to this server")
            .text("Only its owner gets in. Make a link that signs this browser in:")
            .command(&format!("cnlab server open {server}"))
            .text("The link works once, within a minute. The server's name will do as well as its id.")
            .into_response(),
        Asks::Data | Asks::WebSocket => {
            page::plain(StatusCode::UNAUTHORIZED, format!("not signed in: run cnlab server open {server}"))
        }
    }
}

/// The page behind the link. Its script posts the code.
pub(super) fn page() -> Response {
    Page::new(StatusCode::OK, "Opening your server")
        .live_text("status", "Signing in…")
        .script()
        .into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Posted {
    code: String,
}

/// Uses a code up and answers with the cookie.
pub(super) async fn redeem(
    sessions: &SessionTable,
    now: Timestamp,
    server: ServerId,
    request: Request<RequestBody>,
) -> Result<Response, GatewayError> {
    let (parts, mut body) = request.into_parts();
    // A form of another site cannot send this type.
    let is_json = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        kind.to_str().is_ok_and(|text| {
            text.split(';')
                .next()
                .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
        })
    });
    if !is_json {
        return Err(GatewayError::NotJson);
    }
    body.limit(LONGEST_BODY);
    // Nobody has signed in here yet: a body that trickles in must not hold a place for hours.
    let posted = tokio::time::timeout(LONGEST_WAIT, body.collect())
        .await
        .map_err(|_| GatewayError::DeadlineExceeded)?
        .map_err(|_| GatewayError::BodyTooLarge {
            limit: LONGEST_BODY,
        })?
        .to_bytes();
    let posted: Posted =
        serde_json::from_slice(&posted).map_err(|error| GatewayError::Syntax(error.to_string()))?;
    let session = match sessions.redeem(&posted.code, server).await {
        Ok(session) => session,
        Err(PortError::Refused) => return Err(GatewayError::CodeInvalid),
        Err(PortError::Unavailable) => {
            return Err(GatewayError::UpstreamUnavailable("billing-svc"));
        }
    };
    let max_age = session.expires_at.map(|end| end.since(now).as_secs());
    let cookie = cookie::set(&session.secret, max_age).ok_or(GatewayError::Internal)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(header::SET_COOKIE, cookie);
    headers.insert(header::LOCATION, HeaderValue::from_static("/lab"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
