//! Who calls: tokens, remembered for a few seconds by their hash.
//!
//! **Invariant**: no token is kept; the memory holds SHA-256 hashes.

use std::{sync::Arc, time::Duration};

use cnlab_service::{Caller, runtime::Tasks};
use http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::{
    cache::{Cache, Lookup},
    error::GatewayError,
    ports::{Authenticator, PortError},
};

/// A revoked token is refused after this time at the latest.
const VALID: Duration = Duration::from_secs(5);
const FRESH: Duration = Duration::from_secs(3);
const CAPACITY: usize = 10_000;
/// Longer ones are none of ours.
const LONGEST: usize = 512;

/// The hash under which a secret is remembered.
pub(crate) fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Checks tokens.
pub struct Tokens {
    port: Arc<dyn Authenticator>,
    known: Cache<[u8; 32], Arc<Caller>>,
    tasks: Tasks,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// Asks this port.
    #[must_use]
    pub fn new(port: Arc<dyn Authenticator>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            port,
            known: Cache::new(FRESH, VALID, CAPACITY),
            tasks,
        })
    }

    /// The caller, if the token was seen a moment ago.
    pub(crate) fn known(self: &Arc<Self>, token: &str) -> Option<Arc<Caller>> {
        let key = hash(token);
        match self.known.get(&key, Instant::now()) {
            Lookup::Fresh(caller) => Some(caller),
            Lookup::Aging(caller) => {
                let (tokens, token) = (Arc::clone(self), token.to_owned());
                self.tasks.spawn("token refresh", async move {
                    if tokens.ask(&token).await.is_err() {
                        tokens.known.refresh_failed(&key);
                    }
                });
                Some(caller)
            }
            Lookup::Nothing => None,
        }
    }

    /// Asks who is behind a token.
    pub(crate) async fn ask(&self, token: &str) -> Result<Arc<Caller>, GatewayError> {
        let key = hash(token);
        let asked_at = Instant::now();
        match self.port.authenticate(token).await {
            Ok(caller) => {
                let caller = Arc::new(caller);
                self.known.put(key, Arc::clone(&caller), asked_at);
                Ok(caller)
            }
            Err(PortError::Refused) => {
                self.known.forget(&key);
                Err(GatewayError::TokenInvalid)
            }
            Err(PortError::Unavailable) => Err(GatewayError::UpstreamUnavailable("billing-svc")),
        }
    }
}

/// The token of a request: exactly one `authorization: Bearer …`.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<&str, GatewayError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(GatewayError::TokenMissing)?;
    if values.next().is_some() {
        return Err(GatewayError::Malformed(
            "more than one authorization header",
        ));
    }
    let (scheme, token) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or(GatewayError::TokenInvalid)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > LONGEST {
        return Err(GatewayError::TokenInvalid);
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_bearer_token_and_nothing_else() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), Err(GatewayError::TokenMissing));
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer ", None),
            ("abc", None),
        ] {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(bearer(&headers).ok(), token, "{value}");
        }
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        assert!(bearer(&headers).is_err());
    }
}
