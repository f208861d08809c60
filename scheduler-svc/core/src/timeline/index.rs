//! Since when nodes have room, so that most of them need not be looked at.
//!
//! Bounds only: a node whose GPUs are free at last may lack processors, or be free for too
//! short a time. They leave out nodes that are certainly later than the best one so far.

use crate::cluster::{Demand, Kind, KindSet, NodeIx, Shape};

use super::lane::Lane;

/// The least that a node must have on one moment: blocks of one GPU, or entire GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Least {
    Blocks(u8),
    Gpus(u8),
}

/// From the smallest to the largest.
const CLASSES: [Least; 8] = [
    Least::Blocks(0),
    Least::Blocks(25),
    Least::Blocks(50),
    Least::Blocks(75),
    Least::Gpus(1),
    Least::Gpus(2),
    Least::Gpus(4),
    Least::Gpus(8),
];

/// The largest of the classes that a demand cannot do with less than.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(usize);

impl Class {
    pub(super) fn of(demand: &Demand) -> Self {
        let below = |least: &Least| match (least, demand.shape()) {
            (Least::Blocks(0), _) | (Least::Blocks(_), Shape::Whole(_)) => true,
            (Least::Blocks(least), Shape::Share(blocks)) => *least <= blocks,
            (Least::Gpus(least), Shape::Whole(gpus)) => *least <= gpus,
            (Least::Blocks(_), Shape::CpuOnly) | (Least::Gpus(_), _) => false,
        };
        let count = CLASSES.iter().take_while(|least| below(least)).count();
        Self(count.saturating_sub(1))
    }
}

/// For each node and class, the first moment with that much, and the first one from which on
/// it stays so.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    kinds: Vec<Option<Kind>>,
    ready: [Vec<i64>; CLASSES.len()],
    settled: [Vec<i64>; CLASSES.len()],
}

impl Index {
    pub(super) fn set(&mut self, ix: NodeIx, lane: &Lane) {
        self.reach(ix);
        let mut ready = [i64::MAX; CLASSES.len()];
        let mut settled = [i64::MAX; CLASSES.len()];
        for (from, left) in lane.steps() {
            let (widest, idle) = (left.widest(), left.idle());
            let bounds = ready.iter_mut().zip(&mut settled);
            for (least, (ready, settled)) in CLASSES.iter().zip(bounds) {
                let enough = match least {
                    Least::Blocks(blocks) => widest >= *blocks,
                    Least::Gpus(gpus) => idle >= *gpus,
                };
                if enough {
                    *ready = from.min(*ready);
                    *settled = from.min(*settled);
                } else {
                    *settled = i64::MAX;
                }
            }
        }
        if let Some(kind) = self.kinds.get_mut(ix.get()) {
            *kind = lane.eligible.then_some(lane.kind);
        }
        let bounds = self.ready.iter_mut().zip(ready);
        for (all, bound) in bounds.chain(self.settled.iter_mut().zip(settled)) {
            if let Some(slot) = all.get_mut(ix.get()) {
                *slot = bound;
            }
        }
    }

    pub(super) fn clear(&mut self, ix: NodeIx) {
        if let Some(kind) = self.kinds.get_mut(ix.get()) {
            *kind = None;
        }
    }

    fn reach(&mut self, ix: NodeIx) {
        let length = ix.get().saturating_add(1);
        if self.kinds.len() < length {
            self.kinds.resize(length, None);
            for all in self.ready.iter_mut().chain(&mut self.settled) {
                all.resize(length, i64::MAX);
            }
        }
    }

    /// The first moment at which a node has room of this class.
    pub(super) fn ready(&self, class: Class, ix: NodeIx) -> i64 {
        let all = self.ready.get(class.0);
        all.and_then(|all| all.get(ix.get()))
            .copied()
            .unwrap_or(i64::MAX)
    }

    /// Nodes that may get new work of these kinds, with their bounds for this class.
    pub(super) fn bounds(
        &self,
        class: Class,
        wanted: KindSet,
    ) -> impl Iterator<Item = (NodeIx, Bounds)> {
        let ready = self.ready.get(class.0).into_iter().flatten();
        let settled = self.settled.get(class.0).into_iter().flatten();
        let nodes = (0_u32..).map(NodeIx).zip(&self.kinds);
        nodes
            .zip(ready.zip(settled))
            .filter_map(move |((ix, kind), (ready, settled))| {
                let bounds = Bounds {
                    ready: *ready,
                    settled: *settled,
                };
                wanted.admits((*kind)?).then_some((ix, bounds))
            })
    }
}

/// Since when a node has room, and since when for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) ready: i64,
    pub(super) settled: i64,
}
