//! What a held slice adds up to: blocks times time, in integers.
//!
//! **Laws**
//! - Time never runs backwards: an end before the beginning is the beginning.
//! - Ending twice has no further effect: the first end stays.
//! - Any split of an interval adds up to the whole.

use std::time::Duration;

use cnlab_model::Timestamp;

/// A slice that somebody holds or held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    blocks: u32,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl Interval {
    /// An interval that begins now and is open.
    #[must_use]
    pub const fn open(blocks: u32, started_at: Timestamp) -> Self {
        Self {
            blocks,
            started_at,
            ended_at: None,
        }
    }

    /// An interval as it was recorded.
    #[must_use]
    pub fn recorded(blocks: u32, started_at: Timestamp, ended_at: Option<Timestamp>) -> Self {
        let open = Self::open(blocks, started_at);
        match ended_at {
            Some(at) => open.close(at),
            None => open,
        }
    }

    /// The same interval, ended at this time; unchanged when it has ended already.
    #[must_use]
    pub fn close(self, at: Timestamp) -> Self {
        let ended_at = self.ended_at.unwrap_or(at.max(self.started_at));
        Self {
            ended_at: Some(ended_at),
            ..self
        }
    }

    /// When it ended, if it did.
    #[must_use]
    pub const fn ended_at(&self) -> Option<Timestamp> {
        self.ended_at
    }

    /// Blocks times time: until its end, or until `now` while it is open.
    #[must_use]
    pub fn block_time(&self, now: Timestamp) -> Duration {
        self.ended_at
            .unwrap_or(now)
            .since(self.started_at)
            .saturating_mul(self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Some 300,000 years around the beginning of 1970.
    fn time() -> impl Strategy<Value = Timestamp> {
        (i64::MIN..=i64::MAX).prop_map(Timestamp)
    }

    #[test]
    fn a_quarter_of_a_gpu_for_an_hour() {
        let hour = Duration::from_secs(3600);
        let interval = Interval::open(25, Timestamp(0));
        assert_eq!(
            interval.block_time(Timestamp(0).plus(hour)),
            hour.saturating_mul(25)
        );
    }

    proptest! {
        #[test]
        fn time_never_runs_backwards(start in time(), end in time(), now in time(), blocks in 0..=100_u32) {
            let interval = Interval::open(blocks, start).close(end);
            prop_assert!(interval.ended_at().unwrap() >= start);
            if end <= start {
                prop_assert_eq!(interval.block_time(now), Duration::ZERO);
            }
        }

        #[test]
        fn the_first_end_stays(start in time(), first in time(), second in time(), now in time(), later in time()) {
            let once = Interval::open(7, start).close(first);
            let twice = once.close(second);
            prop_assert_eq!(once, twice);
            prop_assert_eq!(once.block_time(now), twice.block_time(later));
            prop_assert_eq!(Interval::recorded(7, start, once.ended_at()), once);
        }

        #[test]
        fn a_split_adds_up(start in 0..1_i64 << 50, a in 0..1_i64 << 40, b in 0..1_i64 << 40, blocks in 0..=100_u32) {
            let (middle, end) = (Timestamp(start + a), Timestamp(start + a + b));
            let start = Timestamp(start);
            let part = |from, to| Interval::open(blocks, from).close(to).block_time(Timestamp::EPOCH);
            prop_assert_eq!(part(start, middle) + part(middle, end), part(start, end));
        }

        #[test]
        fn an_open_one_grows(start in time(), a in time(), b in time(), blocks in 0..=100_u32) {
            let interval = Interval::open(blocks, start);
            let (sooner, later) = (a.min(b), a.max(b));
            prop_assert!(interval.block_time(sooner) <= interval.block_time(later));
        }
    }
}
