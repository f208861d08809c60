//! Who goes first of those that wait.
//!
//! **Invariant**: the order depends on nothing that changes while somebody waits, so that
//! nobody's place gets worse but by the arrival of somebody who goes first.

use std::{cmp::Reverse, fmt};

use cnlab_model::Timestamp;
use serde::{Deserialize, Serialize};

/// The four classes, lowest first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Behind everything else.
    Low,
    /// What is not said otherwise.
    #[default]
    Normal,
    /// Ahead of the normal.
    High,
    /// Ahead of everything else.
    Critical,
}

impl Priority {
    /// Every class, lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The place in the queue, lower first: class, then deadline (earliest first, none last), then
/// age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    priority: Reverse<Priority>,
    deadline: Timestamp,
    since: Timestamp,
}

impl Turn {
    /// The turn of somebody who waits since a time.
    #[must_use]
    pub const fn new(priority: Priority, deadline: Option<Timestamp>, since: Timestamp) -> Self {
        Self {
            priority: Reverse(priority),
            deadline: match deadline {
                Some(at) => at,
                None => Timestamp(i64::MAX),
            },
            since,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn class_then_deadline_then_age() {
        let at = |n| Some(Timestamp(n));
        let sorted = [
            Turn::new(Priority::Critical, None, Timestamp(9)),
            Turn::new(Priority::High, at(50), Timestamp(8)),
            Turn::new(Priority::High, at(60), Timestamp(1)),
            Turn::new(Priority::High, None, Timestamp(1)),
            Turn::new(Priority::Normal, at(10), Timestamp(7)),
            Turn::new(Priority::Normal, None, Timestamp(2)),
            Turn::new(Priority::Normal, None, Timestamp(3)),
            Turn::new(Priority::Low, at(1), Timestamp(0)),
        ];
        let mut mixed = sorted;
        mixed.reverse();
        mixed.sort_unstable();
        assert_eq!(mixed, sorted);
        assert_eq!(Priority::default(), Priority::Normal);
        assert_eq!(Priority::Critical.to_string(), "critical");
    }

    proptest! {
        /// An independent statement of the same: compare the three one after the other.
        #[test]
        fn it_is_the_order_of_the_three(
            a in (0_usize..4, proptest::option::of(0_i64..9), 0_i64..9),
            b in (0_usize..4, proptest::option::of(0_i64..9), 0_i64..9),
        ) {
            let turn = |(class, deadline, since): (usize, Option<i64>, i64)| {
                Turn::new(Priority::ALL[class], deadline.map(Timestamp), Timestamp(since))
            };
            let first = if a.0 != b.0 {
                a.0 > b.0
            } else if a.1 != b.1 {
                match (a.1, b.1) {
                    (Some(a), Some(b)) => a < b,
                    (deadline, _) => deadline.is_some(),
                }
            } else {
                a.2 < b.2
            };
            prop_assert_eq!(turn(a) < turn(b), first);
        }
    }
}
