//! What happened lately, and how good a forecast from it would have been.
//!
//! Both estimators of this crate (how long a run lasts, how long a start takes) ask the same
//! of their past: a middle, a bound that most stay below, and an honest error. The error is
//! *prequential*: what was forecast from the observations before each observation, compared
//! with that observation. It therefore never judges a forecast by what it was made from.

use std::{collections::VecDeque, time::Duration};

/// How many observations make a forecast worth more than a declaration.
pub const ENOUGH: usize = 5;

/// Of a thousand observations, so many are to stay below the bound.
pub const BOUND_PERMILLE: usize = 900;

/// A forecast from past observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Half last no longer.
    pub likely: Duration,
    /// Nine of ten last no longer, where there are enough observations to say so.
    pub bound: Duration,
}

/// How good the forecasts were that could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// How many forecasts met their observation.
    pub checked: usize,
    /// Of a thousand observations, how many ended within the bound.
    pub within_bound_permille: u16,
    /// The median of the distance between the likely time and the observed one.
    pub median_error: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Observation {
    length: Duration,
    forecast: Option<Forecast>,
}

/// The latest observations of one kind, oldest first.
///
/// **Invariant**: at most `capacity` are kept.
#[derive(Debug, Clone)]
pub(crate) struct History {
    capacity: usize,
    observations: VecDeque<Observation>,
}

impl History {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            observations: VecDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.observations.len()
    }

    /// Takes an observation in, together with what would have been forecast for it.
    pub(crate) fn observe(&mut self, length: Duration) {
        let forecast = (self.len() >= ENOUGH)
            .then(|| self.forecast(Duration::ZERO))
            .flatten();
        if self.len() >= self.capacity {
            self.observations.pop_front();
        }
        self.observations
            .push_back(Observation { length, forecast });
    }

    /// How many lasted longer than `age`.
    pub(crate) fn longer_than(&self, age: Duration) -> usize {
        self.observations
            .iter()
            .filter(|seen| age.is_zero() || seen.length > age)
            .count()
    }

    /// The whole length of one that has lasted for `age` already: as those did that lasted
    /// longer. `None` when none did.
    pub(crate) fn forecast(&self, age: Duration) -> Option<Forecast> {
        let mut lengths: Vec<Duration> = self
            .observations
            .iter()
            .map(|seen| seen.length)
            .filter(|length| age.is_zero() || *length > age)
            .collect();
        lengths.sort_unstable();
        Some(Forecast {
            likely: rank(&lengths, 500, lengths.len())?,
            // Counting the one to come as another observation makes the share hold for it,
            // too, when it is like the others.
            bound: rank(&lengths, BOUND_PERMILLE, lengths.len().saturating_add(1))?,
        })
    }

    /// `None` until a forecast met its observation.
    pub(crate) fn accuracy(&self) -> Option<Accuracy> {
        let mut errors = Vec::new();
        let mut within: usize = 0;
        for seen in &self.observations {
            if let Some(forecast) = seen.forecast {
                errors.push(seen.length.abs_diff(forecast.likely));
                within = within.saturating_add(usize::from(seen.length <= forecast.bound));
            }
        }
        errors.sort_unstable();
        let checked = errors.len();
        let permille = within.saturating_mul(1000).checked_div(checked)?;
        Some(Accuracy {
            checked,
            within_bound_permille: u16::try_from(permille).unwrap_or(1000),
            median_error: rank(&errors, 500, checked)?,
        })
    }
}

/// The smallest value that `permille` thousandths of `count` do not exceed, or the largest.
fn rank(sorted: &[Duration], permille: usize, count: usize) -> Option<Duration> {
    let rank = permille.saturating_mul(count).div_ceil(1000);
    let index = rank.min(sorted.len()).checked_sub(1)?;
    sorted.get(index).copied()
}

#[cfg(test)]
mod tests;
