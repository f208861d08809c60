//! What a node has, what is held on it, and what it has room for.

use std::fmt;

use cnlab_model::BLOCKS_PER_GPU;

use super::{Demand, GpuSet, InvalidDemand, Kind, Refused, Shape, Sum};

/// The most GPUs that one node can have.
pub const MAX_GPUS: usize = 16;

/// Whether a node has room for a demand, or the first thing that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fit {
    /// It fits.
    Fits,
    /// The node gets nothing new: cordoned or silent.
    NotEligible,
    /// The node is not of a kind that would do.
    Kind,
    /// Too few free processors.
    Cpu,
    /// Too little free memory.
    Memory,
    /// No GPU has enough free blocks, or too few of them are entirely free.
    Gpus,
}

/// One machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    kind: Kind,
    eligible: bool,
    gpus: u8,
    cpu_total: u32,
    cpu_held: u32,
    memory_total: u32,
    memory_held: u32,
    blocks_total: [u8; MAX_GPUS],
    blocks_held: [u8; MAX_GPUS],
}

impl Node {
    /// An eligible node with this many thousandths of processors, MiB of memory and GPUs.
    ///
    /// # Errors
    /// [`InvalidDemand::Gpus`] for more than 16 GPUs.
    pub fn new(
        kind: Kind,
        cpu_milli: u32,
        memory_mib: u32,
        gpus: u8,
    ) -> Result<Self, InvalidDemand> {
        let mut blocks_total = [0; MAX_GPUS];
        blocks_total
            .get_mut(..gpus.into())
            .ok_or(InvalidDemand::Gpus(gpus))?
            .fill(BLOCKS_PER_GPU);
        Ok(Self {
            kind,
            eligible: true,
            gpus,
            cpu_total: cpu_milli,
            cpu_held: 0,
            memory_total: memory_mib,
            memory_held: 0,
            blocks_total,
            blocks_held: [0; MAX_GPUS],
        })
    }

    /// Its kind of GPU.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it may get new work.
    #[must_use]
    pub const fn is_eligible(&self) -> bool {
        self.eligible
    }

    /// How many GPUs it has; their positions are below this.
    #[must_use]
    pub const fn gpus(&self) -> u8 {
        self.gpus
    }

    /// Free thousandths of a processor.
    #[must_use]
    pub const fn cpu_free(&self) -> u32 {
        self.cpu_total.saturating_sub(self.cpu_held)
    }

    /// Free memory in MiB.
    #[must_use]
    pub const fn memory_free(&self) -> u32 {
        self.memory_total.saturating_sub(self.memory_held)
    }

    /// Blocks of every GPU, whoever holds them, zero behind the last one.
    #[must_use]
    pub const fn blocks_total(&self) -> [u8; MAX_GPUS] {
        self.blocks_total
    }

    /// Free blocks of every GPU, zero behind the last one.
    #[must_use]
    #[inline]
    pub fn blocks_free(&self) -> [u8; MAX_GPUS] {
        let mut free = self.blocks_total;
        for (free, held) in free.iter_mut().zip(self.blocks_held) {
            *free = free.saturating_sub(held);
        }
        free
    }

    /// How many GPUs are entirely free.
    #[must_use]
    #[inline]
    pub fn idle_gpus(&self) -> u8 {
        // At most 16 of them, so that nothing is lost by wrapping, which is faster.
        self.blocks_free().iter().fold(0_u8, |idle, free| {
            idle.wrapping_add((*free == BLOCKS_PER_GPU).into())
        })
    }

    /// The first `count` entirely free GPUs, or `None` where there are fewer.
    #[must_use]
    pub fn first_idle(&self, count: u8) -> Option<GpuSet> {
        let mut set = GpuSet::EMPTY;
        for (gpu, free) in self.blocks_free().iter().enumerate() {
            if set.count() == u32::from(count) {
                break;
            }
            if *free == BLOCKS_PER_GPU {
                set = set.with(gpu);
            }
        }
        (set.count() == u32::from(count)).then_some(set)
    }

