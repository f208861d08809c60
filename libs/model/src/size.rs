//! Sizes in bytes, as people write them: decimal and binary units, any case.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No digits in front.
    #[error("a size is a number and a unit, for example 50gb or 32Gi")]
    NoNumber,
    /// The unit is not known.
    #[error("unknown unit {0:?}: use b, kb, mb, gb, tb, pb, or ki, mi, gi, ti, pi")]
    Unit(String),
    /// More than 2^64 - 1 bytes.
    #[error("the size is larger than 16 EiB")]
    TooLarge,
}

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("p", 1_000_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("pi", 1 << 50),
    ("pib", 1 << 50),
];

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        if digits.is_empty() {
            return Err(SizeError::NoNumber);
        }
        let unit = unit.trim().to_ascii_lowercase();
        let factor = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor)
            .ok_or_else(|| SizeError::Unit(unit.chars().take(16).collect()))?;
        let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
        number
            .checked_mul(factor)
            .map(Self)
            .ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for ByteSize {
    /// The largest unit that keeps the number whole and short, decimal before binary;
    /// otherwise one decimal of the largest decimal unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const EXACT: &[(&str, u64)] = &[
            ("TB", 1_000_000_000_000),
            ("TiB", 1 << 40),
            ("GB", 1_000_000_000),
            ("GiB", 1 << 30),
            ("MB", 1_000_000),
            ("MiB", 1 << 20),
            ("kB", 1_000),
            ("KiB", 1 << 10),
        ];
        const LONGEST_EXACT: u64 = 10_000;
        if self.0 == 0 {
            return f.write_str("0 B");
        }
        if let Some((unit, factor)) = EXACT
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor) && self.0 / factor < LONGEST_EXACT)
        {
            return write!(f, "{} {unit}", self.0 / factor);
        }
        for (unit, factor) in [
            ("TB", 1_000_000_000_000_u64),
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
            ("kB", 1_000),
        ] {
            if self.0 >= factor {
                let tenths =
                    (u128::from(self.0) * 10 + u128::from(factor) / 2) / u128::from(factor);
                return write!(f, "{}.{} {unit}", tenths / 10, tenths % 10);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"50GiB\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::custom("a size is not negative"))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_both_kinds_in_any_case() {
        for (text, bytes) in [
            ("50gb", 50_000_000_000),
            ("50GB", 50_000_000_000),
            ("50Gi", 50 << 30),
            ("50GiB", 50 << 30),
            ("1 tb", 1_000_000_000_000),
            ("7", 7),
            ("0gb", 0),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_say_why() {
        assert_eq!("".parse::<ByteSize>(), Err(SizeError::NoNumber));
        assert_eq!("-5gb".parse::<ByteSize>(), Err(SizeError::NoNumber));
        assert_eq!("gb".parse::<ByteSize>(), Err(SizeError::NoNumber));
        assert_eq!(
            "5.5gb".parse::<ByteSize>(),
            Err(SizeError::Unit(".5gb".to_owned()))
        );
        assert_eq!(
            "5xb".parse::<ByteSize>(),
            Err(SizeError::Unit("xb".to_owned()))
        );
        assert_eq!(
            "99999999999999999999".parse::<ByteSize>(),
            Err(SizeError::TooLarge)
        );
        assert_eq!("20000pb".parse::<ByteSize>(), Err(SizeError::TooLarge));
    }

    #[test]
    fn display_keeps_whole_numbers_whole() {
        for (bytes, text) in [
            (50_000_000_000, "50 GB"),
            (50 << 30, "50 GiB"),
            (1_536, "1.5 kB"),
            (85_899_345_920, "80 GiB"),
            (20_401_094_657, "20.4 GB"),
            (264_212_084 << 10, "270.6 GB"),
            (0, "0 B"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
