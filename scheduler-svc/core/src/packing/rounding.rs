//! How many of each class are expected, in whole tasks.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts of a cell times thousandths stay far below 2^64"
)]

/// How many of each class come with the next `arrivals` (in thousandths), for the classes of
/// one group: the largest first, fractions carried over.
pub(super) struct Rounding {
    all: u64,
    carry: u64,
    arrivals: u64,
}

impl Rounding {
    pub(super) fn new(all: u64, arrivals: u64) -> Self {
        Self {
            all: all.max(1) * 1000,
            carry: all * 500,
            arrivals,
        }
    }

    pub(super) fn next(&mut self, count: u32) -> u32 {
        self.carry += u64::from(count) * self.arrivals;
        let whole = self.carry / self.all;
        self.carry -= whole * self.all;
        u32::try_from(whole).unwrap_or(u32::MAX)
    }
}
