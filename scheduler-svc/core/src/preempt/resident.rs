//! What a node remembers of somebody who runs there, so that a search of it reads one list.

use cnlab_model::Timestamp;

use crate::{cluster::NodeIx, plan::JobId};

use super::{Class, Loss, Running, class, room::Room};

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resident {
    pub(super) id: JobId,
    pub(super) class: Class,
    pub(super) since: Timestamp,
    pub(super) fixed: bool,
    pub(super) price: Price,
    /// What it holds on the node.
    pub(super) part: Room,
}

/// What it costs to make a job give way, whenever that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Price {
    /// Since when its work is unsaved.
    pub(super) saved: Timestamp,
    /// Blocks of all of its tasks.
    blocks: u64,
    /// Thousandths of a processor of all of its tasks.
    cpu: u64,
    level: u32,
}

impl Resident {
    pub(super) fn of(running: &Running, ix: NodeIx) -> Self {
        Self {
            id: running.job.id,
            class: running.class(),
            since: running.since,
            fixed: running.fixed,
            price: Price::of(running),
            part: Room::held(running, ix),
        }
    }
}

impl Price {
    pub(super) fn of(running: &Running) -> Self {
        let tasks = u64::try_from(running.places.len()).unwrap_or(u64::MAX);
        let demand = &running.job.ask.demand;
        Self {
            saved: running.saved(),
            blocks: tasks.saturating_mul(demand.total_blocks().into()),
            cpu: tasks.saturating_mul(demand.cpu_milli().into()),
            level: class::level(running.job.priority),
        }
    }

    /// The loss at a moment.
    pub(super) fn loss(&self, now: Timestamp) -> Loss {
        let time = now.since(self.saved).as_micros();
        Loss {
            gpu: time.saturating_mul(self.blocks.into()),
            victims: 1,
            priorities: self.level,
            cpu: time.saturating_mul(self.cpu.into()),
        }
    }
}