    /// Whether nothing is held on it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.held() == Sum::default()
    }

    /// What it has.
    #[must_use]
    pub fn total(&self) -> Sum {
        sum(self.cpu_total, self.memory_total, &self.blocks_total)
    }

    /// What is held on it.
    #[must_use]
    pub fn held(&self) -> Sum {
        sum(self.cpu_held, self.memory_held, &self.blocks_held)
    }

    /// Whether it has room for a demand, or what is missing.
    #[must_use]
    #[inline]
    pub fn fit(&self, demand: &Demand) -> Fit {
        if !self.eligible {
            return Fit::NotEligible;
        }
        if !demand.kinds().admits(self.kind) {
            return Fit::Kind;
        }
        if self.cpu_free() < demand.cpu_milli() {
            return Fit::Cpu;
        }
        if self.memory_free() < demand.memory_mib() {
            return Fit::Memory;
        }
        let enough = match demand.shape() {
            Shape::CpuOnly => true,
            Shape::Share(blocks) => self.blocks_free().iter().any(|free| *free >= blocks),
            Shape::Whole(gpus) => self.idle_gpus() >= gpus,
        };
        if enough { Fit::Fits } else { Fit::Gpus }
    }

    /// Whether it has room for a demand as far as no GPU is concerned.
    #[must_use]
    #[inline]
    pub(crate) fn has_room_beside_gpus(&self, demand: &Demand) -> bool {
        self.eligible
            && demand.kinds().admits(self.kind)
            && self.cpu_free() >= demand.cpu_milli()
            && self.memory_free() >= demand.memory_mib()
    }

    /// Whether it has room for a demand.
    #[must_use]
    #[inline]
    pub fn fits(&self, demand: &Demand) -> bool {
        self.fit(demand) == Fit::Fits
    }

    /// The node as it is once a demand is held on these GPUs of it.
    ///
    /// # Errors
    /// What is short, or [`Refused::Shape`].
    pub fn after(&self, gpus: GpuSet, demand: &Demand) -> Result<Self, Refused> {
        let mut after = *self;
        after.take(gpus, demand)?;
        Ok(after)
    }

    pub(super) const fn set_eligible(&mut self, eligible: bool) {
        self.eligible = eligible;
    }

    pub(super) fn set_total(&mut self, cpu_milli: u32, memory_mib: u32, blocks: [u8; MAX_GPUS]) {
        self.cpu_total = cpu_milli;
        self.memory_total = memory_mib;
        self.blocks_total = blocks.map(|blocks| blocks.min(BLOCKS_PER_GPU));
        // A GPU that is gone keeps its position while something is held on it.
        self.gpus = self
            .blocks_total
            .iter()
            .zip(self.blocks_held)
            .zip(1..)
            .filter(|((total, held), _)| **total > 0 || *held > 0)
            .map(|(_, count)| count)
            .max()
            .unwrap_or(0);
    }

    pub(super) fn take(&mut self, gpus: GpuSet, demand: &Demand) -> Result<(), Refused> {
        self.check_shape(gpus, demand)?;
        if self.cpu_free() < demand.cpu_milli() {
            return Err(Refused::Cpu);
        }
        if self.memory_free() < demand.memory_mib() {
            return Err(Refused::Memory);
        }
        let free = self.blocks_free();
        if gpus
            .iter()
            .any(|gpu| free.get(gpu) < Some(&demand.blocks()))
        {
            return Err(Refused::Blocks);
        }
        // What is free is the difference of two numbers, so the sums stay below the total.
        self.cpu_held = self.cpu_held.saturating_add(demand.cpu_milli());
        self.memory_held = self.memory_held.saturating_add(demand.memory_mib());
        for (gpu, held) in self.blocks_held.iter_mut().enumerate() {
            if gpus.has(gpu) {
                *held = held.saturating_add(demand.blocks());
            }
        }
        Ok(())
    }

    pub(super) fn give(&mut self, gpus: GpuSet, demand: &Demand) -> Result<(), Refused> {
        self.check_shape(gpus, demand)?;
        let cpu = self
            .cpu_held
            .checked_sub(demand.cpu_milli())
            .ok_or(Refused::NotHeld)?;
        let memory = self
            .memory_held
            .checked_sub(demand.memory_mib())
            .ok_or(Refused::NotHeld)?;
        let mut blocks = self.blocks_held;
        for (gpu, held) in blocks.iter_mut().enumerate() {
            if gpus.has(gpu) {
                *held = held.checked_sub(demand.blocks()).ok_or(Refused::NotHeld)?;
            }
        }
        self.cpu_held = cpu;
        self.memory_held = memory;
        self.blocks_held = blocks;
        Ok(())
    }

    fn check_shape(&self, gpus: GpuSet, demand: &Demand) -> Result<(), Refused> {
        let exists = gpus.iter().all(|gpu| gpu < usize::from(self.gpus));
        if exists && gpus.count() == u32::from(demand.gpus()) {
            Ok(())
        } else {
            Err(Refused::Shape)
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fits => "fits",
            Self::NotEligible => "the node gets nothing new",
            Self::Kind => "another kind of GPU",
            Self::Cpu => "too few free processors",
            Self::Memory => "too little free memory",
            Self::Gpus => "too few free blocks",
        })
    }
}

fn sum(cpu_milli: u32, memory_mib: u32, blocks: &[u8; MAX_GPUS]) -> Sum {
    Sum {
        cpu_milli: cpu_milli.into(),
        memory_mib: memory_mib.into(),
        blocks: blocks
            .iter()
            .fold(0, |sum, blocks| sum.saturating_add((*blocks).into())),
    }
}
