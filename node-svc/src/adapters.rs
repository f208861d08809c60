//! Implementations of the ports, one file each.

pub mod attachments;
pub mod gpu_nvml;
pub mod gpu_simulated;
pub mod run_process;

use std::{path::Path, sync::Arc};

use cnlab_model::id::NodeId;

use crate::{
    config::{GpuConfig, GpuSource},
    ports::{GpuError, Gpus},
};

/// The GPUs that were chosen, and why.
#[derive(Debug, Clone)]
pub struct ChosenGpus {
    /// The GPUs.
    pub gpus: Arc<dyn Gpus>,
    /// One sentence: which set this is and how it came to be chosen.
    pub why: String,
}

/// Chooses the GPUs of a node. `auto` is NVML where it finds a GPU, else the simulated set.
///
/// # Errors
/// When `nvml` is insisted on and finds none, or the simulator's state cannot be read.
pub fn choose_gpus(config: &GpuConfig, node: NodeId, state: &Path) -> Result<ChosenGpus, GpuError> {
    let simulated = |why: String| {
        let gpus = gpu_simulated::SimulatedGpus::open(&config.simulated, node, state)?;
        let count = gpus.facts().len();
        Ok(ChosenGpus {
            gpus: Arc::new(gpus),
            why: format!("{count} simulated GPUs: {why}"),
        })
    };
    let real = |gpus: gpu_nvml::NvmlGpus, why: &str| {
        let count = gpus.facts().len();
        ChosenGpus {
            gpus: Arc::new(gpus),
            why: format!("{count} GPUs that the NVIDIA driver reports: {why}"),
        }
    };
    match config.source {
        GpuSource::Simulated => simulated("the configuration asks for them".to_owned()),
        GpuSource::Nvml => {
            gpu_nvml::NvmlGpus::open().map(|gpus| real(gpus, "the configuration asks for them"))
        }
        GpuSource::Auto => match gpu_nvml::NvmlGpus::open() {
            Ok(gpus) => Ok(real(gpus, "they were found")),
            Err(error) => simulated(format!(
                "no real one was found ({})",
                cnlab_service::status::chain(&error)
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(source: GpuSource) -> GpuConfig {
        GpuConfig {
            source,
            ..GpuConfig::default()
        }
    }

    #[test]
    fn auto_takes_what_the_driver_finds_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::from_ulid(cnlab_model::id::Ulid(7));
        let state = folder.path().join("gpus.json");
        let auto = choose_gpus(&config(GpuSource::Auto), node, &state).unwrap();
        match choose_gpus(&config(GpuSource::Nvml), node, &state) {
            Ok(real) => assert_eq!(auto.gpus.facts(), real.gpus.facts()),
            Err(error) => {
                assert!(matches!(error, GpuError::Driver(_) | GpuError::None));
                assert!(auto.gpus.facts().iter().all(|gpu| gpu.simulated));
                assert!(
                    auto.why.starts_with("3 simulated GPUs: no real one"),
                    "{}",
                    auto.why
                );
            }
        }
    }
}
