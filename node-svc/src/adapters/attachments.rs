//! Who uses which slice at this moment, as the devices see it.
//!
//! **Invariant**: slices of one GPU are disjoint, and their memory fits it. The GPU book decides;
//! this is the second look that finds a wrong decision before it does harm.

use node_core::{Holder, Slice};
use serde::{Deserialize, Serialize};

use crate::ports::{GpuError, GpuFacts};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    holder: Holder,
    #[serde(flatten)]
    slice: Slice,
}

/// The slices in use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attachments(Vec<Entry>);

impl Attachments {
    /// Adds all of these slices, or none; whether that was news.
    ///
    /// # Errors
    /// When a GPU is not there, a block is in use, or the memory does not suffice.
    pub fn add(
        &mut self,
        facts: &[GpuFacts],
        holder: Holder,
        slices: &[Slice],
    ) -> Result<bool, GpuError> {
        let before = self.0.len();
        for slice in slices {
            if let Err(error) = self.add_one(facts, holder, slice) {
                self.0.truncate(before);
                return Err(error);
            }
        }
        Ok(self.0.len() != before)
    }

    fn add_one(
        &mut self,
        facts: &[GpuFacts],
        holder: Holder,
        slice: &Slice,
    ) -> Result<(), GpuError> {
        let gpu = facts
            .iter()
            .find(|gpu| gpu.uuid == slice.gpu)
            .ok_or_else(|| GpuError::Unknown(slice.gpu.clone()))?;
        let entry = Entry {
            holder,
            slice: slice.clone(),
        };
        if self.0.contains(&entry) {
            return Ok(());
        }
        let mut used: u64 = 0;
        let on_it = self.0.iter().filter(|other| other.slice.gpu == slice.gpu);
        for Entry {
            holder,
            slice: other,
        } in on_it
        {
            if other.blocks.overlaps(slice.blocks) {
                let blocks = other.blocks.minus(other.blocks.minus(slice.blocks));
                return Err(GpuError::Busy {
                    gpu: slice.gpu.clone(),
                    blocks,
                    holder: *holder,
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
        Ok(())
    }

    /// Removes what a life has; whether it had anything.
    pub fn remove(&mut self, holder: Holder) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.holder != holder);
        self.0.len() != before
    }

    /// Everything in use.
    #[must_use]
    pub fn list(&self) -> Vec<(Holder, Slice)> {
        let entries = self.0.iter();
        entries
            .map(|entry| (entry.holder, entry.slice.clone()))
            .collect()
    }
}
