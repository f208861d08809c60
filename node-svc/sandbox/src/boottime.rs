//! Moments on the clock that only ever goes on: it ignores steps of the machine's time, and
//! counts while the machine is suspended.

use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment of this boot: nanoseconds of `CLOCK_BOOTTIME`. Says nothing in another boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Boottime(u64);

impl Boottime {
    /// The present moment.
    #[must_use]
    pub fn now() -> Self {
        // Fails only on kernels before 2.6.39, which lack everything else that is needed here.
        let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Into::into);
        Self::after_boot(since_boot)
    }

    /// The moment so long after the boot.
    #[must_use]
    pub fn after_boot(since_boot: Duration) -> Self {
        Self(u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long after the boot it is.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The moment so much later.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self::after_boot(self.since_boot().saturating_add(later))
    }

    /// How long it is after `earlier`; nothing if it is before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.since_boot().saturating_sub(earlier.since_boot())
    }
}

impl fmt::Debug for Boottime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Boottime({:?})", self.since_boot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_never_overflows() {
        let (first, second) = (Boottime::now(), Boottime::now());
        assert!(first <= second && first > Boottime::after_boot(Duration::ZERO));
        assert_eq!(first.plus(Duration::from_secs(3)).since(first).as_secs(), 3);
        assert_eq!(
            first.since(first.plus(Duration::from_secs(3))),
            Duration::ZERO
        );
        assert!(first.plus(Duration::MAX) > second);
    }
}
