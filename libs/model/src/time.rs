//! Points in time, as integers.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01 00:00:00 UTC, which is also the form in the stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The beginning of 1970.
    pub const EPOCH: Self = Self(0);

    /// This much later, or the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(
            i64::try_from(duration.as_micros())
                .map_or(i64::MAX, |micros| self.0.saturating_add(micros)),
        )
    }

    /// The time from `earlier` until this point; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = i128::from(self.0) - i128::from(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Whole seconds and the nanoseconds after them (0 to 999,999,999).
    #[must_use]
    pub fn seconds_and_nanos(self) -> (i64, i32) {
        let nanos = self.0.rem_euclid(1_000_000) * 1_000;
        // Below 1e9 by construction.
        (
            self.0.div_euclid(1_000_000),
            i32::try_from(nanos).unwrap_or(0),
        )
    }

    /// From whole seconds and nanoseconds; parts of a microsecond are dropped.
    #[must_use]
    pub fn from_seconds_and_nanos(seconds: i64, nanos: i32) -> Self {
        Self(
            seconds
                .saturating_mul(1_000_000)
                .saturating_add(i64::from(nanos) / 1_000),
        )
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:06}",
            self.0.div_euclid(1_000_000),
            self.0.rem_euclid(1_000_000)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn seconds_and_nanos_round_trip(micros in i64::MIN / 2..i64::MAX / 2) {
            let (seconds, nanos) = Timestamp(micros).seconds_and_nanos();
            prop_assert!((0..1_000_000_000).contains(&nanos));
            prop_assert_eq!(Timestamp::from_seconds_and_nanos(seconds, nanos), Timestamp(micros));
        }

        #[test]
        fn since_undoes_plus(micros in 0..i64::MAX / 4, later in 0..u64::MAX / 8) {
            let start = Timestamp(micros);
            let duration = Duration::from_micros(later);
            prop_assert_eq!(start.plus(duration).since(start), duration);
        }
    }
}
