//! What of a head goes on to a notebook, and what of a notebook's head goes back.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::{
    http_types::remove_where,
    notebook::{cookie, routes::Target},
};

/// Names the workload to the node.
/// How every credential of ours begins.
const TOKEN_PREFIX: &[u8] = b"cnl_";
const WORKLOAD: HeaderName = HeaderName::from_static("cnlab-workload-id");
/// Names the fence to the node.
const FENCE: HeaderName = HeaderName::from_static("cnlab-fence");
const INTERNAL_KEY: HeaderName =
    HeaderName::from_static(cnlab_service::channel::INTERNAL_KEY_HEADER);
/// A node's own refusal carries it; a notebook's answer cannot.
pub(super) const REFUSED: HeaderName = HeaderName::from_static("cnlab-refused");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Meant for one connection, or said by us and nobody else.
fn is_not_passed(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "keep-alive"
            | "proxy-connection"
            | "http2-settings"
            | "forwarded"
            | "x-forwarded-for"
            | "x-forwarded-host"
            | "x-real-ip"
            | "expect"
    )
}

/// Whether a request asks for a WebSocket.
pub(super) fn is_websocket(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::GET
        && headers
            .get(header::UPGRADE)
            .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && headers
            .get_all(header::CONNECTION)
            .iter()
            .any(|value| has_token(value, "upgrade"))
}

fn has_token(value: &HeaderValue, token: &str) -> bool {
    value.to_str().is_ok_and(|text| {
        text.split(',')
            .any(|part| part.trim().eq_ignore_ascii_case(token))
    })
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // Nobody may have these dropped by naming them here.
            .filter(|name| {
                !matches!(
                    *name,
                    header::HOST | header::COOKIE | header::ORIGIN | header::CONTENT_LENGTH
                )
            })
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    remove_where(headers, is_not_passed);
}

/// Makes a browser's head one for the node.
pub(super) fn to_node(
    headers: &mut HeaderMap,
    scheme: &HeaderValue,
    key: &HeaderValue,
    websocket: bool,
) {
    remove_hop_by_hop(headers);
    cookie::strip_request(headers);
    strip_tokens(headers);
    headers.insert(FORWARDED_PROTO, scheme.clone());
    headers.insert(INTERNAL_KEY, key.clone());
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, WEBSOCKET);
    }
}

/// A token of ours has no business on a server's origin: whoever sends it there by mistake
/// shall not hand it to what runs on the server. Any other authorization is the notebook's own.
fn strip_tokens(headers: &mut HeaderMap) {
    let holds_ours = |value: &HeaderValue| {
        value
            .as_bytes()
            .windows(TOKEN_PREFIX.len())
            .any(|part| part == TOKEN_PREFIX)
    };
    if headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .any(holds_ours)
    {
        headers.remove(header::AUTHORIZATION);
    }
}

/// Addresses a head to a workload.
pub(super) fn address(headers: &mut HeaderMap, target: &Target) {
    headers.insert(WORKLOAD, target.workload.clone());
    headers.insert(FENCE, target.fence.clone());
}

/// Makes a notebook's head one for the browser.
pub(super) fn to_browser(headers: &mut HeaderMap, status: StatusCode) {
    remove_hop_by_hop(headers);
    cookie::strip_response(headers);
    remove_where(headers, |name| {
        name.starts_with(cnlab_service::caller::RESERVED_PREFIX)
    });
    if status == StatusCode::SWITCHING_PROTOCOLS {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, WEBSOCKET);
        return;
    }
    headers
        .entry(header::X_CONTENT_TYPE_OPTIONS)
        .or_insert(HeaderValue::from_static("nosniff"));
    let says_who_frames = headers
        .get_all(header::CONTENT_SECURITY_POLICY)
        .iter()
        .any(|policy| {
            policy
                .to_str()
                .is_ok_and(|text| text.contains("frame-ancestors"))
        });
    if !says_who_frames {
        // Appended: a policy that is there goes on to hold.
        headers.append(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("frame-ancestors 'self'"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .fold(HeaderMap::new(), |mut all, (name, value)| {
                all.append(name, value);
                all
            })
    }

    #[test]
    fn what_belongs_to_one_connection_stays_there() {
        let mut all = headers(&[
            ("host", "srv-x.localhost"),
            ("connection", "keep-alive, X-Once, Cookie"),
            ("x-once", "1"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAA"),
            ("x-forwarded-for", "1.2.3.4"),
            ("cookie", "__Host-cnlab=s; a=1"),
            ("authorization", "token app"),
            ("origin", "http://srv-x.localhost"),
        ]);
        to_node(
            &mut all,
            &HeaderValue::from_static("http"),
            &HeaderValue::from_static("key"),
            false,
        );
        let mut left: Vec<_> = all
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "authorization: token app",
                "cnlab-internal-key: key",
                "cookie: a=1",
                "host: srv-x.localhost",
                "origin: http://srv-x.localhost",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn answers_say_who_may_frame_them() {
        let mut plain = headers(&[("connection", "close"), ("cnlab-x", "1")]);
        to_browser(&mut plain, StatusCode::OK);
        assert_eq!(
            plain[header::CONTENT_SECURITY_POLICY],
            "frame-ancestors 'self'"
        );
        assert_eq!(plain[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(plain.len(), 2);
        let mut own = headers(&[("content-security-policy", "frame-ancestors 'none'")]);
        to_browser(&mut own, StatusCode::OK);
        assert_eq!(
            own.get_all(header::CONTENT_SECURITY_POLICY).iter().count(),
            1
        );
        let mut other = headers(&[("content-security-policy", "sandbox")]);
        to_browser(&mut other, StatusCode::OK);
        assert_eq!(
            other
                .get_all(header::CONTENT_SECURITY_POLICY)
                .iter()
                .count(),
            2
        );
    }

    #[test]
    fn only_websockets_are_upgrades() {
        let asks = |upgrade, connection| {
            is_websocket(
                &Method::GET,
                &headers(&[("upgrade", upgrade), ("connection", connection)]),
            )
        };
        assert!(asks("WebSocket", "keep-alive, Upgrade"));
        assert!(!asks("h2c", "upgrade"));
        assert!(!asks("websocket", "close"));
        assert!(!is_websocket(
            &Method::POST,
            &headers(&[("upgrade", "websocket"), ("connection", "upgrade")])
        ));
    }
}
