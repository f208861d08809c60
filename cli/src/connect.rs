//! Where a gateway is and how a channel to it is made.
//!
//! **Invariant**: names under `localhost` are dialled as 127.0.0.1, since getaddrinfo does
//! not know them everywhere; the gateway still sees the name that was written.

use std::{fmt, time::Duration};

use http::Uri;
use tonic::transport::Channel;

use crate::error::{Failure, Result};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// A watch without news is probed this often, so that a gateway that vanished is noticed.
const PROBE_EVERY: Duration = Duration::from_secs(20);
/// How long the answer to a probe may take.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// The address of a gateway in its one canonical form, `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    origin: Uri,
    dial: Uri,
    loopback: bool,
}

impl Endpoint {
    /// Reads `http://host:port`, `host:port` or `host`.
    ///
    /// # Errors
    /// When the text is no such address, or asks for TLS.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |cause: &str| {
            Failure::usage("the endpoint is no address of a gateway")
                .caused_by(cause)
                .try_this("an endpoint such as http://127.0.0.1:8080")
                .field("endpoint")
        };
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(wrong("https is not built into this program").try_this(
                    "reach the gateway over a tunnel that ends on this machine, for example ssh -L 8080:127.0.0.1:8080 HOST",
                ));
            }
            Some(_) => return Err(wrong("only http:// is spoken")),
            None => text,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority: http::uri::Authority =
            rest.parse().map_err(|_| wrong("expected host:port"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("an address holds no user name"));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let port = authority.port_u16().unwrap_or(80);
        let under_localhost = host == "localhost" || host.ends_with(".localhost");
        let dialled = if under_localhost {
            "127.0.0.1"
        } else {
            host.as_str()
        };
        let uri = |host: &str| -> Result<Uri> {
            format!("http://{host}:{port}")
                .parse()
                .map_err(|_| wrong("expected host:port"))
        };
        Ok(Self {
            text: format!("http://{host}:{port}"),
            origin: uri(&host)?,
            dial: uri(dialled)?,
            loopback: under_localhost || is_loopback(&host),
        })
    }

    /// The canonical text, which is also the key of stored tokens.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Host and port.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.text.strip_prefix("http://").unwrap_or(&self.text)
    }

    /// Whether what is sent stays on this machine.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// A channel that connects when it is first used, and again when it was lost.
    #[must_use]
    pub fn channel(&self) -> Channel {
        tonic::transport::Endpoint::from(self.dial.clone())
            .origin(self.origin.clone())
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_ANSWER)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .connect_lazy()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form() {
        for (text, canonical, dial, loopback) in [
            (
                "http://127.0.0.1:8080",
                "http://127.0.0.1:8080",
                "http://127.0.0.1:8080/",
                true,
            ),
            (
                "http://NB.localhost:8080/",
                "http://nb.localhost:8080",
                "http://127.0.0.1:8080/",
                true,
            ),
            (
                "localhost:1",
                "http://localhost:1",
                "http://127.0.0.1:1/",
                true,
            ),
            (
                "gpu.example.org",
                "http://gpu.example.org:80",
                "http://gpu.example.org:80/",
                false,
            ),
            (
                "[::1]:8080",
                "http://[::1]:8080",
                "http://[::1]:8080/",
                true,
            ),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.as_str(), canonical);
            assert_eq!(endpoint.dial.to_string(), dial);
            assert_eq!(endpoint.is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "http://",
            "https://a",
            "ftp://a",
            "http://a/b",
            "http://u:p@a",
            "a b",
            "a\u{1b}:1",
            "http://:80",
        ] {
            let failure = Endpoint::parse(text).unwrap_err();
            assert_eq!(failure.exit().code(), 2, "{text}");
        }
    }
}
