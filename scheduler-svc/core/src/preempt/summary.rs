//! What runs on each node, summed up, so that most nodes need no closer look.

use std::{cmp::Reverse, time::Duration};

use cnlab_model::{BLOCKS_PER_GPU, Timestamp};

use crate::{
    cluster::{Demand, MAX_GPUS, Node, NodeIx, Shape},
    plan::{JobId, Priority},
};

use super::{
    class,
    floors::{Floor, Floors},
    resident::Resident,
    room::Room,
};

/// Who runs on each node, and sums over those of each priority and below.
///
/// The sums may count some who do not give way to a certain newcomer: they bound what can be had from above and what it costs from below.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Summary {
    there: Vec<Vec<Resident>>,
    /// By priority.
    upto: [Sums; 4],
}

/// By node; in two lists, since most questions end with the first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Sums {
    held: Vec<Room>,
    gpus: Vec<[OnGpu; MAX_GPUS]>,
    floors: Floors,
}

/// Those on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnGpu {
    /// The sum of blocks times the moment since when their work is unsaved.
    saved: i128,
    /// The latest such moment.
    newest: Timestamp,
    /// The earliest.
    oldest: Timestamp,
}

impl Default for OnGpu {
    fn default() -> Self {
        Self {
            saved: 0,
            newest: Timestamp(i64::MIN),
            oldest: Timestamp(i64::MAX),
        }
    }
}

impl Summary {
    /// Notes that a job runs on a node. The sums are not right until [`Self::recount`].
    pub(super) fn insert(&mut self, ix: NodeIx, resident: Resident) {
        let nodes = ix.get().saturating_add(1);
        if nodes > self.there.len() {
            self.there.resize_with(nodes, Vec::new);
            for sums in &mut self.upto {
                sums.held.resize_with(nodes, Room::default);
                sums.gpus.resize_with(nodes, Default::default);
                sums.floors.grow(nodes);
            }
        }
        if let Some(there) = self.there.get_mut(ix.get()) {
            let at = there.partition_point(|other| other.id < resident.id);
            there.insert(at, resident);
        }
    }

    /// Notes that a job no longer runs on a node.
    pub(super) fn remove(&mut self, ix: NodeIx, id: JobId) {
        if let Some(there) = self.there.get_mut(ix.get()) {
            there.retain(|other| other.id != id);
        }
    }

    /// Notes when the work of a job was saved last.
    pub(super) fn saved(&mut self, ix: NodeIx, id: JobId, saved: Timestamp) {
        let there = self.there.get_mut(ix.get()).into_iter().flatten();
        for resident in there.filter(|resident| resident.id == id) {
            resident.price.saved = saved;
        }
    }

    /// Who runs on a node, by rising number.
    pub(super) fn there(&self, ix: NodeIx) -> &[Resident] {
        self.there.get(ix.get()).map_or(&[], Vec::as_slice)
    }

    /// Counts again those on a node who may give way at a moment, after so long a time.
    pub(super) fn recount(&mut self, ix: NodeIx, min_run: Duration, at: Timestamp) {
        let may = |there: &&Resident| !there.fixed && there.since.plus(min_run) <= at;
        let mut there: Vec<&Resident> = self.there(ix).iter().filter(may).collect();
        there.sort_by_key(|there| Reverse(there.price.saved));
        let mut upto: [(Room, [OnGpu; MAX_GPUS], Floor); 4] = Default::default();
        for resident in there {
            let saved = resident.price.saved;
            let level = class::level(resident.class.priority);
            let levels = upto.iter_mut().zip(1..).filter(|(_, upto)| level <= *upto);
            for ((held, gpus, floor), _) in levels {
                *held = held.plus(&resident.part);
                let parts = gpus.iter_mut().zip(resident.part.blocks).enumerate();
                for (gpu, (on, blocks)) in parts.filter(|(_, (_, blocks))| *blocks > 0) {
                    on.add(blocks, saved);
                    floor.add(gpu, blocks, saved);
                }
            }
        }
        for (sums, (held, gpus, floor)) in self.upto.iter_mut().zip(upto) {
            sums.floors.set(ix.get(), floor);
            if let Some(slot) = sums.held.get_mut(ix.get()) {
                *slot = held;
            }
            if let Some(slot) = sums.gpus.get_mut(ix.get()) {
                *slot = gpus;
            }
        }
    }

