//! The contract of the port `Gpus`, run on every implementation.

use cnlab_model::{
    Blocks,
    id::{NodeId, ServerId},
};
use node_core::{Holder, Slice, WorkloadId};
use node_svc::{
    adapters::{gpu_nvml::NvmlGpus, gpu_simulated::SimulatedGpus},
    config::GpuConfig,
    ports::{GpuError, Gpus},
};

use crate::support::ulid;

fn holder(fence: u64) -> Holder {
    Holder {
        workload: WorkloadId::Server(ServerId::from_ulid(ulid())),
        fence,
    }
}

fn slice(gpu: &str, blocks: &str, vram_bytes: u64) -> Slice {
    Slice {
        gpu: gpu.to_owned(),
        blocks: blocks.parse().unwrap(),
        vram_bytes,
    }
}

async fn contract(gpus: &dyn Gpus) {
    let facts = gpus.facts().to_vec();
    assert!(!facts.is_empty());
    let mut uuids: Vec<_> = facts.iter().map(|gpu| gpu.uuid.clone()).collect();
    uuids.sort();
    uuids.dedup();
    assert_eq!(uuids.len(), facts.len(), "a GPU is there twice");
    for gpu in &facts {
        assert!(!gpu.product.is_empty() && !gpu.driver_version.is_empty());
        assert!(gpu.memory_bytes >= 1 << 30, "{gpu:?}");
        assert_eq!(gpu.simulated, gpu.uuid.starts_with("SIM-"));
    }

    let (uuid, memory) = (facts[0].uuid.as_str(), facts[0].memory_bytes);
    let (one, two) = (holder(1), holder(2));
    let quarter = slice(uuid, "0-24", memory / 4);
    let first = gpus
        .attach(one, std::slice::from_ref(&quarter))
        .await
        .unwrap();
    assert_eq!(
        gpus.attach(one, std::slice::from_ref(&quarter))
            .await
            .unwrap(),
        first,
        "twice is once"
    );
    assert!(!first.not_enforced.is_empty(), "a soft slice says so");
    let overlapping = gpus.attach(two, &[slice(uuid, "24-30", 1)]).await;
    match overlapping.unwrap_err() {
        GpuError::Busy { blocks, holder, .. } => {
            assert_eq!(blocks, Blocks::range(24, 1).unwrap());
            assert_eq!(holder, one);
        }
        other => panic!("{other}"),
    }
    let too_large = gpus.attach(two, &[slice(uuid, "25-99", memory)]).await;
    assert!(matches!(too_large, Err(GpuError::Memory { .. })));
    let unknown = gpus.attach(two, &[slice("GPU-none", "0", 1)]).await;
    assert!(matches!(unknown, Err(GpuError::Unknown(_))));
    if let [_, other, ..] = facts.as_slice() {
        let both = [slice(&other.uuid, "0-99", 1), slice(uuid, "0-99", 1)];
        let busy = gpus.attach(two, &both).await;
        assert!(matches!(busy, Err(GpuError::Busy { .. })));
        assert_eq!(
            gpus.attached().await,
            [(one, quarter.clone())],
            "all or none"
        );
    }
    let rest = slice(uuid, "25-99", memory / 4 * 3);
    gpus.attach(two, std::slice::from_ref(&rest)).await.unwrap();
    assert_eq!(gpus.attached().await, [(one, quarter.clone()), (two, rest)]);

    gpus.detach(one).await.unwrap();
    gpus.detach(one).await.unwrap();
    let three = holder(3);
    gpus.attach(three, std::slice::from_ref(&quarter))
        .await
        .unwrap();
    gpus.detach(two).await.unwrap();
    gpus.detach(three).await.unwrap();
    assert!(gpus.attached().await.is_empty());
}

#[tokio::test]
async fn simulated_gpus_keep_the_contract_and_their_state() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("gpus.json");
    let node = NodeId::from_ulid(ulid());
    let set = GpuConfig::default().simulated;
    let gpus = SimulatedGpus::open(&set, node, &state).unwrap();
    contract(&gpus).await;

    let gpu = gpus.facts()[0].uuid.clone();
    let holder = holder(9);
    gpus.attach(holder, &[slice(&gpu, "0", 1)]).await.unwrap();
    let again = SimulatedGpus::open(&set, node, &state).unwrap();
    assert_eq!(again.facts(), gpus.facts(), "the same GPUs after a restart");
    assert_eq!(again.attached().await, gpus.attached().await);
    std::fs::write(&state, "{").unwrap();
    assert!(matches!(
        SimulatedGpus::open(&set, node, &state),
        Err(GpuError::State(_))
    ));
}

/// On a machine without a driver the other half of the contract holds: one clear error.
#[tokio::test]
async fn gpus_of_the_driver_keep_the_contract_or_say_why_there_are_none() {
    match NvmlGpus::open() {
        Ok(gpus) => {
            contract(&gpus).await;
            let gpu = gpus.facts()[0].clone();
            let holder = holder(1);
            let whole = slice(&gpu.uuid, "0-99", gpu.memory_bytes);
            let attached = gpus
                .attach(holder, std::slice::from_ref(&whole))
                .await
                .unwrap();
            assert!(attached.devices.iter().all(|device| device.exists()));
            assert!(
                attached
                    .env
                    .contains(&("CUDA_VISIBLE_DEVICES".to_owned(), gpu.uuid))
            );
            assert!(
                attached.not_enforced.is_empty(),
                "a whole GPU is a hard boundary"
            );
        }
        Err(error) => {
            assert!(
                matches!(error, GpuError::Driver(_) | GpuError::None),
                "{error}"
            );
            assert!(!std::path::Path::new("/dev/nvidiactl").exists(), "{error}");
        }
    }
}
