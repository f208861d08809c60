//! The first look at a request: refuses what two parsers could read in two ways, removes
//! what only services of ours may say, and finds out whose it is.
//!
//! **Invariant**: what comes out of here has exactly one host, which every later decision
//! uses, no header with a reserved or ambiguous name, and a path without dot segments.

use std::net::IpAddr;

use cnlab_model::id::{ServerId, origins_domain};
use cnlab_service::caller::RESERVED_PREFIX;
use http::{HeaderMap, HeaderValue, Method, Request, Version, header};

use crate::{
    body::RequestBody,
    error::GatewayError,
    http_types::{Call, Site, remove_where},
};

/// Which host names belong to whom.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// With a leading dot, lower case.
    suffix: String,
}

impl Hosts {
    /// Server origins are `srv-….nb.<domain>`, on one machine `srv-….localhost`.
    #[must_use]
    pub fn new(domain: &str) -> Self {
        Self {
            suffix: format!(".{}", origins_domain(&domain.to_ascii_lowercase())),
        }
    }

    /// The host name of a server's own origin.
    #[must_use]
    pub fn of_server(&self, server: ServerId) -> String {
        format!("{}{}", server.host_label(), self.suffix)
    }

    /// The server whose origin this host is; `None` for the gateway's own hosts.
    fn server(&self, host: &str) -> Result<Option<ServerId>, GatewayError> {
        let name = without_port(host)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        let Some(label) = name.len().checked_sub(self.suffix.len()).and_then(|at| {
            let (label, suffix) = name.split_at_checked(at)?;
            suffix.eq_ignore_ascii_case(&self.suffix).then_some(label)
        }) else {
            return Ok(None);
        };
        match ServerId::from_host_label(label) {
            Some(server) => Ok(Some(server)),
            // Such a name can only be a mistyped server: no page of ours lives there.
            None if label
                .get(..4)
                .is_some_and(|start| start.eq_ignore_ascii_case("srv-")) =>
            {
                Err(GatewayError::UnknownHost)
            }
            None => Ok(None),
        }
    }
}

/// The name of `name[:port]`, where both are of the plain form that cannot be misread.
fn without_port(host: &str) -> Result<&str, GatewayError> {
    const WRONG: GatewayError = GatewayError::Malformed("a host that is none");
    let (name, port) = match host.rfind(':') {
        // An IPv6 literal holds colons inside its brackets.
        Some(colon) if !host.ends_with(']') => (&host[..colon], Some(&host[colon + 1..])),
        _ => (host, None),
    };
    let literal = name.starts_with('[') && name.ends_with(']');
    let plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_')
            || (literal && matches!(byte, b':' | b'[' | b']'))
    };
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(WRONG);
    }
    if port.is_some_and(|port| {
        port.is_empty() || port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit())
    }) {
        return Err(WRONG);
    }
    Ok(name)
}

/// What the first look needs to know.
#[derive(Debug, Clone)]
pub struct Admission {
    /// Whose hosts are whose.
    pub hosts: Hosts,
    /// Bytes of header fields.
    pub head_bytes: usize,
    /// How long a client's body may pause.
    pub body_idle: std::time::Duration,
}

impl Admission {
    /// Looks at a request.
    ///
    /// # Errors
    /// With the site in whose words to refuse.
    pub fn admit(
        &self,
        request: Request<hyper::body::Incoming>,
        peer: IpAddr,
    ) -> Result<Call, (Site, GatewayError)> {
        let mut request = request.map(|body| RequestBody::new(body, self.body_idle));
        match self.look(&mut request) {
            Ok(site) => Ok(Call {
                request,
                peer,
                site,
            }),
            Err(error) => {
                let site = if is_grpc(request.headers()) {
                    Site::Grpc
                } else {
                    Site::Front
                };
                Err((site, error))
            }
        }
    }

