//! The GPU book: which workload holds which blocks of which GPU, under which fence.
//!
//! **Invariants**
//! - Claims that are held (not leaving) are disjoint, and their memory fits the GPU.
//! - Fence marks never fall, also when a GPU disappears and comes back.
//!
//! A mark is kept per block, not per GPU: two grants for different blocks of one GPU may arrive in
//! either order, and both are right. For the blocks that they share, the higher fence wins.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_model::{BLOCKS_PER_GPU, Blocks};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::WorkloadId;

/// A GPU that the node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSize {
    /// Driver UUID.
    pub uuid: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// What somebody wants to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Who.
    pub workload: WorkloadId,
    /// The fence of its grant.
    pub fence: u64,
    /// Its slices, each on another GPU: it gets all of them or none.
    pub slices: Vec<Slice>,
}

/// A share of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Driver UUID of the GPU.
    pub gpu: String,
    /// Which blocks of it.
    pub blocks: Blocks,
    /// Memory limit in bytes.
    pub vram_bytes: u64,
}

/// A workload under a fence: one life of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Who.
    pub workload: WorkloadId,
    /// The fence of its grant.
    pub fence: u64,
}

/// What the shell must do, in this order, before the new claim may start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// Lives that must be ended and seen gone first; report each with [`Book::free`].
    pub end_first: Vec<Holder>,
    /// Whether the book changed and must be on disk before anything starts.
    pub persist: bool,
}

/// Why an ask is refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// The node has no such GPU.
    #[error("this node has no GPU {gpu}")]
    UnknownGpu {
        /// The UUID that was asked for.
        gpu: String,
    },
    /// A claim on nothing.
    #[error("the grant names no blocks")]
    NoBlocks,
    /// Two slices of one grant lie on one GPU.
    #[error("the grant names {gpu} twice")]
    GpuTwice {
        /// The UUID.
        gpu: String,
    },
    /// Fences begin at 1.
    #[error("the grant has no fence")]
    NoFence,
    /// A fence at least as new was seen for one of the blocks, or for the workload itself.
    #[error("fence {fence} is too low: fence {seen} was seen before")]
    FenceTooLow {
        /// The fence that was offered.
        fence: u64,
        /// The fence that was seen.
        seen: u64,
    },
    /// The memory limits of all claims would exceed the GPU's memory.
    #[error("{wanted} bytes of GPU memory are asked for, {left} are left on {gpu}")]
    MemoryTooLarge {
        /// The GPU.
        gpu: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    workload: WorkloadId,
    fence: u64,
    blocks: Blocks,
    vram_bytes: u64,
    /// Displaced by a newer fence; its processes may still run.
    leaving: bool,
}

/// The highest fence seen for a set of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    blocks: Blocks,
    fence: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct GpuPage {
    memory_bytes: u64,
    /// False while the GPU is not found; its marks are kept.
    present: bool,
    claims: Vec<Claim>,
    /// Disjoint, falling fences.
    marks: Vec<Mark>,
}

/// Who holds what on this node, and the fences that were seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Book {
    gpus: BTreeMap<String, GpuPage>,
}

impl Book {
    /// The same book after the node looked at its GPUs: new ones begin empty, absent ones keep
    /// their marks and claims but accept nothing.
    #[must_use]
    pub fn with_gpus(mut self, found: &[GpuSize]) -> Self {
        for page in self.gpus.values_mut() {
            page.present = false;
        }
        for gpu in found {
            let page = self.gpus.entry(gpu.uuid.clone()).or_default();
            page.memory_bytes = gpu.memory_bytes;
            page.present = true;
        }
        self
    }

    /// Every life that has a claim, leaving ones included, in a stable order.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        let mut all: Vec<Holder> = self
            .gpus
            .values()
            .flat_map(|page| &page.claims)
            .map(Claim::holder)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Blocks of a GPU that nobody holds and nobody is leaving.
    #[must_use]
    pub fn free_blocks(&self, gpu: &str) -> Blocks {
        self.gpus.get(gpu).map_or(Blocks::EMPTY, |page| {
            page.claims
                .iter()
                .fold(Blocks::ALL, |free, claim| free.minus(claim.blocks))
        })
    }

    /// The highest fence seen for any block of a GPU; 0 when none was.
    #[must_use]
    pub fn high_water(&self, gpu: &str) -> u64 {
        self.gpus.get(gpu).map_or(0, |page| page.seen(Blocks::ALL))
    }

    /// Whether this life holds its blocks, undisturbed by a newer fence.
    #[must_use]
    pub fn holds(&self, holder: Holder) -> bool {
        let mut mine = self.claims_of(holder).peekable();
        mine.peek().is_some() && mine.all(|claim| !claim.leaving)
    }

    /// Lives that must be seen gone before this one may start.
    #[must_use]
    pub fn in_the_way(&self, holder: Holder) -> Vec<Holder> {
        let mut others: Vec<Holder> = self
            .gpus
            .values()
            .flat_map(|page| {
                let mine = page
                    .claims
                    .iter()
                    .filter(|claim| claim.holder() == holder)
                    .fold(Blocks::EMPTY, |all, claim| all.union(claim.blocks));
                page.claims.iter().filter(move |claim| {
                    claim.holder() != holder
                        && (claim.blocks.overlaps(mine) || claim.workload == holder.workload)
                })
            })
            .map(Claim::holder)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// The book after this life was seen gone. Its fence stays marked. Freeing what is free
    /// already changes nothing.
    #[must_use]
    pub fn free(mut self, holder: Holder) -> Self {
        for page in self.gpus.values_mut() {
            page.claims.retain(|claim| claim.holder() != holder);
        }
        self
    }

    fn claims_of(&self, holder: Holder) -> impl Iterator<Item = &Claim> {
        self.gpus
            .values()
            .flat_map(|page| &page.claims)
            .filter(move |claim| claim.holder() == holder)
    }
}

impl Claim {
    fn holder(&self) -> Holder {
        Holder {
            workload: self.workload,
            fence: self.fence,
        }
    }
}

impl GpuPage {
    fn seen(&self, blocks: Blocks) -> u64 {
        self.marks
            .iter()
            .filter(|mark| mark.blocks.overlaps(blocks))
            .map(|mark| mark.fence)
            .max()
            .unwrap_or(0)
    }

