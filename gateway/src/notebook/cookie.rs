//! Our cookie among those of the notebook's own pages.
//!
//! **Invariant**: the session never reaches a notebook, and a notebook never sets it.

use http::{HeaderMap, HeaderValue, header};

/// Browsers take a name with this prefix only from the host itself, over a secure
/// connection (or the local machine), for the whole host: no sibling can plant one.
pub const NAME: &str = "__Host-cnlab";

/// The session of a request. Two of them are none: one must have been smuggled in.
#[must_use]
pub fn session(headers: &HeaderMap) -> Option<&str> {
    let mut found = None;
    for value in headers.get_all(header::COOKIE) {
        // Bytes, not text: a sibling's page may have set a cookie that is no ASCII, and that
        // must not hide ours.
        for pair in value.as_bytes().split(|byte| *byte == b';') {
            if let Some(value) = ours(pair)
                && found.replace(value).is_some_and(|other| other != value)
            {
                return None;
            }
        }
    }
    found.filter(|value| !value.is_empty())
}

fn ours(pair: &[u8]) -> Option<&str> {
    let value = pair
        .trim_ascii()
        .strip_prefix(NAME.as_bytes())?
        .trim_ascii_start()
        .strip_prefix(b"=")?
        .trim_ascii();
    // What we set is ASCII; anything else under our name is none of ours.
    std::str::from_utf8(value)
        .ok()
        .filter(|value| value.is_ascii())
}

/// Removes our cookie from what goes to the notebook.
pub fn strip_request(headers: &mut HeaderMap) {
    let holds_ours = |value: &HeaderValue| {
        value
            .as_bytes()
            .windows(NAME.len())
            .any(|name| name == NAME.as_bytes())
    };
    if !headers.get_all(header::COOKIE).iter().any(holds_ours) {
        return;
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    for value in headers.get_all(header::COOKIE) {
        let pairs = value
            .as_bytes()
            .split(|byte| *byte == b';')
            .map(<[u8]>::trim_ascii);
        kept.extend(pairs.filter(|pair| !pair.is_empty() && !pair.starts_with(NAME.as_bytes())));
    }
    let joined = kept.join(&b"; "[..]);
    headers.remove(header::COOKIE);
    if let Ok(value) = HeaderValue::from_bytes(&joined)
        && !value.is_empty()
    {
        headers.insert(header::COOKIE, value);
    }
}

/// Removes a notebook's attempts to set our cookie.
pub fn strip_response(headers: &mut HeaderMap) {
    let sets_ours = |value: &HeaderValue| {
        value
            .as_bytes()
            .trim_ascii_start()
            .starts_with(NAME.as_bytes())
    };
    if !headers.get_all(header::SET_COOKIE).iter().any(sets_ours) {
        return;
    }
    let kept: Vec<_> = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .filter(|value| !sets_ours(value))
        .cloned()
        .collect();
    headers.remove(header::SET_COOKIE);
    for value in kept {
        headers.append(header::SET_COOKIE, value);
    }
}

/// The header that sets the cookie, for so many seconds at most.
#[must_use]
pub fn set(secret: &str, max_age: Option<u64>) -> Option<HeaderValue> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'~');
    if secret.is_empty() || !secret.bytes().all(plain) {
        return None;
    }
    let age = max_age
        .map(|seconds| format!("; Max-Age={seconds}"))
        .unwrap_or_default();
    let mut value = HeaderValue::try_from(format!(
        "{NAME}={secret}; Path=/; Secure; HttpOnly; SameSite=Lax{age}"
    ))
    .ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookies(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::COOKIE, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_session_is_found_and_two_are_none() {
        assert_eq!(session(&cookies(&["a=1; __Host-cnlab=s; b=2"])), Some("s"));
        assert_eq!(session(&cookies(&["a=1", "__Host-cnlab=s"])), Some("s"));
        assert_eq!(session(&cookies(&["__Host-cnlab=s; __Host-cnlab=t"])), None);
        assert_eq!(
            session(&cookies(&["__Host-cnlab=s; __Host-cnlab=s"])),
            Some("s")
        );
        assert_eq!(
            session(&cookies(&["__Host-cnlabx=s", "cnlab=s", "__Host-cnlab="])),
            None
        );
        assert_eq!(session(&cookies(&[])), None);
    }

    #[test]
    fn a_siblings_cookie_that_is_no_ascii_hides_nothing() {
        let mut headers = HeaderMap::new();
        let tossed = HeaderValue::from_bytes(b"x=\xc3\xa9; __Host-cnlab=s").unwrap();
        headers.append(header::COOKIE, tossed);
        assert_eq!(session(&headers), Some("s"));
        strip_request(&mut headers);
        assert_eq!(headers[header::COOKIE].as_bytes(), b"x=\xc3\xa9");
    }

    #[test]
    fn the_session_is_taken_out_and_others_stay() {
        for (given, left) in [
            (
                &["_xsrf=2|a; __Host-cnlab=s; username=\"x\""][..],
                Some("_xsrf=2|a; username=\"x\""),
            ),
            (&["__Host-cnlab=s"][..], None),
            (
                &["a=1; __Host-cnlab = s", "__Host-cnlab=t; b=2"][..],
                Some("a=1; b=2"),
            ),
            (&["a=1; b=2"][..], Some("a=1; b=2")),
        ] {
            let mut headers = cookies(given);
            strip_request(&mut headers);
            assert_eq!(
                headers
                    .get(header::COOKIE)
                    .map(|value| value.to_str().unwrap()),
                left
            );
        }
    }

    #[test]
    fn a_notebook_cannot_set_it() {
        let mut headers = HeaderMap::new();
        for value in ["a=1", "__Host-cnlab=evil; Path=/", "b=2"] {
            headers.append(header::SET_COOKIE, HeaderValue::from_static(value));
        }
        strip_response(&mut headers);
        let left: Vec<_> = headers.get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(left, ["a=1", "b=2"]);
    }

    #[test]
    fn the_cookie_has_every_attribute() {
        let value = set("abc", Some(60)).unwrap();
        assert_eq!(
            value,
            "__Host-cnlab=abc; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=60"
        );
        assert!(set("a;b", None).is_none());
    }
}
