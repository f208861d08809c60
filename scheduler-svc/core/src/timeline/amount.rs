//! How much of a node: a total, what is held of it, or what is left.

use cnlab_model::BLOCKS_PER_GPU;

use crate::cluster::{Demand, GpuSet, MAX_GPUS, Node, Shape};

/// Processors, memory, and blocks of every GPU of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    pub(crate) cpu_milli: u32,
    pub(crate) memory_mib: u32,
    pub(crate) blocks: [u8; MAX_GPUS],
}

impl Amount {
    /// All of a node, whoever holds it.
    pub(crate) fn total(node: &Node) -> Self {
        let sum = node.total();
        Self {
            // A node's totals are 32-bit numbers; the sum type is wider for whole clusters.
            cpu_milli: u32::try_from(sum.cpu_milli).unwrap_or(u32::MAX),
            memory_mib: u32::try_from(sum.memory_mib).unwrap_or(u32::MAX),
            blocks: node.blocks_total(),
        }
    }

    /// What a demand holds on these GPUs.
    pub(crate) fn of(demand: &Demand, gpus: GpuSet) -> Self {
        let mut blocks = [0; MAX_GPUS];
        for (gpu, held) in blocks.iter_mut().enumerate() {
            if gpus.has(gpu) {
                *held = demand.blocks();
            }
        }
        Self {
            cpu_milli: demand.cpu_milli(),
            memory_mib: demand.memory_mib(),
            blocks,
        }
    }

    /// `None` where a count would wrap.
    pub(crate) fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = *self;
        sum.cpu_milli = sum.cpu_milli.checked_add(other.cpu_milli)?;
        sum.memory_mib = sum.memory_mib.checked_add(other.memory_mib)?;
        for (mine, others) in sum.blocks.iter_mut().zip(other.blocks) {
            *mine = mine.checked_add(others)?;
        }
        Some(sum)
    }

    /// `None` where less is there than is taken away.
    pub(crate) fn minus(&self, other: &Self) -> Option<Self> {
        let mut rest = *self;
        rest.cpu_milli = rest.cpu_milli.checked_sub(other.cpu_milli)?;
        rest.memory_mib = rest.memory_mib.checked_sub(other.memory_mib)?;
        for (mine, others) in rest.blocks.iter_mut().zip(other.blocks) {
            *mine = mine.checked_sub(others)?;
        }
        Some(rest)
    }

    /// The larger of each.
    #[inline]
    pub(crate) fn max(&self, other: &Self) -> Self {
        let mut most = *self;
        most.cpu_milli = most.cpu_milli.max(other.cpu_milli);
        most.memory_mib = most.memory_mib.max(other.memory_mib);
        for (mine, others) in most.blocks.iter_mut().zip(other.blocks) {
            *mine = (*mine).max(others);
        }
        most
    }

    /// What is left of this total when so much is held. More may be held than there is, since
    /// a node can lose a GPU; nothing is left then.
    #[inline]
    pub(crate) fn left(&self, held: &Self) -> Self {
        let mut left = *self;
        left.cpu_milli = left.cpu_milli.saturating_sub(held.cpu_milli);
        left.memory_mib = left.memory_mib.saturating_sub(held.memory_mib);
        for (mine, held) in left.blocks.iter_mut().zip(held.blocks) {
            *mine = mine.saturating_sub(held);
        }
        left
    }

    /// Entirely free GPUs.
    #[inline]
    pub(crate) fn idle(&self) -> u8 {
        self.blocks.iter().fold(0, |idle, left| {
            idle.saturating_add(u8::from(*left == BLOCKS_PER_GPU))
        })
    }

    /// How many of these GPUs are entirely free.
    #[inline]
    pub(crate) fn idle_among(&self, gpus: GpuSet) -> u8 {
        self.blocks.iter().enumerate().fold(0, |idle, (gpu, left)| {
            idle.saturating_add(u8::from(*left == BLOCKS_PER_GPU && gpus.has(gpu)))
        })
    }

    /// The most blocks that are free on one GPU.
    #[inline]
    pub(crate) fn widest(&self) -> u8 {
        self.blocks.iter().fold(0, |most, left| most.max(*left))
    }

    /// Blocks of all GPUs.
    #[inline]
    pub(crate) fn all_blocks(&self) -> u32 {
        self.blocks
            .iter()
            .fold(0, |sum: u32, left| sum.saturating_add((*left).into()))
    }

    /// Whether this much suffices for a demand.
    #[inline]
    pub(crate) fn fits(&self, demand: &Demand) -> bool {
        self.cpu_milli >= demand.cpu_milli()
            && self.memory_mib >= demand.memory_mib()
            && match demand.shape() {
                Shape::CpuOnly => true,
                Shape::Share(blocks) => self.widest() >= blocks,
                Shape::Whole(gpus) => self.idle() >= gpus,
            }
    }

    /// For how many such demands at once the GPUs suffice, at most `limit`.
    pub(crate) fn gpu_copies(&self, demand: &Demand, limit: u32) -> u32 {
        let copies = match demand.shape() {
            Shape::CpuOnly => limit,
            Shape::Share(share) => self.blocks.iter().fold(0, |sum: u32, left| {
                sum.saturating_add(left.checked_div(share).unwrap_or(0).into())
            }),
            Shape::Whole(gpus) => self.idle().checked_div(gpus).unwrap_or(0).into(),
        };
        copies.min(limit)
    }

    /// For how many such demands at once this much suffices, at most `limit`.
    pub(crate) fn copies(&self, demand: &Demand, limit: u32) -> u32 {
        let of_cpu = self.cpu_milli.checked_div(demand.cpu_milli());
        let of_memory = self.memory_mib.checked_div(demand.memory_mib());
        self.gpu_copies(demand, limit)
            .min(of_cpu.unwrap_or(limit))
            .min(of_memory.unwrap_or(limit))
    }

    /// GPUs for a demand: of a share the one that it fills best, else the first free ones.
    pub(crate) fn pick(&self, demand: &Demand) -> Option<GpuSet> {
        if !self.fits(demand) {
            return None;
        }
        let gpus = self.blocks.iter().enumerate();
        match demand.shape() {
            Shape::CpuOnly => Some(GpuSet::EMPTY),
            Shape::Share(blocks) => gpus
                .filter(|(_, left)| **left >= blocks)
                .min_by_key(|(_, left)| **left)
                .map(|(gpu, _)| GpuSet::one(gpu)),
            Shape::Whole(count) => Some(
                gpus.filter(|(_, left)| **left == BLOCKS_PER_GPU)
                    .take(count.into())
                    .fold(GpuSet::EMPTY, |set, (gpu, _)| set.with(gpu)),
            ),
        }
    }

    /// What would be left over, smallest for the tightest fit: the gap on the GPU of a share
    /// first, then all blocks, then processors.
    pub(crate) fn looseness(&self, demand: &Demand) -> (u8, u32, u32) {
        let gap = match demand.shape() {
            Shape::CpuOnly | Shape::Whole(_) => 0,
            Shape::Share(blocks) => self
                .blocks
                .iter()
                .filter_map(|left| left.checked_sub(blocks))
                .min()
                .unwrap_or(u8::MAX),
        };
        (gap, self.all_blocks(), self.cpu_milli)
    }
}
