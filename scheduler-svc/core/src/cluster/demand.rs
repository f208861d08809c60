//! What is asked for.

use std::fmt;

use cnlab_model::BLOCKS_PER_GPU;

use super::MAX_GPUS;

/// A GPU type as a small number; who reads the catalogue decides which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

impl Kind {
    /// How many kinds there can be.
    pub const LIMIT: u8 = 64;

    /// The kind of a number below [`Self::LIMIT`].
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::LIMIT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Kinds that would do. No kind at all means that any will.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KindSet(u64);

impl KindSet {
    /// Any kind will do.
    pub const ANY: Self = Self(0);

    /// The set with one kind more.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind.0)
    }

    /// Whether a node of this kind would do.
    #[must_use]
    pub const fn admits(self, kind: Kind) -> bool {
        self.0 == 0 || self.0 & 1 << kind.0 != 0
    }

    /// Whether some kind is in both.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 == 0 || other.0 == 0 || self.0 & other.0 != 0
    }
}

impl FromIterator<Kind> for KindSet {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::ANY, Self::with)
    }
}

/// GPUs of one node, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuSet(u16);

impl GpuSet {
    /// No GPU.
    pub const EMPTY: Self = Self(0);

    /// The set with one GPU more. A position that no node can have adds nothing.
    #[must_use]
    pub const fn with(self, gpu: usize) -> Self {
        if gpu < MAX_GPUS {
            Self(self.0 | 1 << gpu)
        } else {
            self
        }
    }

    /// Just this GPU.
    #[must_use]
    pub const fn one(gpu: usize) -> Self {
        Self::EMPTY.with(gpu)
    }

    /// Whether a GPU is in it.
    #[must_use]
    pub const fn has(self, gpu: usize) -> bool {
        gpu < MAX_GPUS && self.0 & 1 << gpu != 0
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Their positions, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_GPUS).filter(move |gpu| self.has(*gpu))
    }

    /// The set as bits, the lowest one for the first GPU.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// What a demand wants of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// None.
    CpuOnly,
    /// This many blocks, 1 to 99, of one GPU.
    Share(u8),
    /// This many entire GPUs of one node, at least one.
    Whole(u8),
}

/// Why there is no such demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDemand {
    /// A share has 1 to 100 blocks.
    #[error("a share of {0} blocks is not between 1 and 100")]
    Blocks(u8),
    /// A node has at most 16 GPUs.
    #[error("{0} GPUs are not between 1 and 16")]
    Gpus(u8),
}

/// What one task asks for, on one node.
///
/// Two demands that ask for the same are equal: a share of 100 blocks is one entire GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand {
    cpu_milli: u32,
    memory_mib: u32,
    gpus: u8,
    blocks: u8,
    kinds: KindSet,
}

impl Demand {
    /// Processors, in thousandths of one, and memory, in MiB; no GPU.
    #[must_use]
    pub const fn cpu_only(cpu_milli: u32, memory_mib: u32) -> Self {
        Self {
            cpu_milli,
            memory_mib,
            gpus: 0,
            blocks: 0,
            kinds: KindSet::ANY,
        }
    }

    /// The same with 1 to 100 blocks of one GPU.
    ///
    /// # Errors
    /// [`InvalidDemand::Blocks`].
    pub const fn share(cpu_milli: u32, memory_mib: u32, blocks: u8) -> Result<Self, InvalidDemand> {
        if blocks == 0 || blocks > BLOCKS_PER_GPU {
            return Err(InvalidDemand::Blocks(blocks));
        }
        Ok(Self {
            gpus: 1,
            blocks,
            ..Self::cpu_only(cpu_milli, memory_mib)
        })
    }

    /// The same with 1 to 16 entire GPUs.
    ///
    /// # Errors
    /// [`InvalidDemand::Gpus`].
    pub const fn whole(cpu_milli: u32, memory_mib: u32, gpus: u8) -> Result<Self, InvalidDemand> {
        if gpus == 0 || gpus as usize > MAX_GPUS {
            return Err(InvalidDemand::Gpus(gpus));
        }
        Ok(Self {
            gpus,
            blocks: BLOCKS_PER_GPU,
            ..Self::cpu_only(cpu_milli, memory_mib)
        })
    }

    /// The same, only on nodes of these kinds.
    #[must_use]
    pub const fn on(self, kinds: KindSet) -> Self {
        Self { kinds, ..self }
    }

    /// The same with no need of memory.
    #[must_use]
    pub const fn without_memory(self) -> Self {
        Self {
            memory_mib: 0,
            ..self
        }
    }

    /// Thousandths of a processor.
    #[must_use]
    pub const fn cpu_milli(&self) -> u32 {
        self.cpu_milli
    }

    /// Memory in MiB.
    #[must_use]
    pub const fn memory_mib(&self) -> u32 {
        self.memory_mib
    }

    /// How many GPUs.
    #[must_use]
    pub const fn gpus(&self) -> u8 {
        self.gpus
    }

    /// How many blocks of each of them, each a hundredth of a GPU.
    #[must_use]
    pub const fn blocks(&self) -> u8 {
        self.blocks
    }

    /// How many blocks of all of them together.
    #[must_use]
    pub fn total_blocks(&self) -> u32 {
        u32::from(self.gpus).saturating_mul(self.blocks.into())
    }

    /// The kinds of nodes that would do.
    #[must_use]
    pub const fn kinds(&self) -> KindSet {
        self.kinds
    }

    /// What it wants of GPUs.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        if self.gpus == 0 {
            Shape::CpuOnly
        } else if self.blocks < BLOCKS_PER_GPU {
            Shape::Share(self.blocks)
        } else {
            Shape::Whole(self.gpus)
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} m processors, {} MiB",
            self.cpu_milli, self.memory_mib
        )?;
        match self.shape() {
            Shape::CpuOnly => Ok(()),
            Shape::Share(blocks) => write!(f, ", {blocks} blocks of a GPU"),
            Shape::Whole(gpus) => write!(f, ", {gpus} GPUs"),
        }
    }
}
