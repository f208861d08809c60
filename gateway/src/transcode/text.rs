//! Percent-encoding.

use std::borrow::Cow;

/// Decodes a segment of a path, or, with `plus_is_space`, a part of a query.
///
/// `None` when an escape is incomplete or the result is not UTF-8.
pub(super) fn decode(text: &str, plus_is_space: bool) -> Option<Cow<'_, str>> {
    if !text
        .bytes()
        .any(|byte| byte == b'%' || (plus_is_space && byte == b'+'))
    {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_broken_ones_refused() {
        assert_eq!(decode("a%2Fb%20c+d", false).as_deref(), Some("a/b c+d"));
        assert_eq!(decode("a+b%2b", true).as_deref(), Some("a b+"));
        assert_eq!(decode("plain", true).as_deref(), Some("plain"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(wrong, false), None, "{wrong}");
        }
    }
}