    /// Bytes of memory that are left when these blocks and all of this workload are given up.
    fn memory_without(&self, workload: WorkloadId, blocks: Blocks) -> u64 {
        let staying = self.claims.iter().filter(|claim| {
            !claim.leaving && !claim.blocks.overlaps(blocks) && claim.workload != workload
        });
        let held = staying.fold(0_u64, |sum, claim| sum.saturating_add(claim.vram_bytes));
        self.memory_bytes.saturating_sub(held)
    }

    fn enter(&mut self, ask: &Ask, slice: &Slice) {
        self.claims.push(Claim {
            workload: ask.workload,
            fence: ask.fence,
            blocks: slice.blocks,
            vram_bytes: slice.vram_bytes,
            leaving: false,
        });
        self.mark(slice.blocks, ask.fence);
    }

    fn mark(&mut self, blocks: Blocks, fence: u64) {
        for mark in &mut self.marks {
            mark.blocks = mark.blocks.minus(blocks);
        }
        self.marks.retain(|mark| !mark.blocks.is_empty());
        self.marks.push(Mark { blocks, fence });
        self.marks
            .sort_unstable_by_key(|mark| std::cmp::Reverse(mark.fence));
        debug_assert!(self.marks.len() <= usize::from(BLOCKS_PER_GPU));
    }
}

/// Enters a claim. Asking again for what the same life already holds changes nothing.
///
/// # Errors
/// See [`Refused`]; the book is as it was.
pub fn carve(book: &Book, ask: &Ask) -> Result<(Book, Effects), Refused> {
    let pages = checked(book, ask)?;
    let me = Holder {
        workload: ask.workload,
        fence: ask.fence,
    };
    let holds = |page: &GpuPage, slice: &Slice| {
        page.claims
            .iter()
            .any(|claim| claim.holder() == me && claim.blocks == slice.blocks && !claim.leaving)
    };
    if book.claims_of(me).count() == pages.len()
        && pages.iter().all(|(slice, page)| holds(page, slice))
    {
        let effects = Effects {
            end_first: book.in_the_way(me),
            persist: false,
        };
        return Ok((book.clone(), effects));
    }
    // An equal fence belongs to a claim that is over or to somebody else, since every grant has
    // a fence of its own.
    let own = book
        .gpus
        .values()
        .flat_map(|page| &page.claims)
        .filter(|claim| claim.workload == ask.workload)
        .map(|claim| claim.fence);
    let others = pages.iter().map(|(slice, page)| page.seen(slice.blocks));
    let seen = own.chain(others).max().unwrap_or(0);
    if ask.fence <= seen {
        return Err(Refused::FenceTooLow {
            fence: ask.fence,
            seen,
        });
    }
    for (slice, page) in &pages {
        let left = page.memory_without(ask.workload, slice.blocks);
        if slice.vram_bytes > left {
            return Err(Refused::MemoryTooLarge {
                gpu: slice.gpu.clone(),
                wanted: slice.vram_bytes,
                left,
            });
        }
    }

    let mut next = book.clone();
    // Who loses one of its slices leaves all of them.
    let displaced: BTreeSet<Holder> = pages
        .iter()
        .flat_map(|(slice, page)| page.claims.iter().map(move |claim| (*slice, claim)))
        .filter(|(slice, claim)| claim.blocks.overlaps(slice.blocks))
        .map(|(_, claim)| claim.holder())
        .collect();
    for page in next.gpus.values_mut() {
        for claim in &mut page.claims {
            claim.leaving |= claim.workload == ask.workload || displaced.contains(&claim.holder());
        }
    }
    for slice in &ask.slices {
        if let Some(page) = next.gpus.get_mut(&slice.gpu) {
            page.enter(ask, slice);
        }
    }
    let effects = Effects {
        end_first: next.in_the_way(me),
        persist: true,
    };
    Ok((next, effects))
}

/// The GPU of each slice of an ask that makes sense.
fn checked<'a>(book: &'a Book, ask: &'a Ask) -> Result<Vec<(&'a Slice, &'a GpuPage)>, Refused> {
    if ask.slices.is_empty() || ask.slices.iter().any(|slice| slice.blocks.is_empty()) {
        return Err(Refused::NoBlocks);
    }
    if ask.fence == 0 {
        return Err(Refused::NoFence);
    }
    let mut pages: BTreeMap<&str, (&Slice, &GpuPage)> = BTreeMap::new();
    for slice in &ask.slices {
        let gpu = || slice.gpu.clone();
        let page = book
            .gpus
            .get(&slice.gpu)
            .filter(|page| page.present)
            .ok_or_else(|| Refused::UnknownGpu { gpu: gpu() })?;
        if pages.insert(&slice.gpu, (slice, page)).is_some() {
            return Err(Refused::GpuTwice { gpu: gpu() });
        }
    }
    Ok(pages.into_values().collect())
}

#[cfg(test)]
mod tests;
