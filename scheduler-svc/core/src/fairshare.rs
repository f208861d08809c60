//! Fair share: what each team used of the cell in the last seven days, and who comes next.
//!
//! A team's *share* is its dominant one: of GPU blocks, GPU memory, processors and memory the
//! resource of which it used the largest part of what the cell has, over the last seven days,
//! divided by its weight. The team with the least share comes first.
//!
//! **Invariants**: exact, in integers; use leaves the window as gradually as it came in, so a
//! share is right at every moment and not only after a recalculation; a change costs one
//! look-up among the teams; the order in which changes of one moment come does not matter.
//!
//! ```text
//!          WINDOW
//!   ├──────────────────┤
//!   ▁▁▃▃▃▇▇▇▃▃▁▁▁▃▃▃▃▃▃  held over time, one mark per change
//!   │                  └── now: use until now        C(now)
//!   └── now - 7 days: use until then                 C(now - 7 days), interpolated at its mark
//!   use in the window = C(now) - C(now - 7 days)
//! ```
//!
//! # The clock
//!
//! Use is counted in *passed* time: the sum of all steps forward between the moments that
//! [`FairShare`] was told of. A step backward counts as none, and what comes after it counts
//! from there. So a clock that is set back by an hour neither returns use nor stops the
//! account for an hour, and one that jumps forward and back costs its jump once.
//!
//! # Memory
//!
//! About a hundred bytes for each change of the last seven days. Changes of one team at one
//! moment share them.

mod account;
mod share;

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use cnlab_model::{Timestamp, id::TeamId};
use thiserror::Error;

use account::Account;
pub use share::{Resource, Share};

/// How far back use counts.
pub const WINDOW: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// [`WINDOW`] in microseconds.
const WINDOW_MICROS: u64 = 7 * 24 * 60 * 60 * 1_000_000;

/// An amount of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// GPU blocks, each a hundredth of a GPU.
    pub blocks: u64,
    /// GPU memory in MiB.
    pub vram_mib: u64,
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// Why a change was not noted; nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// The team would give back more than it has.
    #[error("the team gives back more than it has")]
    NotHeld,
    /// The team would hold more than 2^64 - 1 of something.
    #[error("the team would hold more than can be counted")]
    TooMuch,
}

/// Passed time, from moments that may lie before earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Passed {
    last: Option<Timestamp>,
    micros: u64,
}

impl Passed {
    /// How much has passed at a moment.
    fn at(self, now: Timestamp) -> u64 {
        let step = self.last.map_or(0, |last| {
            u64::try_from(i128::from(now.0).saturating_sub(last.0.into())).unwrap_or(0)
        });
        self.micros.saturating_add(step)
    }

    /// Notes a moment.
    fn step(&mut self, now: Timestamp) -> u64 {
        self.micros = self.at(now);
        self.last = Some(now);
        self.micros
    }
}

/// The account of all teams of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairShare {
    capacity: Amount,
    passed: Passed,
    teams: BTreeMap<TeamId, Account>,
}

impl FairShare {
    /// No use yet, in a cell that has this much.
    #[must_use]
    pub const fn new(capacity: Amount) -> Self {
        Self {
            capacity,
            passed: Passed {
                last: None,
                micros: 0,
            },
            teams: BTreeMap::new(),
        }
    }

    /// Says what the cell has now. Shares are parts of what it has now, also of the time
    /// before; a resource of which it has nothing does not count.
    pub const fn set_capacity(&mut self, capacity: Amount) {
        self.capacity = capacity;
    }

    /// Gives a team a weight: with twice the weight it may use twice as much. Teams start
    /// with 1.
    pub fn set_weight(&mut self, team: TeamId, weight: NonZeroU32) {
        self.teams.entry(team).or_default().set_weight(weight);
    }

    /// Notes that a team holds this much more from now on.
    ///
    /// # Errors
    /// [`Refused::TooMuch`].
    pub fn hold(&mut self, team: TeamId, more: Amount, now: Timestamp) -> Result<(), Refused> {
        let passed = self.passed.step(now);
        let account = self.teams.entry(team).or_default();
        account
            .change(passed, |held, more| held.checked_add(more), more)
            .ok_or(Refused::TooMuch)
    }

    /// Notes that a team holds this much less from now on.
    ///
    /// # Errors
    /// [`Refused::NotHeld`].
    pub fn release(&mut self, team: TeamId, less: Amount, now: Timestamp) -> Result<(), Refused> {
        let passed = self.passed.step(now);
        self.teams
            .get_mut(&team)
            .and_then(|account| account.change(passed, |held, less| held.checked_sub(less), less))
            .ok_or(Refused::NotHeld)
    }

    /// Forgets the teams that hold nothing, used nothing in the window and have the weight 1.
    /// Their shares are zero before and after.
    pub fn forget(&mut self, now: Timestamp) {
        let passed = self.passed.step(now);
        self.teams.retain(|_, account| !account.is_blank(passed));
    }

    /// What a team holds.
    #[must_use]
    pub fn held(&self, team: TeamId) -> Amount {
        self.teams
            .get(&team)
            .map_or(Amount::default(), Account::held)
    }

    /// What a team used of a resource in the seven days before a moment: amount times
    /// microseconds. A moment before the last change counts as that of the last change.
    #[must_use]
    pub fn used(&self, team: TeamId, resource: Resource, now: Timestamp) -> u128 {
        let used = self
            .teams
            .get(&team)
            .map(|account| account.used(self.passed.at(now)));
        resource.of(&used.unwrap_or_default())
    }

    /// The share of a team at a moment, which may lie in the future: what it holds now, it
    /// holds until then.
    #[must_use]
    pub fn share(&self, team: TeamId, now: Timestamp) -> Share {
        let passed = self.passed.at(now);
        self.teams
            .get(&team)
            .map_or(Share::NOTHING, |account| self.share_of(account, passed))
    }

    /// The teams with their shares, the least first, of equals the lowest id.
    #[must_use]
    pub fn order(&self, now: Timestamp) -> Vec<(TeamId, Share)> {
        let passed = self.passed.at(now);
        let mut order: Vec<(TeamId, Share)> = self
            .teams
            .iter()
            .map(|(team, account)| (*team, self.share_of(account, passed)))
            .collect();
        // Stable: equals stay in the order of their ids.
        order.sort_by_key(|(_, share)| *share);
        order
    }

    /// Of these teams the one that comes next: the least share, of equals the lowest id.
    #[must_use]
    pub fn next(&self, teams: impl IntoIterator<Item = TeamId>, now: Timestamp) -> Option<TeamId> {
        teams
            .into_iter()
            .map(|team| (self.share(team, now), team))
            .min()
            .map(|(_, team)| team)
    }

    fn share_of(&self, account: &Account, passed: u64) -> Share {
        Share::of(&account.used(passed), &self.capacity, account.weight())
    }
}

#[cfg(test)]
mod tests;
