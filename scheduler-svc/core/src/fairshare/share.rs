//! Shares as exact fractions.

use std::{cmp::Ordering, fmt, num::NonZeroU32};

use super::{Amount, WINDOW_MICROS, account::Four};

/// A resource that teams share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// GPU blocks.
    Blocks,
    /// GPU memory.
    Vram,
    /// Processors.
    Cpu,
    /// Memory.
    Memory,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 4] = [Self::Blocks, Self::Vram, Self::Cpu, Self::Memory];

    pub(super) const fn of<T: Copy>(self, [blocks, vram, cpu, memory]: &Four<T>) -> T {
        match self {
            Self::Blocks => *blocks,
            Self::Vram => *vram,
            Self::Cpu => *cpu,
            Self::Memory => *memory,
        }
    }
}

/// The part of the cell that a team used over the window, divided by its weight: an exact
/// fraction, ordered by value.
#[derive(Clone, Copy)]
pub struct Share {
    dominant: Resource,
    /// Amount times microseconds.
    used: u128,
    /// Amount times weight; at least 1. The length of the window, the same for all, is left
    /// out.
    of: u128,
}

impl Share {
    /// The share of a team that used nothing.
    pub const NOTHING: Self = Self {
        dominant: Resource::Blocks,
        used: 0,
        of: 1,
    };

    pub(super) fn of(used: &Four<u128>, capacity: &Amount, weight: NonZeroU32) -> Self {
        let capacity = capacity.four();
        Resource::ALL
            .into_iter()
            .filter(|resource| resource.of(&capacity) > 0)
            .map(|dominant| Self {
                dominant,
                used: dominant.of(used),
                // Below 2^64 times below 2^32.
                of: u128::from(dominant.of(&capacity)).saturating_mul(weight.get().into()),
            })
            // The first of equals.
            .reduce(|best, next| if next > best { next } else { best })
            .unwrap_or(Self::NOTHING)
    }

    /// The resource that the share is of.
    #[must_use]
    pub const fn dominant(self) -> Resource {
        self.dominant
    }

    /// In millionths of the cell, rounded down: a team of weight 1 that had all of a resource
    /// for seven days has 1,000,000.
    #[must_use]
    pub fn parts_per_million(self) -> u64 {
        let parts = self
            .used
            .saturating_mul(1_000_000)
            .checked_div(WINDOW_MICROS.into())
            .and_then(|parts| parts.checked_div(self.of));
        parts.map_or(0, |parts| u64::try_from(parts).unwrap_or(u64::MAX))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        // a/b < c/d exactly when a*d < c*b. The products have up to 232 bits.
        match (
            self.used.checked_mul(other.of),
            other.used.checked_mul(self.of),
        ) {
            (Some(left), Some(right)) => left.cmp(&right),
            (None, _) | (_, None) => wide(self.used, other.of).cmp(&wide(other.used, self.of)),
        }
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Share {}

/// The product of two numbers in 256 bits, the high half first.
fn wide(left: u128, right: u128) -> (u128, u128) {
    const HALF: u32 = 64;
    const LOW: u128 = (1 << HALF) - 1;
    let (left_high, left_low) = (left >> HALF, left & LOW);
    let (right_high, right_low) = (right >> HALF, right & LOW);
    // Products of two 64-bit numbers leave room for two more 64-bit numbers in 128 bits, so
    // nothing here wraps.
    let low = left_low.wrapping_mul(right_low);
    let middle = left_high.wrapping_mul(right_low).wrapping_add(low >> HALF);
    let other = left_low.wrapping_mul(right_high).wrapping_add(middle & LOW);
    let high = left_high
        .wrapping_mul(right_high)
        .wrapping_add(middle >> HALF)
        .wrapping_add(other >> HALF);
    (high, (other << HALF) | (low & LOW))
}

impl fmt::Display for Share {
    /// Percent with two decimals, such as `12.34%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.parts_per_million() / 100;
        write!(f, "{}.{:02}%", hundredths / 100, hundredths % 100)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({self} of {:?})", self.dominant)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wide_products_are_those_of_digits(left: u128, right: u128) {
            // Schoolbook with 32-bit digits, the lowest first.
            let digits = |number: u128| -> Vec<u128> {
                (0..4).map(|digit| number >> (32 * digit) & 0xffff_ffff).collect()
            };
            let mut sum = [0_u128; 8];
            for (i, a) in digits(left).into_iter().enumerate() {
                for (j, b) in digits(right).into_iter().enumerate() {
                    sum[i + j] += a * b;
                }
            }
            let mut carry = 0;
            for digit in &mut sum {
                *digit += carry;
                carry = *digit >> 32;
                *digit &= 0xffff_ffff;
            }
            let half = |digits: &[u128]| digits.iter().rev().fold(0, |all, d| all << 32 | d);
            prop_assert_eq!(wide(left, right), (half(&sum[4..]), half(&sum[..4])));
            prop_assert_eq!(carry, 0);
        }
    }
}
