//! How long runs last, learned from those of their kind that ended.
//!
//! A kind is a team, an image, a profile and the longest time that was asked for. When too
//! few runs of that kind ended, a coarser one answers; when none does, what was declared;
//! when nothing was declared, the few runs there are; else the length is unknown, and says so.
//!
//! **Invariant**: an estimate is never longer than the declared longest time, and the memory
//! of an estimator is bounded whatever it is taught.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::id::TeamId;

use crate::history::History;
pub use crate::history::{Accuracy, BOUND_PERMILLE, ENOUGH, Forecast};

/// How many runs of a kind are remembered: enough for a bound that nine of ten stay below,
/// few enough to follow a team that changes what it does.
const RUNS_PER_KIND: usize = 64;

/// How many kinds are remembered; the one that was not taught for longest is forgotten.
const KINDS: usize = 4096;

/// The shortest time that is announced for something that is not finished.
const SOON: Duration = Duration::from_secs(1);

/// What is known of a run before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// The team that pays.
    pub team: TeamId,
    /// Short name of the image.
    pub image: String,
    /// Name of the profile.
    pub profile: String,
    /// After which the run is stopped, where that was said.
    pub max_runtime: Option<Duration>,
}

/// How coarse the kind was that answered, finest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Team, image, profile, and a longest time of the same size (within a factor of two).
    Exact,
    /// Team, image and profile.
    TeamImageProfile,
    /// Team and image.
    TeamImage,
    /// Image and profile, of every team.
    ImageProfile,
}

impl Level {
    /// Every level, finest first.
    pub const ALL: [Self; 4] = [
        Self::Exact,
        Self::TeamImageProfile,
        Self::TeamImage,
        Self::ImageProfile,
    ];
}

/// What an estimate rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Runs that ended.
    History {
        /// How alike they were.
        level: Level,
        /// How many.
        runs: usize,
        /// How good such estimates were.
        accuracy: Option<Accuracy>,
    },
    /// Only the declared longest time is known.
    Declared,
    /// It has run longer than all that are remembered.
    Outlived,
}

/// How long a run lasts, or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// As likely longer as shorter.
    pub likely: Duration,
    /// Nine of ten are over by then.
    pub bound: Duration,
    /// Why.
    pub basis: Basis,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    level: Level,
    team: Option<TeamId>,
    image: String,
    profile: Option<String>,
    /// The longest time as a power of two of seconds.
    magnitude: Option<u32>,
}

impl Key {
    fn of(kind: &Kind, level: Level) -> Self {
        let (team, profile, exact) = match level {
            Level::Exact => (true, true, true),
            Level::TeamImageProfile => (true, true, false),
            Level::TeamImage => (true, false, false),
            Level::ImageProfile => (false, true, false),
        };
        Self {
            level,
            team: team.then_some(kind.team),
            image: kind.image.clone(),
            profile: profile.then(|| kind.profile.clone()),
            magnitude: kind
                .max_runtime
                .filter(|_| exact)
                .map(|longest| longest.as_secs().checked_ilog2().unwrap_or(0)),
        }
    }
}

#[derive(Debug)]
struct Taught {
    history: History,
    /// The lesson at which this was taught last.
    lesson: u64,
}

/// Learns how long runs last.
#[derive(Debug, Default)]
pub struct RuntimeEstimator {
    kinds: BTreeMap<Key, Taught>,
    /// Keys by the lesson that taught them last.
    by_lesson: BTreeMap<u64, Key>,
    lessons: u64,
}

impl RuntimeEstimator {
    /// Takes in a run that ended by itself or at its longest time. One that was pre-empted or
    /// stopped by a person says nothing about its kind, and is not to be told.
    pub fn learn(&mut self, kind: &Kind, lasted: Duration) {
        for level in Level::ALL {
            let key = Key::of(kind, level);
            self.lessons = self.lessons.saturating_add(1);
            let lesson = self.lessons;
            let taught = self.kinds.entry(key.clone()).or_insert_with(|| Taught {
                history: History::new(RUNS_PER_KIND),
                lesson,
            });
            self.by_lesson.remove(&taught.lesson);
            taught.lesson = lesson;
            taught.history.observe(lasted);
            self.by_lesson.insert(lesson, key);
        }
        while self.kinds.len() > KINDS
            && let Some((_, oldest)) = self.by_lesson.pop_first()
        {
            self.kinds.remove(&oldest);
        }
    }

    /// How long a run of this kind lasts that has not begun; `None` when nothing is known.
    #[must_use]
    pub fn length(&self, kind: &Kind) -> Option<Estimate> {
        self.remaining(kind, Duration::ZERO)
    }

    /// How long a run of this kind goes on that has lasted for `age`: as runs did that lasted
    /// longer. One that outlived all of them is expected to last as long again. Never zero,
    /// and never beyond the longest time, for one that has any of it left.
    #[must_use]
    pub fn remaining(&self, kind: &Kind, age: Duration) -> Option<Estimate> {
        let total = self
            .alike(kind, age, ENOUGH)
            .or_else(|| {
                kind.max_runtime.map(|longest| Estimate {
                    likely: longest,
                    bound: longest,
                    basis: Basis::Declared,
                })
            })
            .or_else(|| self.alike(kind, age, 1))
            .or_else(|| {
                (!age.is_zero()).then(|| Estimate {
                    likely: age.saturating_mul(2),
                    bound: age.saturating_mul(2),
                    basis: Basis::Outlived,
                })
            })?;
        let longest = kind.max_runtime.unwrap_or(Duration::MAX);
        let left = |length: Duration| length.min(longest).saturating_sub(age).max(SOON);
        Some(Estimate {
            likely: left(total.likely),
            bound: left(total.bound),
            basis: total.basis,
        })
    }

    /// From the finest level of which at least `enough` runs lasted longer than `age`.
    fn alike(&self, kind: &Kind, age: Duration, enough: usize) -> Option<Estimate> {
        Level::ALL.into_iter().find_map(|level| {
            let history = &self.kinds.get(&Key::of(kind, level))?.history;
            let runs = history.longer_than(age);
            if runs < enough {
                return None;
            }
            let forecast = history.forecast(age)?;
            // Too few to say what nine of ten do: only the declaration bounds them.
            let bound = match kind.max_runtime {
                Some(longest) if runs < BOUNDED => longest,
                Some(_) | None => forecast.bound,
            };
            Some(Estimate {
                likely: forecast.likely,
                bound,
                basis: Basis::History {
                    level,
                    runs,
                    accuracy: history.accuracy(),
                },
            })
        })
    }
}

/// The fewest runs whose largest is a bound that nine of ten stay below.
const BOUNDED: usize = 9;

#[cfg(test)]
mod tests;
