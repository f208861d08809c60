//! How long things take, learned from how long they took: integers only, no averages that
//! one slow start can spoil.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::{BLOCKS_PER_GPU, Timestamp, id::NodeId};
use serde::{Deserialize, Serialize};

use crate::{
    decide::Request,
    snapshot::{Gpu, Node, Snapshot},
};

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

/// The expected wait of a request behind the queue of the snapshot: every holder leaves when
/// runs like it did, those who wait go first and in order, and nobody stops on purpose.
///
/// `None` when the nodes that answer can never hold it.
#[must_use]
pub fn wait(snapshot: &Snapshot, request: &Request, now: Timestamp) -> Option<Duration> {
    let mut cell = Forecast::of(snapshot, now);
    if !cell.can_ever_hold(request) {
        return None;
    }
    let run = snapshot.run_lengths.typical();
    let mut clock = Duration::ZERO;
    let ahead = snapshot.queue.iter().filter(|ahead| {
        // Families share nothing; one that can never be placed holds up nobody.
        ahead.family == request.family && cell.can_ever_hold(ahead)
    });
    for ahead in ahead.collect::<Vec<_>>() {
        clock = cell.place(ahead, clock, run)?;
    }
    cell.place(request, clock, run)
}

/// Free blocks per GPU, and when more come.
struct Forecast<'a> {
    gpus: Vec<Room<'a>>,
    /// Blocks that come back, by time from now and GPU.
    ends: BTreeMap<(Duration, usize), u8>,
}

struct Room<'a> {
    node: &'a Node,
    gpu: &'a Gpu,
    free: u8,
}

impl Room<'_> {
    /// Whether this GPU could hold the request when it is empty.
    fn suits(&self, request: &Request) -> bool {
        self.gpu.family == request.family
            && request
                .volume_on
                .map_or(request.storage_bytes <= self.node.disk_bytes, |pinned| {
                    pinned == self.node.id
                })
    }
}

impl<'a> Forecast<'a> {
    fn of(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let mut forecast = Self {
            gpus: Vec::new(),
            ends: BTreeMap::new(),
        };
        for (node, _, gpu) in snapshot.gpus().filter(|(node, ..)| node.answers) {
            for holder in &gpu.holders {
                let rest = snapshot.run_lengths.rest(now.since(holder.since));
                forecast.end(rest, forecast.gpus.len(), holder.blocks.count());
            }
            forecast.gpus.push(Room {
                node,
                gpu,
                free: gpu.free().count(),
            });
        }
        forecast
    }

    fn can_ever_hold(&self, request: &Request) -> bool {
        request.blocks <= BLOCKS_PER_GPU && self.gpus.iter().any(|room| room.suits(request))
    }

    fn end(&mut self, at: Duration, gpu: usize, blocks: u8) {
        let coming = self.ends.entry((at, gpu)).or_insert(0);
        *coming = coming.saturating_add(blocks);
    }

    /// Lets time pass from `clock` until the request fits, places it, and says when that is.
    fn place(&mut self, request: &Request, mut clock: Duration, run: Duration) -> Option<Duration> {
        loop {
            let room = self
                .gpus
                .iter_mut()
                .enumerate()
                .filter(|(_, room)| room.free >= request.blocks && room.suits(request))
                .min_by_key(|(_, room)| room.free);
            if let Some((index, room)) = room {
                room.free = room.free.saturating_sub(request.blocks);
                self.end(clock.saturating_add(run), index, request.blocks);
                return Some(clock);
            }
            let ((at, index), blocks) = self.ends.pop_first()?;
            clock = clock.max(at);
            if let Some(room) = self.gpus.get_mut(index) {
                room.free = room.free.saturating_add(blocks);
            }
        }
    }
}

#[cfg(test)]
mod tests;