    fn look<B>(&self, request: &mut Request<B>) -> Result<Site, GatewayError> {
        self.clean(request.headers_mut())?;
        one_host(request)?;
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Err(GatewayError::MethodNotAllowed {
                method: request.method().clone(),
                allowed: vec![
                    Method::GET,
                    Method::HEAD,
                    Method::POST,
                    Method::PUT,
                    Method::PATCH,
                    Method::DELETE,
                ],
            });
        }
        check_path(request.uri().path())?;
        let headers = request.headers();
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default();
        let path = request.uri().path();
        let server = self.hosts.server(host)?;
        Ok(match server {
            Some(server) => Site::Notebook(server),
            None if is_grpc(headers) => Site::Grpc,
            None if path == "/v1" || path.starts_with("/v1/") => Site::Api,
            None => Site::Front,
        })
    }

    /// Bounds the header fields and removes the names that clients must not use. A name
    /// with an underscore is one for some programs what a dash is for others.
    fn clean(&self, headers: &mut HeaderMap) -> Result<(), GatewayError> {
        let mut bytes = 0;
        let mut barred = false;
        for (name, value) in &*headers {
            bytes += name.as_str().len() + value.len() + 4;
            barred |= is_barred(name.as_str());
        }
        if bytes > self.head_bytes {
            return Err(GatewayError::HeadTooLarge {
                limit: self.head_bytes,
            });
        }
        if barred {
            remove_where(headers, is_barred);
        }
        Ok(())
    }
}

fn is_barred(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX) || name.contains('_')
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Makes sure of one host, whether it came as `Host`, as `:authority` or in the target.
fn one_host<B>(request: &mut Request<B>) -> Result<(), GatewayError> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(GatewayError::Malformed("more than one host"));
    }
    match (host, request.uri().authority()) {
        (Some(host), Some(authority))
            if !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            Err(GatewayError::Malformed(
                "a host that differs from the target's",
            ))
        }
        (Some(_), _) => Ok(()),
        (None, Some(authority)) => {
            let host = HeaderValue::from_str(authority.as_str())
                .map_err(|_| GatewayError::Malformed("a host that is none"))?;
            request.headers_mut().insert(header::HOST, host);
            Ok(())
        }
        (None, None) if request.version() == Version::HTTP_10 => {
            request
                .headers_mut()
                .insert(header::HOST, HeaderValue::from_static("localhost"));
            Ok(())
        }
        (None, None) => Err(GatewayError::Malformed("no host")),
    }
}

/// Refuses paths that somebody behind could read as another path. An escaped slash is no
/// separator for us and passes as the data that it is.
fn check_path(path: &str) -> Result<(), GatewayError> {
    if !path.starts_with('/') {
        return Err(GatewayError::Malformed("a target that is no path"));
    }
    if path
        .bytes()
        .any(|byte| byte == b'\\' || byte < 0x21 || byte == 0x7f)
    {
        return Err(GatewayError::Malformed(
            "a path with a backslash or control character",
        ));
    }
    // Nearly every path ends here.
    if !path.contains('%') && !path.contains("/.") {
        return Ok(());
    }
    for segment in path.split('/') {
        if is_dots(segment) {
            return Err(GatewayError::Malformed("a path with dot segments"));
        }
    }
    let bytes = path.as_bytes();
    if bytes
        .windows(3)
        .any(|escape| matches!(escape, b"%00") || escape.eq_ignore_ascii_case(b"%5c"))
    {
        return Err(GatewayError::Malformed(
            "a path with an escaped backslash or zero",
        ));
    }
    Ok(())
}

