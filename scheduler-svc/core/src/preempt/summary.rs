//! What runs on one node, summed up, so that most nodes need no closer look.

use std::collections::BTreeSet;

use cnlab_model::{BLOCKS_PER_GPU, Timestamp};

use crate::{
    cluster::{Demand, NodeIx, Shape},
    plan::{JobId, Priority},
};

use super::{Running, class, room::Room};

/// Who runs on a node, and sums over those of each priority and below.
///
/// The sums count everybody of these priorities, whether or not the rest allows that they
/// give way: they bound what can be had from above and what it costs from below.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Summary {
    pub(super) jobs: BTreeSet<JobId>,
    upto: [Sums; 4],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    held: Room,
    /// The latest moment at which the state of one of them was saved or it began.
    newest: Option<Timestamp>,
}

impl Summary {
    /// Counts again what runs here.
    pub(super) fn recount<'a>(&mut self, ix: NodeIx, jobs: impl Iterator<Item = &'a Running>) {
        self.upto = [Sums::default(); 4];
        for running in jobs {
            let held = Room::held(running, ix);
            let saved = running.saved();
            let level = class::level(running.job.priority);
            for (sums, upto) in self.upto.iter_mut().zip(1..) {
                if level <= upto {
                    sums.held = sums.held.plus(&held);
                    sums.newest = sums.newest.max(Some(saved));
                }
            }
        }
    }

    /// A bound of the GPU time that is lost if a task gets room here: at least that much.
    /// `None` where it cannot get room.
    pub(super) fn at_least(
        &self,
        room: &Room,
        demand: &Demand,
        priority: Priority,
        now: Timestamp,
    ) -> Option<u128> {
        let level = usize::try_from(class::level(priority)).ok()?;
        let sums = self.upto.get(level.checked_sub(1)?)?;
        let newest = sums.newest?;
        if room.plus(&sums.held).tasks(demand) == 0 {
            return None;
        }
        // Every block that is short was held by somebody who worked at least so long.
        let short = short(room, demand);
        Some(now.since(newest).as_micros().saturating_mul(short.into()))
    }
}

/// How many blocks have to become free for one task, wherever it goes.
fn short(room: &Room, demand: &Demand) -> u32 {
    let mut free = room.blocks;
    free.sort_unstable();
    let mut most = free.iter().rev();
    match demand.shape() {
        Shape::CpuOnly => 0,
        Shape::Share(blocks) => blocks
            .saturating_sub(most.next().copied().unwrap_or(0))
            .into(),
        Shape::Whole(gpus) => most.take(gpus.into()).fold(0_u32, |short, free| {
            short.saturating_add(BLOCKS_PER_GPU.saturating_sub(*free).into())
        }),
    }
}
