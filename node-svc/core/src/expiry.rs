//! When a node ends what runs under an expiring grant that it cannot renew.
//!
//! **Invariant**: what is told to end in time is seen gone before the lease ends, for as long as
//! processes end when they are killed: the grace and a reserve for killing them fit in between.

use std::time::Duration;

/// When to begin, and how much time the processes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// Counted from when the renewal was sent that was answered last.
    pub after: Duration,
    /// Until what does not end by itself is killed.
    pub grace: Duration,
}

/// When to leave a lease of this length, for processes that are usually given `grace` to end.
#[must_use]
pub fn leave(ttl: Duration, grace: Duration) -> Leave {
    let grace = grace.min(ttl.checked_div(3).unwrap_or(ttl));
    let reserve = ttl.checked_div(10).unwrap_or(ttl);
    Leave {
        after: ttl.saturating_sub(grace).saturating_sub(reserve),
        grace,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_usual_lease() {
        let leave = leave(Duration::from_secs(30), Duration::from_secs(10));
        assert_eq!(leave.after, Duration::from_secs(17));
        assert_eq!(leave.grace, Duration::from_secs(10));
    }

    proptest! {
        #[test]
        fn it_ends_before_the_lease_and_survives_a_lost_renewal(ttl in 1_u64..100_000, grace in 0_u64..100_000) {
            let (ttl, grace) = (Duration::from_millis(ttl), Duration::from_millis(grace));
            let leave = leave(ttl, grace);
            prop_assert!(leave.after + leave.grace < ttl || ttl < Duration::from_millis(10));
            prop_assert!(leave.grace <= grace);
            // A lease lives for at least two renewals: the next one may be late, not lost.
            prop_assert!(leave.after >= ttl / 2);
        }
    }
}
