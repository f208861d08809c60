//! The text form of credentials: `cnl_<type>_<random><checksum>`.
//!
//! The prefix lets a scanner find one that leaked, the checksum lets anybody tell a mistyped
//! one from an unknown one without asking a database.
//!
//! **Invariants**
//! - 256 random bits, written as 43 base-62 digits, then 6 digits of the CRC-32 of all before.
//! - Neither `Debug` nor an error shows any of it.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// Digits of the random part: 62^43 > 2^256.
const BODY: usize = 43;
/// Digits of the checksum: 62^6 > 2^32.
const CHECK: usize = 6;
/// In the order of ASCII, so that texts sort as numbers do.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What a credential is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Acts for a user everywhere, until it is revoked.
    User,
    /// Keeps one browser signed in to one server.
    Session,
    /// Signs one browser in to one server, once and soon.
    OpenCode,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::User, Self::Session, Self::OpenCode];

    /// The three letters in the text. Once used, they keep their meaning.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::User => "usr",
            Self::Session => "ses",
            Self::OpenCode => "cod",
        }
    }
}

/// A well-formed credential; whether anybody knows it is another question.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    kind: Kind,
    text: String,
}

/// Why a text is no credential. The text is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Not of the form `cnl_<type>_<49 letters and digits>`.
    #[error("this is no CNLab token: one begins with cnl_ and has 57 characters")]
    Form,
    /// The checksum does not fit: mistyped, or not copied whole.
    #[error("the token is damaged: its checksum does not fit")]
    Checksum,
    /// A credential, but not of the wanted kind.
    #[error("this is a token of type {found:?}, and one of type {wanted:?} is needed")]
    Kind {
        /// The tag of the wanted kind.
        wanted: &'static str,
        /// The tag that was found.
        found: &'static str,
    },
}

impl Token {
    /// The credential that these random bytes stand for.
    #[must_use]
    pub fn from_random(kind: Kind, bytes: &[u8; 32]) -> Self {
        let mut text = format!("cnl_{}_", kind.tag());
        text.extend(body(bytes));
        let check = checksum(text.as_bytes());
        text.extend(check);
        Self { kind, text }
    }

    /// Reads a credential of this kind.
    ///
    /// # Errors
    /// When the text is no credential, or one of another kind.
    pub fn parse(kind: Kind, text: &str) -> Result<Self, TokenError> {
        let token: Self = text.parse()?;
        if token.kind != kind {
            return Err(TokenError::Kind {
                wanted: kind.tag(),
                found: token.kind.tag(),
            });
        }
        Ok(token)
    }

    /// What it is good for.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The text itself: for handing over, not for show.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let rest = text.strip_prefix("cnl_").ok_or(TokenError::Form)?;
        let (tag, digits) = rest.split_once('_').ok_or(TokenError::Form)?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.tag() == tag)
            .ok_or(TokenError::Form)?;
        if digits.len() != BODY.saturating_add(CHECK)
            || !digits.bytes().all(|digit| digit.is_ascii_alphanumeric())
        {
            return Err(TokenError::Form);
        }
        let (signed, check) = text
            .split_at_checked(text.len().saturating_sub(CHECK))
            .ok_or(TokenError::Form)?;
        if !checksum(signed.as_bytes()).into_iter().eq(check.chars()) {
            return Err(TokenError::Checksum);
        }
        Ok(Self {
            kind,
            text: text.to_owned(),
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cnl_{}_***", self.kind.tag())
    }
}

fn digit(value: u32) -> char {
    // Callers pass a remainder of 62.
    usize::try_from(value)
        .ok()
        .and_then(|index| DIGITS.get(index))
        .map_or('0', |digit| char::from(*digit))
}

/// A 256-bit number in base 62: long division, most significant byte first.
fn body(bytes: &[u8; 32]) -> [char; BODY] {
    let mut number = *bytes;
    let mut digits = ['0'; BODY];
    for place in digits.iter_mut().rev() {
        let mut rest = 0_u32;
        for byte in &mut number {
            let value = (rest << 8) | u32::from(*byte);
            // Below 256, since `rest` is below 62.
            *byte = u8::try_from(value / 62).unwrap_or(u8::MAX);
            rest = value % 62;
        }
        *place = digit(rest);
    }
    digits
}

fn checksum(bytes: &[u8]) -> [char; CHECK] {
    let mut number = crc32(bytes);
    let mut digits = ['0'; CHECK];
    for place in digits.iter_mut().rev() {
        *place = digit(number % 62);
        number /= 62;
    }
    digits
}

/// CRC-32 as in IEEE 802.3, bit by bit: 50 characters are not worth a table.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let odd = crc & 1 == 1;
            crc >>= 1;
            if odd {
                crc ^= 0xEDB8_8320;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_checksum_is_the_one_everybody_uses() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn smallest_and_largest() {
        let least = Token::from_random(Kind::User, &[0; 32]);
        assert!(
            least
                .expose()
                .starts_with(&format!("cnl_usr_{}", "0".repeat(43)))
        );
        let most = Token::from_random(Kind::Session, &[255; 32]);
        assert_eq!(most.expose().len(), 57);
        assert_eq!(most.expose().parse(), Ok(most.clone()));
    }

    #[test]
    fn other_kinds_and_forms_are_refused() {
        let session = Token::from_random(Kind::Session, &[7; 32]);
        let text = session.expose();
        assert_eq!(
            Token::parse(Kind::User, text),
            Err(TokenError::Kind {
                wanted: "usr",
                found: "ses"
            })
        );
        for wrong in [
            "",
            "cnl_",
            "cnl_ses_",
            "hunter2",
            &text.replace("cnl_", "CNL_"),
            &text.replace("ses", "xxx"),
            &format!(" {text}"),
            &format!("{text}\n"),
            &format!("{text}0"),
            &"é".repeat(40),
        ] {
            assert_eq!(wrong.parse::<Token>(), Err(TokenError::Form), "{wrong:?}");
        }
    }

    #[test]
    fn it_is_never_shown() {
        let token = Token::from_random(Kind::User, &[9; 32]);
        assert_eq!(format!("{token:?}"), "cnl_usr_***");
    }

    proptest! {
        #[test]
        fn text_round_trips(bytes: [u8; 32], kind in 0..3_usize) {
            let token = Token::from_random(Kind::ALL[kind], &bytes);
            prop_assert_eq!(token.expose().len(), 57);
            prop_assert_eq!(Token::parse(Kind::ALL[kind], token.expose()), Ok(token));
        }

        #[test]
        fn different_bytes_give_different_texts(a: [u8; 32], b: [u8; 32]) {
            let texts = [a, b].map(|bytes| Token::from_random(Kind::User, &bytes));
            prop_assert_eq!(a == b, texts[0] == texts[1]);
        }

        #[test]
        fn a_changed_character_is_noticed(bytes: [u8; 32], at in 8..57_usize, to in 0..62_usize) {
            let token = Token::from_random(Kind::User, &bytes);
            let mut text = token.expose().as_bytes().to_vec();
            text[at] = DIGITS[to];
            let text = String::from_utf8(text).unwrap();
            if text != token.expose() {
                prop_assert_eq!(text.parse::<Token>(), Err(TokenError::Checksum));
            }
        }

        #[test]
        fn any_text_is_answered(text in ".{0,80}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.expose(), text);
            }
        }
    }
}