/// Whether a segment is `.` or `..` in any spelling, also after an escaped slash.
fn is_dots(segment: &str) -> bool {
    let mut rest = segment.as_bytes();
    let mut dots = 0;
    loop {
        match rest {
            [] => return (1..=2).contains(&dots),
            [b'.', tail @ ..] => {
                dots += 1;
                rest = tail;
            }
            [b'%', b'2', b'e' | b'E', tail @ ..] => {
                dots += 1;
                rest = tail;
            }
            [b'%', b'2', b'f' | b'F', tail @ ..] => {
                if (1..=2).contains(&dots) {
                    return true;
                }
                dots = 0;
                rest = tail;
            }
            [_, tail @ ..] => {
                // No dot segment can begin before the next separator.
                match tail
                    .windows(3)
                    .position(|escape| escape.eq_ignore_ascii_case(b"%2f"))
                {
                    Some(at) => {
                        rest = &tail[at + 3..];
                        dots = 0;
                    }
                    None => return false,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn admission() -> Admission {
        Admission {
            hosts: Hosts::new("localhost"),
            head_bytes: 16 * 1024,
            body_idle: std::time::Duration::from_secs(60),
        }
    }

    fn request(uri: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn look(uri: &str, headers: &[(&'static str, &str)]) -> Result<Site, GatewayError> {
        admission().look(&mut request(uri, headers))
    }

    #[test]
    fn hosts_and_paths_say_whose_a_request_is() {
        let id = ServerId::from_ulid(cnlab_model::id::Ulid(7));
        let own = admission().hosts.of_server(id);
        for host in [
            own.clone(),
            format!("{own}:8080"),
            own.to_uppercase(),
            format!("{own}."),
        ] {
            assert_eq!(
                look("/v1/x", &[("host", &host)]),
                Ok(Site::Notebook(id)),
                "{host}"
            );
        }
        assert_eq!(look("/v1/x", &[("host", "localhost:8080")]), Ok(Site::Api));
        assert_eq!(look("/v1", &[("host", "127.0.0.1")]), Ok(Site::Api));
        assert_eq!(look("/v1x", &[("host", "[::1]:80")]), Ok(Site::Front));
        assert_eq!(look("/", &[("host", "nb.localhost")]), Ok(Site::Front));
        let grpc = [("host", "x"), ("content-type", "application/grpc+proto")];
        assert_eq!(look("/a/b", &grpc), Ok(Site::Grpc));
        assert_eq!(
            look(
                "/a/b",
                &[("host", "x"), ("content-type", "application/grpc-web")]
            ),
            Ok(Site::Front)
        );
        assert_eq!(
            look("/", &[("host", "srv-nonsense.localhost")]),
            Err(GatewayError::UnknownHost)
        );
    }

    #[test]
    fn a_host_that_is_unclear_is_refused() {
        for (uri, hosts) in [
            ("/", &[][..]),
            ("/", &[("host", "a"), ("host", "b")]),
            ("http://a/", &[("host", "b")]),
            ("/", &[("host", "a b")]),
            ("/", &[("host", "a@b")]),
            ("/", &[("host", "a:port")]),
            ("/", &[("host", "a:")]),
            ("/", &[("host", "")]),
        ] {
            assert!(look(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
        assert!(look("http://a:1/", &[("host", "A:1")]).is_ok());
        assert!(look("http://a/", &[]).is_ok(), ":authority alone is enough");
    }

    #[test]
    fn hostile_paths_are_refused_and_odd_ones_pass() {
        for path in [
            "/..",
            "/.",
            "/a/../b",
            "/a/./b",
            "/%2e%2e/a",
            "/a/%2E./b",
            "/a/.%2e",
            "/a%2f..%2fb",
            "/%2e%2e%2fa",
            "/a\\b",
            "/a%5c..",
            "/a%00",
            "/v1/servers/x%2f..",
        ] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in [
            "/",
            "/a/...",
            "/.hidden",
            "/a..b",
            "/a%2fb",
            "/lab/tree/%E2%82%AC.ipynb",
            "/a//b",
            "/..a",
            "/%2e%2e%2e",
        ] {
            assert!(check_path(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn reserved_and_ambiguous_names_are_removed() {
        let mut request = request(
            "/",
            &[
                ("host", "x"),
                ("cnlab-caller-user-id", "a"),
                ("cnlab-internal-key", "b"),
                ("cnlab-x", "1"),
                ("cnlab-x", "2"),
                ("content_length", "5"),
                ("x-mine", "kept"),
            ],
        );
        admission().look(&mut request).unwrap();
        let left: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["host", "x-mine"]);
    }

    #[test]
    fn too_many_header_bytes_are_refused() {
        let long = "x".repeat(17 * 1024);
        assert!(matches!(
            look("/", &[("host", "x"), ("a", &long)]),
            Err(GatewayError::HeadTooLarge { .. })
        ));
    }
}