    fn upto(&self, priority: Priority) -> Option<&Sums> {
        let level = usize::try_from(class::level(priority)).ok()?;
        self.upto.get(level.checked_sub(1)?)
    }

    /// A bound of the GPU time that is lost if a task gets room on a node that has this much
    /// free, but not enough: at least that much. `None` where it cannot get room.
    pub(super) fn floor(
        &self,
        ix: NodeIx,
        room: &Room,
        demand: &Demand,
        priority: Priority,
        now: Timestamp,
    ) -> Option<u64> {
        let sums = self.upto(priority)?;
        let hosts = room.plus(sums.held.get(ix.get())?).hosts(demand, 1);
        hosts.then(|| sums.floors.at_least(ix.get(), room, demand, now))
    }

    /// Another such bound, from all work of the node: slower, and neither is always the higher
    /// one.
    pub(super) fn at_least(
        &self,
        ix: NodeIx,
        node: &Node,
        room: &Room,
        demand: &Demand,
        priority: Priority,
        now: Timestamp,
    ) -> Option<u128> {
        let sums = self.upto(priority)?;
        let held = sums.held.get(ix.get())?;
        if !room.plus(held).hosts(demand, 1) {
            return None;
        }
        let on_gpus = sums.gpus.get(ix.get())?;
        let gpus = room.blocks.into_iter().zip(held.blocks).zip(on_gpus);
        let gpus = gpus
            .take(node.gpus().into())
            .map(|((free, held), on)| (free, held, on));
        Some(match demand.shape() {
            Shape::CpuOnly => 0,
            Shape::Share(blocks) => gpus
                .filter(|(free, held, _)| free.saturating_add(*held) >= blocks)
                .map(|(free, held, on)| on.part(held, blocks.saturating_sub(free), now))
                .min()?,
            // Everybody on the GPUs goes; who is on several is counted on each with the
            // blocks there.
            Shape::Whole(count) => {
                let mut costs = [u128::MAX; MAX_GPUS];
                for (cost, (free, held, on)) in costs.iter_mut().zip(gpus) {
                    if free.saturating_add(held) == BLOCKS_PER_GPU {
                        *cost = on.all(held, now);
                    }
                }
                let gpus = costs.get_mut(..node.gpus().into())?;
                gpus.sort_unstable();
                gpus.iter()
                    .take(count.into())
                    .fold(0, |sum: u128, cost| sum.saturating_add(*cost))
            }
        })
    }
}

// Products of 64 bits and at most a hundred blocks stay below 2^71, so nothing here wraps;
// saturating multiplication of 128 bits would take most of the time.
impl OnGpu {
    fn add(&mut self, blocks: u8, saved: Timestamp) {
        if blocks > 0 {
            let weighted = i128::from(saved.0).wrapping_mul(blocks.into());
            self.saved = self.saved.wrapping_add(weighted);
            self.newest = self.newest.max(saved);
            self.oldest = self.oldest.min(saved);
        }
    }

    /// What is lost at least when all the blocks held here become free.
    fn all(&self, held: u8, now: Timestamp) -> u128 {
        let worked = i128::from(now.0)
            .wrapping_mul(held.into())
            .wrapping_sub(self.saved);
        u128::try_from(worked).unwrap_or(0)
    }

    /// What is lost at least when so many of the blocks held here become free: each was held
    /// by somebody who worked no shorter than the newest, and those that stay by nobody who
    /// worked longer than the oldest.
    fn part(&self, held: u8, short: u8, now: Timestamp) -> u128 {
        // As `Timestamp::since`, without the detour by seconds: this is asked very often.
        let each = |saved: Timestamp, blocks: u8| {
            let worked = u64::try_from(now.0.saturating_sub(saved.0)).unwrap_or(0);
            u128::from(worked).wrapping_mul(blocks.into())
        };
        let stay = held.saturating_sub(short);
        each(self.newest, short).max(self.all(held, now).saturating_sub(each(self.oldest, stay)))
    }
}
