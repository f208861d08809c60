//! Blocks: the hundred numbered parts of a GPU, each 1 % of its compute and of its memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many blocks a GPU has.
pub const BLOCKS_PER_GPU: u8 = 100;

/// A set of numbered blocks of one GPU.
///
/// **Invariant**: no number of 100 or more is in the set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Blocks(u128);

impl Blocks {
    /// The set without blocks.
    pub const EMPTY: Self = Self(0);
    /// The whole GPU.
    pub const ALL: Self = Self((1_u128 << BLOCKS_PER_GPU) - 1);

    /// The blocks `first .. first + count`, or `None` when that is not inside the GPU.
    #[must_use]
    pub fn range(first: u8, count: u8) -> Option<Self> {
        let end = first.checked_add(count)?;
        if end > BLOCKS_PER_GPU {
            return None;
        }
        Some(Self(((1_u128 << count) - 1) << first))
    }

    /// The `count` lowest blocks of this set, or `None` when it has fewer.
    #[must_use]
    pub fn lowest(self, count: u8) -> Option<Self> {
        if count > self.count() {
            return None;
        }
        let mut rest = self.0;
        let mut taken = 0;
        for _ in 0..count {
            let bit = rest & rest.wrapping_neg();
            taken |= bit;
            rest ^= bit;
        }
        Some(Self(taken))
    }

    /// How many blocks are in the set.
    #[must_use]
    pub fn count(self) -> u8 {
        // At most 100 bits are set.
        u8::try_from(self.0.count_ones()).unwrap_or(BLOCKS_PER_GPU)
    }

    /// Whether the set has no block.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both sets have a block in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Blocks in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Blocks in this set and not in the other.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the block of this number is in the set.
    #[must_use]
    pub fn contains(self, block: u8) -> bool {
        block < BLOCKS_PER_GPU && self.0 >> block & 1 == 1
    }

    /// The runs of neighbouring blocks as (first, count), in rising order.
    pub fn ranges(self) -> impl Iterator<Item = (u8, u8)> {
        let mut next = 0_u8;
        std::iter::from_fn(move || {
            while next < BLOCKS_PER_GPU && !self.contains(next) {
                next += 1;
            }
            if next >= BLOCKS_PER_GPU {
                return None;
            }
            let first = next;
            while self.contains(next) {
                next += 1;
            }
            Some((first, next - first))
        })
    }
}

impl fmt::Display for Blocks {
    /// Runs such as `0-24,50`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, count)) in self.ranges().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            if count == 1 {
                write!(f, "{first}")?;
            } else {
                write!(f, "{first}-{}", first + count - 1)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({self})")
    }
}

impl std::str::FromStr for Blocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::EMPTY;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || format!("{part:?} is no run of blocks");
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u8 = first.parse().map_err(|_| wrong())?;
            let last: u8 = last.parse().map_err(|_| wrong())?;
            let count = last
                .checked_sub(first)
                .and_then(|n| n.checked_add(1))
                .ok_or_else(wrong)?;
            all = all.union(Self::range(first, count).ok_or_else(wrong)?);
        }
        Ok(all)
    }
}

impl TryFrom<String> for Blocks {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Blocks> for String {
    fn from(blocks: Blocks) -> Self {
        blocks.to_string()
    }
}

/// Product names that are told apart where one is the beginning of another, longest first.
const FAMILIES: &[&str] = &[
    "GB200", "GH200", "B300", "B200", "H200", "H100", "H20", "A100", "A800", "H800", "A40", "A30",
    "A16", "A10G", "A10", "A2", "L40S", "L40", "L4", "V100", "T4", "P100",
];

/// The short family name of a GPU from the driver's product name: `H100` from
/// `NVIDIA H100 80GB HBM3`. An unknown product keeps its own name in upper case, with
/// dashes, so that it can still be asked for.
#[must_use]
pub fn family(product: &str) -> String {
    let words: Vec<String> = product
        .split([' ', '-', '_'])
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_uppercase)
        .collect();
    if let Some(family) = FAMILIES
        .iter()
        .find(|family| words.iter().any(|word| word == *family))
    {
        return (*family).to_owned();
    }
    let own: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|word| !matches!(*word, "NVIDIA" | "TESLA" | "GEFORCE"))
        .collect();
    own.join("-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn families_of_known_products() {
        for (product, short) in [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA L40", "L40"),
            ("NVIDIA H200", "H200"),
            ("Tesla T4", "T4"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ] {
            assert_eq!(family(product), short);
        }
    }

    #[test]
    fn a_range_stays_inside_the_gpu() {
        assert_eq!(Blocks::range(0, 100), Some(Blocks::ALL));
        assert_eq!(Blocks::range(1, 100), None);
        assert_eq!(Blocks::range(200, 100), None);
        assert_eq!(Blocks::range(5, 0), Some(Blocks::EMPTY));
    }

    proptest! {
        #[test]
        fn text_and_ranges_round_trip(bits: u128) {
            let blocks = Blocks(bits & Blocks::ALL.0);
            prop_assert_eq!(blocks.to_string().parse::<Blocks>().unwrap(), blocks);
            let again = blocks.ranges().fold(Blocks::EMPTY, |all, (first, count)| {
                all.union(Blocks::range(first, count).unwrap())
            });
            prop_assert_eq!(again, blocks);
        }

        #[test]
        fn lowest_takes_that_many_from_the_set(bits: u128, count in 0_u8..=100) {
            let blocks = Blocks(bits & Blocks::ALL.0);
            match blocks.lowest(count) {
                Some(taken) => {
                    prop_assert_eq!(taken.count(), count);
                    prop_assert!(taken.minus(blocks).is_empty());
                }
                None => prop_assert!(blocks.count() < count),
            }
        }
    }
}
