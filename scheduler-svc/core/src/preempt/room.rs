//! What is free on a node, and what becomes free.

use cnlab_model::BLOCKS_PER_GPU;

use crate::cluster::{Demand, GpuSet, MAX_GPUS, Node, NodeIx, Shape};

use super::Running;

/// Amounts on one node: free ones, or those that a job holds there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Room {
    pub(super) cpu: u64,
    pub(super) memory: u64,
    pub(super) blocks: [u8; MAX_GPUS],
}

impl Room {
    /// What is free on a node.
    #[inline]
    pub(super) fn free(node: &Node) -> Self {
        Self {
            cpu: node.cpu_free().into(),
            memory: node.memory_free().into(),
            blocks: node.blocks_free(),
        }
    }

    /// What a job holds on a node, of all of its tasks there.
    pub(super) fn held(running: &Running, ix: NodeIx) -> Self {
        let demand = &running.job.ask.demand;
        let mut held = Self::default();
        for place in running.places.iter().filter(|place| place.node == ix) {
            held.cpu = held.cpu.saturating_add(demand.cpu_milli().into());
            held.memory = held.memory.saturating_add(demand.memory_mib().into());
            for (gpu, blocks) in held.blocks.iter_mut().enumerate() {
                if place.gpus.has(gpu) {
                    *blocks = blocks.saturating_add(demand.blocks());
                }
            }
        }
        held
    }

    /// Both together. A GPU never has more than its hundred blocks: what is held and what is
    /// free are parts of them.
    #[inline]
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            blocks: self.blocks,
        };
        for (sum, more) in sum.blocks.iter_mut().zip(other.blocks) {
            *sum = sum.saturating_add(more).min(BLOCKS_PER_GPU);
        }
        sum
    }

    /// This without what somebody keeps. Only parts of a sum are taken off it.
    pub(super) fn minus(&self, other: &Self) -> Self {
        let mut rest = Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            blocks: self.blocks,
        };
        for (rest, less) in rest.blocks.iter_mut().zip(other.blocks) {
            *rest = rest.saturating_sub(less);
        }
        rest
    }

    /// How many tasks with this demand fit, other than by kind.
    pub(super) fn tasks(&self, demand: &Demand) -> u32 {
        let per = |free: u64, each: u32| {
            let count = free.checked_div(each.into()).unwrap_or(u64::MAX);
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let most = per(self.cpu, demand.cpu_milli()).min(per(self.memory, demand.memory_mib()));
        if most == 0 {
            return 0;
        }
        let gpus = match demand.shape() {
            Shape::CpuOnly => u32::MAX,
            Shape::Share(blocks) => self.blocks.iter().fold(0_u32, |sum, free| {
                sum.saturating_add(free.checked_div(blocks).unwrap_or(0).into())
            }),
            Shape::Whole(gpus) => self.idle().checked_div(gpus.into()).unwrap_or(0),
        };
        most.min(gpus)
    }

    /// Whether so many tasks with this demand fit, other than by kind.
    #[inline]
    pub(super) fn hosts(&self, demand: &Demand, tasks: u32) -> bool {
        if tasks != 1 {
            return self.tasks(demand) >= tasks;
        }
        // The usual question, without a division.
        self.feeds(demand, 1)
            && match demand.shape() {
                Shape::CpuOnly => true,
                Shape::Share(blocks) => self.most() >= blocks,
                Shape::Whole(gpus) => self.idle() >= gpus.into(),
            }
    }

    /// How many GPUs are entirely free.
    #[inline]
    pub(super) fn idle(&self) -> u32 {
        // At most 16 of them, so that nothing is lost by wrapping, which is faster.
        let idle = self.blocks.iter().fold(0_u8, |idle, free| {
            idle.wrapping_add((*free == BLOCKS_PER_GPU).into())
        });
        idle.into()
    }

    /// The most blocks that are free on one GPU.
    #[inline]
    pub(super) fn most(&self) -> u8 {
        // Of all GPUs, without an early end, which is faster.
        self.blocks.iter().fold(0, |most, free| most.max(*free))
    }

    /// Whether processors and memory suffice for so many tasks.
    #[inline]
    pub(super) fn feeds(&self, demand: &Demand, tasks: u32) -> bool {
        let times = |each: u32| u64::from(each).saturating_mul(tasks.into());
        self.cpu >= times(demand.cpu_milli()) && self.memory >= times(demand.memory_mib())
    }

    /// Takes one task out of what is free and says on which GPUs: for a share the one with the
    /// fewest blocks left, else the first ones.
    pub(super) fn take(&mut self, demand: &Demand) -> Option<GpuSet> {
        if !self.hosts(demand, 1) {
            return None;
        }
        let gpus = match demand.shape() {
            Shape::CpuOnly => GpuSet::EMPTY,
            Shape::Share(blocks) => {
                let left = |(gpu, free): (usize, &u8)| Some((free.checked_sub(blocks)?, gpu));
                let (_, gpu) = self.blocks.iter().enumerate().filter_map(left).min()?;
                GpuSet::one(gpu)
            }
            Shape::Whole(count) => self
                .blocks
                .iter()
                .enumerate()
                .filter(|(_, free)| **free == BLOCKS_PER_GPU)
                .take(count.into())
                .fold(GpuSet::EMPTY, |set, (gpu, _)| set.with(gpu)),
        };
        self.cpu = self.cpu.saturating_sub(demand.cpu_milli().into());
        self.memory = self.memory.saturating_sub(demand.memory_mib().into());
        for gpu in gpus.iter() {
            if let Some(free) = self.blocks.get_mut(gpu) {
                *free = free.saturating_sub(demand.blocks());
            }
        }
        Some(gpus)
    }
}
