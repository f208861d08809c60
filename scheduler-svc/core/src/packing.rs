//! Says which node, and which of its GPUs, a task gets, so that as little GPU as possible is
//! stranded.
//!
//! **Invariants**: a task that fits somewhere is placed; integers only; the same sequence of
//! calls gives the same answers, bit for bit.
//!
//! ```text
//! tasks that arrived ──▶ popularity ──▶ plan (advice: who shares a GPU with whom)
//!                                         │
//! task ──▶ slot of the plan ──▶ slot of a like task ──▶ FGD beside the plan ──▶ FGD ──▶ none
//! ```
//!
//! Fragmentation gradient descent (FGD): Weng et al., "Beware of Fragmentation: Scheduling
//! GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.

pub mod board;
mod bundle;
pub mod cutting;
pub mod fgd;
mod gaps;
pub mod moves;
pub mod plan;
pub mod policy;
pub mod popularity;
mod rounding;

use crate::cluster::{Demand, GpuSet, Kind, KindSet, MAX_GPUS, Node, Shape};

/// One entire GPU, in blocks.
pub const WHOLE: u8 = cnlab_model::BLOCKS_PER_GPU;

/// What a demand asks for, but for its memory: tasks of one class are alike to a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Processor time, in thousandths of a core.
    pub cpu: u32,
    /// How many GPUs; zero for a task that only computes on processors.
    pub gpus: u8,
    /// Blocks of each GPU; [`WHOLE`] when there is more than one, zero when there is none.
    pub blocks: u8,
    /// The kinds of nodes that would do.
    pub kinds: KindSet,
}

impl Class {
    /// The class of a demand.
    #[must_use]
    pub const fn of(demand: &Demand) -> Self {
        Self {
            cpu: demand.cpu_milli(),
            gpus: demand.gpus(),
            blocks: demand.blocks(),
            kinds: demand.kinds(),
        }
    }

    /// Blocks of all GPUs together.
    #[must_use]
    pub fn total(&self) -> u32 {
        u32::from(self.gpus).saturating_mul(u32::from(self.blocks))
    }

    /// What it wants of GPUs.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        match self.gpus {
            0 => Shape::CpuOnly,
            1 if self.blocks < WHOLE => Shape::Share(self.blocks),
            gpus => Shape::Whole(gpus),
        }
    }

    /// The demand of this class without memory, or `None` where there is no such demand.
    #[must_use]
    pub fn demand(&self) -> Option<Demand> {
        let demand = match self.shape() {
            Shape::CpuOnly => Demand::cpu_only(self.cpu, 0),
            Shape::Share(blocks) => Demand::share(self.cpu, 0, blocks).ok()?,
            Shape::Whole(gpus) => Demand::whole(self.cpu, 0, gpus).ok()?,
        };
        Some(demand.on(self.kinds))
    }

    /// Whether it takes a part of one GPU.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.gpus == 1 && self.blocks < WHOLE
    }
}

/// What is free on a node, flat: plans work on copies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Processor time, in thousandths of a core.
    pub cpu: u32,
    /// Memory, in MiB.
    pub memory: u32,
    /// Blocks of each GPU; those past `count` are zero.
    pub gpus: [u8; MAX_GPUS],
    /// How many GPUs there are; none on a node that gets nothing new.
    pub count: u8,
    /// Their kind.
    pub kind: Kind,
    /// Whether the node may get new work.
    pub eligible: bool,
}

impl Free {
    /// What is free on a node.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let eligible = node.is_eligible();
        Self {
            cpu: if eligible { node.cpu_free() } else { 0 },
            memory: if eligible { node.memory_free() } else { 0 },
            gpus: if eligible {
                node.blocks_free()
            } else {
                [0; MAX_GPUS]
            },
            count: if eligible { node.gpus() } else { 0 },
            kind: node.kind(),
            eligible,
        }
    }

    /// The GPUs.
    #[must_use]
    pub fn gpus(&self) -> &[u8] {
        self.gpus.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// How many GPUs nobody uses.
    #[must_use]
    pub fn idle(&self) -> u8 {
        self.gpus()
            .iter()
            .fold(0, |n, &free| n.saturating_add(u8::from(free == WHOLE)))
    }

    /// Free blocks of all GPUs together.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.gpus()
            .iter()
            .fold(0, |sum, &free| sum.saturating_add(u32::from(free)))
    }

    /// Whether a task of the class fits, its memory aside.
    #[must_use]
    pub fn fits(&self, class: &Class) -> bool {
        if self.cpu < class.cpu || !self.eligible || !class.kinds.admits(self.kind) {
            return false;
        }
        class.gpus == 0 || {
            let mut roomy = 0_u8;
            for &free in self.gpus() {
                roomy = roomy.saturating_add(u8::from(free >= class.blocks));
            }
            roomy >= class.gpus
        }
    }

    /// What is left when a task takes GPUs. `None` when it does not fit there.
    #[must_use]
    pub fn take(&self, class: &Class, memory: u32, set: GpuSet) -> Option<Self> {
        if set.count() != u32::from(class.gpus) {
            return None;
        }
        let mut left = *self;
        left.cpu = left.cpu.checked_sub(class.cpu)?;
        left.memory = left.memory.checked_sub(memory)?;
        for gpu in set.iter() {
            if gpu >= usize::from(self.count) {
                return None;
            }
            let free = left.gpus.get_mut(gpu)?;
            *free = free.checked_sub(class.blocks)?;
        }
        Some(left)
    }

    /// Gives back what [`Free::take`] took.
    #[must_use]
    pub fn give(&self, class: &Class, memory: u32, set: GpuSet) -> Self {
        let mut left = *self;
        left.cpu = left.cpu.saturating_add(class.cpu);
        left.memory = left.memory.saturating_add(memory);
        for gpu in set.iter() {
            if let Some(free) = left.gpus.get_mut(gpu) {
                *free = free.saturating_add(class.blocks);
            }
        }
        left
    }

    /// The first idle GPUs, or `None` when there are fewer.
    #[must_use]
    pub fn first_idle(&self, count: u8) -> Option<GpuSet> {
        let mut set = GpuSet::EMPTY;
        for (gpu, &free) in self.gpus().iter().enumerate() {
            if set.count() == u32::from(count) {
                break;
            }
            if free == WHOLE {
                set = set.with(gpu);
            }
        }
        (set.count() == u32::from(count)).then_some(set)
    }

    /// The GPUs that a best fit takes: the fullest that has room, of equals the first; for
    /// entire GPUs the first idle ones. `None` when there is no room.
    #[must_use]
    pub fn tightest(&self, class: &Class) -> Option<GpuSet> {
        if !class.is_shared() {
            return self.first_idle(class.gpus);
        }
        let mut best: Option<(u8, usize)> = None;
        for (gpu, &free) in self.gpus().iter().enumerate() {
            if free >= class.blocks && best.is_none_or(|(least, _)| free < least) {
                best = Some((free, gpu));
            }
        }
        best.map(|(_, gpu)| GpuSet::one(gpu))
    }
}

#[cfg(test)]
mod tests;
