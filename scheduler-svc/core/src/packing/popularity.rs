//! How often tasks of each class come: told, or learned from those that came.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts are halved long before they reach 2^32, memories long before 2^64"
)]

use std::collections::BTreeMap;

use super::Class;
use super::plan::Expected;

/// Arrivals after which all counts are halved, so that what came long ago is forgotten.
const MEMORY: u64 = 40_000;
/// The fewest arrivals between two plans.
const FIRST: u32 = 25;

/// The popularity of classes.
#[derive(Debug, Clone, Default)]
pub struct Popularity {
    /// Told; handed over once.
    known: Option<Vec<Expected>>,
    learns: bool,
    seen: BTreeMap<Class, Seen>,
    all: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    count: u64,
    memory: u64,
}

impl Popularity {
    /// Popularity that is known and does not change.
    #[must_use]
    pub fn known(expected: Vec<Expected>) -> Self {
        Self {
            known: Some(expected),
            ..Self::default()
        }
    }

    /// Popularity that is learned from arrivals.
    #[must_use]
    pub fn learned() -> Self {
        Self {
            learns: true,
            ..Self::default()
        }
    }

    /// A task came; memory in MiB.
    pub fn arrived(&mut self, class: &Class, memory: u32) {
        if !self.learns {
            return;
        }
        let seen = self.seen.entry(*class).or_default();
        seen.count += 1;
        seen.memory += u64::from(memory);
        self.all += 1;
        if self.all >= MEMORY {
            for seen in self.seen.values_mut() {
                seen.count /= 2;
                seen.memory /= 2;
            }
            self.seen.retain(|_, seen| seen.count > 0);
            self.all = self.seen.values().map(|seen| seen.count).sum();
        }
    }

    /// Arrivals until the next plan: `every`, but few while little is known, and never one by
    /// one.
    #[must_use]
    pub fn plan_every(&self, every: u32) -> u32 {
        let every = every.max(FIRST);
        if self.learns {
            let all = u32::try_from(self.all).unwrap_or(u32::MAX);
            all.clamp(FIRST, every)
        } else {
            every
        }
    }

    /// What is expected, when that changed since it was last asked for.
    pub fn expected(&mut self) -> Option<Vec<Expected>> {
        if !self.learns {
            return self.known.take();
        }
        Some(
            self.seen
                .iter()
                .map(|(&class, seen)| Expected {
                    class,
                    memory: u32::try_from(seen.memory / seen.count.max(1)).unwrap_or(u32::MAX),
                    count: u32::try_from(seen.count).unwrap_or(u32::MAX),
                })
                .collect(),
        )
    }
}
