//! The GPUs that the NVIDIA driver reports, read through its management library.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use node_core::{Holder, Slice};
use nvml_wrapper::{Nvml, error::NvmlError};

use crate::{
    adapters::attachments::Attachments,
    ports::{Attachment, GpuError, GpuFacts, Gpus},
};

/// Device files that every CUDA program needs, where they exist.
const SHARED_DEVICES: &[&str] = &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// The machine's GPUs.
#[derive(Debug)]
pub struct NvmlGpus {
    facts: Vec<GpuFacts>,
    /// Minor device numbers, in the order of `facts`.
    minors: Vec<u32>,
    attachments: Mutex<Attachments>,
}

impl NvmlGpus {
    /// Loads the driver's library and asks it.
    ///
    /// # Errors
    /// [`GpuError::Driver`] when the library is not usable, [`GpuError::None`] when it finds nothing.
    pub fn open() -> Result<Self, GpuError> {
        let found = read().map_err(GpuError::Driver)?;
        if found.is_empty() {
            return Err(GpuError::None);
        }
        let (facts, minors) = found.into_iter().unzip();
        Ok(Self {
            facts,
            minors,
            attachments: Mutex::default(),
        })
    }
}

fn read() -> Result<Vec<(GpuFacts, u32)>, NvmlError> {
    let nvml = Nvml::init()?;
    let driver_version = nvml.sys_driver_version()?;
    (0..nvml.device_count()?)
        .map(|index| {
            let device = nvml.device_by_index(index)?;
            let facts = GpuFacts {
                uuid: device.uuid()?,
                product: device.name()?,
                memory_bytes: device.memory_info()?.total,
                simulated: false,
                driver_version: driver_version.clone(),
            };
            Ok((facts, device.minor_number()?))
        })
        .collect()
}

#[async_trait]
impl Gpus for NvmlGpus {
    fn facts(&self) -> &[GpuFacts] {
        &self.facts
    }

    async fn attach(&self, holder: Holder, slices: &[Slice]) -> Result<Attachment, GpuError> {
        self.attachments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(&self.facts, holder, slices)?;
        let mut devices: Vec<PathBuf> = self
            .facts
            .iter()
            .zip(&self.minors)
            .filter(|(gpu, _)| slices.iter().any(|slice| slice.gpu == gpu.uuid))
            .map(|(_, minor)| PathBuf::from(format!("/dev/nvidia{minor}")))
            .collect();
        devices.extend(SHARED_DEVICES.iter().map(PathBuf::from));
        devices.retain(|device| device.exists());
        let whole = |slice: &Slice| slice.blocks == cnlab_model::Blocks::ALL;
        let uuids: Vec<&str> = slices.iter().map(|slice| slice.gpu.as_str()).collect();
        Ok(Attachment {
            devices,
            env: vec![("CUDA_VISIBLE_DEVICES".to_owned(), uuids.join(","))],
            enforced: vec!["GPU: only the devices of its own slices are visible".to_owned()],
            not_enforced: if slices.iter().all(whole) {
                Vec::new()
            } else {
                vec![
                    "GPU slice: 1 % blocks are not enforced yet, so a process can use the whole \
                     GPU's memory and compute"
                        .to_owned(),
                ]
            },
        })
    }

    async fn detach(&self, holder: Holder) -> Result<(), GpuError> {
        self.attachments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(holder);
        Ok(())
    }

    async fn attached(&self) -> Vec<(Holder, Slice)> {
        self.attachments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .list()
    }
}
