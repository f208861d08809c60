//! Which nodes would do for whom, as the small numbers of the core.

use std::collections::BTreeMap;

use scheduler_core::cluster::{Kind, KindSet};

/// From how many kinds on disks are told apart only roughly: the core has 64 numbers.
const EXACT: usize = 40;

/// What the core must tell apart: the family of GPUs, and how large a volume can be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Traits {
    family: String,
    /// In bytes, never more than there are.
    disk: u64,
}

/// The kinds that this cell has seen.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    known: BTreeMap<Traits, Kind>,
}

/// The largest power of two that is not larger.
fn rough(disk: u64) -> u64 {
    disk.checked_ilog2().map_or(0, |log| 1 << log)
}

impl Kinds {
    /// The kind of a node with GPUs of a family beside a disk of so many bytes; `None` when
    /// there are too many families.
    pub(super) fn of(&mut self, family: &str, disk: u64) -> Option<Kind> {
        let disk = if self.known.len() < EXACT {
            disk
        } else {
            rough(disk)
        };
        let traits = Traits {
            family: family.to_owned(),
            disk,
        };
        if let Some(kind) = self.known.get(&traits) {
            return Some(*kind);
        }
        let kind = u8::try_from(self.known.len()).ok().and_then(Kind::new)?;
        self.known.insert(traits, kind);
        Some(kind)
    }

    /// The kinds of a family with room for a volume of so many bytes, if there is any.
    pub(super) fn for_volume(&self, family: &str, bytes: u64) -> Option<KindSet> {
        self.matching(|traits| traits.family == family && traits.disk >= bytes)
    }

    /// The kinds of a family, if there is any.
    pub(super) fn of_family(&self, family: &str) -> Option<KindSet> {
        self.matching(|traits| traits.family == family)
    }

    /// The family of a kind.
    pub(super) fn family(&self, kind: Kind) -> Option<&str> {
        let mut known = self.known.iter();
        let found = known.find(|(_, known)| **known == kind);
        found.map(|(traits, _)| traits.family.as_str())
    }

    fn matching(&self, wanted: impl Fn(&Traits) -> bool) -> Option<KindSet> {
        let found = self.known.iter().filter(|(traits, _)| wanted(traits));
        let mut found = found.map(|(_, kind)| *kind).peekable();
        // The empty set would stand for every kind.
        found.peek()?;
        Some(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_told_apart_exactly_until_there_are_many() {
        let mut kinds = Kinds::default();
        let small = kinds.of("H100", 999).unwrap();
        let large = kinds.of("H100", 1_001).unwrap();
        let other = kinds.of("A100", 5_000).unwrap();
        assert_eq!(kinds.of("H100", 999), Some(small));
        let fits = kinds.for_volume("H100", 1_000).unwrap();
        assert!(fits.admits(large) && !fits.admits(small) && !fits.admits(other));
        assert_eq!(kinds.for_volume("H100", 1_002), None);
        let all = kinds.of_family("H100").unwrap();
        assert!(all.admits(small) && all.admits(large) && !all.admits(other));
        assert_eq!(kinds.of_family("L40S"), None);

        for disk in 0..1000 {
            let kind = kinds.of("H100", (1 << 40) + disk).unwrap();
            // Never more than there is.
            let fits = kinds.for_volume("H100", 1 << 40).unwrap();
            assert!(fits.admits(kind), "{disk}");
        }
        assert!(kinds.known.len() <= EXACT + 1);
    }

    #[test]
    fn there_is_an_end_of_kinds_and_it_is_said() {
        let mut kinds = Kinds::default();
        let families = (0..100).map(|n| kinds.of(&format!("GPU-{n}"), 1));
        assert_eq!(
            families.filter(Option::is_some).count(),
            usize::from(Kind::LIMIT)
        );
    }
}
