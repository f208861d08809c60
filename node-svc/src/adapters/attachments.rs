//! Who uses which slice at this moment, as the devices see it.
//!
//! **Invariant**: slices of one GPU are disjoint, and their memory fits it. The GPU book decides;
//! this is the second look that finds a wrong decision before it does harm.

use cnlab_model::Blocks;
use node_core::Holder;
use serde::{Deserialize, Serialize};

use crate::ports::{GpuError, GpuFacts, SliceAsk};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    holder: Holder,
    gpu: String,
    blocks: Blocks,
    vram_bytes: u64,
}

/// The slices in use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attachments(Vec<Entry>);

impl Attachments {
    /// Adds a slice; whether that was news.
    ///
    /// # Errors
    /// When the GPU is not there, a block is in use, or the memory does not suffice.
    pub fn add(
        &mut self,
        facts: &[GpuFacts],
        holder: Holder,
        slice: &SliceAsk,
    ) -> Result<bool, GpuError> {
        let gpu = facts
            .iter()
            .find(|gpu| gpu.uuid == slice.gpu)
            .ok_or_else(|| GpuError::Unknown(slice.gpu.clone()))?;
        let entry = Entry {
            holder,
            gpu: slice.gpu.clone(),
            blocks: slice.blocks,
            vram_bytes: slice.vram_bytes,
        };
        if self.0.contains(&entry) {
            return Ok(false);
        }
        let mut used: u64 = 0;
        for other in self.0.iter().filter(|other| other.gpu == slice.gpu) {
            if other.blocks.overlaps(slice.blocks) {
                let blocks = other.blocks.minus(other.blocks.minus(slice.blocks));
                return Err(GpuError::Busy {
                    gpu: slice.gpu.clone(),
                    blocks,
                    holder: other.holder,
                });
            }
            used = used.saturating_add(other.vram_bytes);
        }
        let left = gpu.memory_bytes.saturating_sub(used);
        if slice.vram_bytes > left {
            return Err(GpuError::Memory {
                gpu: slice.gpu.clone(),
                wanted: slice.vram_bytes,
                left,
            });
        }
        self.0.push(entry);
        Ok(true)
    }

    /// Removes what a life has; whether it had anything.
    pub fn remove(&mut self, holder: Holder) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.holder != holder);
        self.0.len() != before
    }

    /// Everything in use.
    #[must_use]
    pub fn list(&self) -> Vec<(Holder, SliceAsk)> {
        self.0
            .iter()
            .map(|entry| {
                let slice = SliceAsk {
                    gpu: entry.gpu.clone(),
                    blocks: entry.blocks,
                    vram_bytes: entry.vram_bytes,
                };
                (entry.holder, slice)
            })
            .collect()
    }
}
