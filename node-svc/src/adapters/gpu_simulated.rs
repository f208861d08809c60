//! GPUs that exist only in the simulator: they have names, memory and blocks, and remember across
//! restarts who uses them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use cnlab_model::id::NodeId;
use node_core::{Holder, Slice};

use crate::{
    adapters::attachments::Attachments,
    config::SimulatedGpu,
    disk::{self, Durability},
    ports::{Attachment, GpuError, GpuFacts, Gpus},
};

/// A simulated set.
#[derive(Debug)]
pub struct SimulatedGpus {
    facts: Vec<GpuFacts>,
    state: PathBuf,
    attachments: Mutex<Attachments>,
}

impl SimulatedGpus {
    /// The set of the configuration, with what an earlier run left in the file `state`.
    ///
    /// # Errors
    /// When that file cannot be read.
    pub fn open(set: &[SimulatedGpu], node: NodeId, state: &Path) -> Result<Self, GpuError> {
        let attachments = disk::read_json(state)
            .map_err(GpuError::State)?
            .unwrap_or_default();
        let each = set
            .iter()
            .flat_map(|gpu| std::iter::repeat_n(gpu, usize::from(gpu.count)));
        let facts = each
            .enumerate()
            .map(|(index, gpu)| GpuFacts {
                // Two nodes never share a GPU, so the node's id is in its name.
                uuid: format!("SIM-{}-{index}", node.ulid()),
                product: gpu.product.clone(),
                memory_bytes: gpu.memory.0,
                simulated: true,
                driver_version: "simulated".to_owned(),
            })
            .collect();
        Ok(Self {
            facts,
            state: state.to_owned(),
            attachments: Mutex::new(attachments),
        })
    }

    /// Changes the state in memory and on disk, or neither.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Attachments) -> Result<(T, bool), GpuError>,
    ) -> Result<T, GpuError> {
        let mut attachments = self
            .attachments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut next = attachments.clone();
        let (answer, changed) = change(&mut next)?;
        if changed {
            self.keep(&next).map_err(GpuError::State)?;
            *attachments = next;
        }
        Ok(answer)
    }

    fn keep(&self, attachments: &Attachments) -> io::Result<()> {
        disk::write_json(&self.state, attachments, Durability::Atomic)
    }
}

#[async_trait]
impl Gpus for SimulatedGpus {
    fn facts(&self) -> &[GpuFacts] {
        &self.facts
    }

    async fn attach(&self, holder: Holder, slices: &[Slice]) -> Result<Attachment, GpuError> {
        self.change(|attachments| {
            let news = attachments.add(&self.facts, holder, slices)?;
            Ok(((), news))
        })?;
        Ok(Attachment {
            devices: Vec::new(),
            env: vec![("CNLAB_GPU".to_owned(), "simulated".to_owned())],
            enforced: Vec::new(),
            not_enforced: vec![
                "GPU slice: the GPU is simulated, so there is no device inside and nothing to limit"
                    .to_owned(),
            ],
        })
    }

    async fn detach(&self, holder: Holder) -> Result<(), GpuError> {
        self.change(|attachments| Ok(((), attachments.remove(holder))))
    }

    async fn attached(&self) -> Vec<(Holder, Slice)> {
        self.attachments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .list()
    }
}
