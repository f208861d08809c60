//! How long things take, learned from how long they took: integers only, no averages that
//! one slow start can spoil.

use std::time::Duration;

use cnlab_model::id::NodeId;
use serde::{Deserialize, Serialize};

/// How many past starts an estimate looks at: enough for a steady median, few enough to
/// follow a machine that became faster.
pub const RECENT: usize = 9;

/// The shortest time that is announced for something that is not finished.
const SOON: Duration = Duration::from_secs(1);

/// One start that became ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastStart {
    /// Short name of the image.
    pub image: String,
    /// Where.
    pub node: NodeId,
    /// Whether the environment had been built before.
    pub environment_ready: bool,
    /// From the placement until the page answered.
    pub took: Duration,
}

/// Expected times of an image that was never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// To build the environment.
    pub build: Duration,
    /// To start in an environment that is built.
    pub start: Duration,
}

/// The middle of these times; of an even number, the mean of the two in the middle.
#[must_use]
pub fn median(times: impl IntoIterator<Item = Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = times.into_iter().collect();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    lower.checked_add(upper.saturating_sub(lower).checked_div(2)?)
}

/// The expected time from placement to ready.
///
/// `past` is newest first. Starts of this image on this node in the same condition count;
/// when there are none, those on other nodes; when there are none either, the catalogue's
/// defaults.
#[must_use]
pub fn provisioning(
    past: &[PastStart],
    image: &str,
    node: Option<NodeId>,
    environment_ready: bool,
    defaults: ImageDefaults,
) -> Duration {
    let alike = || {
        past.iter()
            .filter(|start| start.image == image && start.environment_ready == environment_ready)
    };
    let here = alike().filter(|start| Some(start.node) == node);
    median(here.map(|start| start.took).take(RECENT))
        .or_else(|| median(alike().map(|start| start.took).take(RECENT)))
        .unwrap_or(if environment_ready {
            defaults.start
        } else {
            defaults.build.saturating_add(defaults.start)
        })
}

/// What is left of an expected time; never zero, since it is not finished.
#[must_use]
pub fn remaining(expected: Duration, elapsed: Duration) -> Duration {
    expected.saturating_sub(elapsed).max(SOON)
}

/// How long servers ran before they gave their slice back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLengths {
    /// Counts as one past run, so that there is an estimate on the first day.
    pub prior: Duration,
    /// Past runs, in any order.
    pub past: Vec<Duration>,
}

impl Default for RunLengths {
    fn default() -> Self {
        Self {
            prior: Duration::from_secs(3600),
            past: Vec::new(),
        }
    }
}

impl RunLengths {
    fn all(&self) -> impl Iterator<Item = Duration> {
        self.past.iter().copied().chain([self.prior])
    }

    /// How long a run lasts that has not begun.
    #[must_use]
    pub fn typical(&self) -> Duration {
        median(self.all()).unwrap_or(self.prior)
    }

    /// How long a run goes on that has lasted for `age`: as runs did that lasted longer. One
    /// that outlived all of them is expected to last as long again.
    #[must_use]
    pub fn rest(&self, age: Duration) -> Duration {
        median(self.all().filter(|length| *length > age))
            .map_or(age, |length| length.saturating_sub(age))
            .max(SOON)
    }
}

#[cfg(test)]
mod tests;
