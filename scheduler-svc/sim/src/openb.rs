//! The files of the trace, embedded: see `data/openb/README.md`.

use crate::trace::{self, Hosts, Pod, TraceError};

/// The nodes of the experiments.
const NODES: &str = "openb_node_list_gpu_node.csv";

/// The nodes of the experiments: 1,213 with 6,212 GPUs.
pub fn hosts() -> Result<Hosts, TraceError> {
    trace::hosts(
        NODES,
        include_str!("../data/openb/openb_node_list_gpu_node.csv"),
    )
}

/// The pods of a workload, in the order of their names.
pub fn pods(workload: &str, hosts: &Hosts) -> Result<Vec<Pod>, TraceError> {
    let (_, bytes) = FILES
        .iter()
        .find(|(name, _)| *name == workload)
        .ok_or_else(|| TraceError::Workload(workload.to_owned()))?;
    let file = format!("openb_pod_list_{workload}.csv.gz");
    let text = trace::unpack(&file, bytes)?;
    let mut pods = trace::pods(&file, &text, &hosts.kinds)?;
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pods)
}

/// The pod list of each workload of the paper, gzipped.
#[rustfmt::skip]
const FILES: [(&str, &[u8]); 17] = [
    ("default", include_bytes!("../data/openb/openb_pod_list_default.csv.gz")),
    ("cpu050", include_bytes!("../data/openb/openb_pod_list_cpu050.csv.gz")),
    ("cpu100", include_bytes!("../data/openb/openb_pod_list_cpu100.csv.gz")),
    ("cpu200", include_bytes!("../data/openb/openb_pod_list_cpu200.csv.gz")),
    ("cpu250", include_bytes!("../data/openb/openb_pod_list_cpu250.csv.gz")),
    ("gpushare40", include_bytes!("../data/openb/openb_pod_list_gpushare40.csv.gz")),
    ("gpushare60", include_bytes!("../data/openb/openb_pod_list_gpushare60.csv.gz")),
    ("gpushare80", include_bytes!("../data/openb/openb_pod_list_gpushare80.csv.gz")),
    ("gpushare100", include_bytes!("../data/openb/openb_pod_list_gpushare100.csv.gz")),
    ("gpuspec10", include_bytes!("../data/openb/openb_pod_list_gpuspec10.csv.gz")),
    ("gpuspec20", include_bytes!("../data/openb/openb_pod_list_gpuspec20.csv.gz")),
    ("gpuspec25", include_bytes!("../data/openb/openb_pod_list_gpuspec25.csv.gz")),
    ("gpuspec33", include_bytes!("../data/openb/openb_pod_list_gpuspec33.csv.gz")),
    ("multigpu20", include_bytes!("../data/openb/openb_pod_list_multigpu20.csv.gz")),
    ("multigpu30", include_bytes!("../data/openb/openb_pod_list_multigpu30.csv.gz")),
    ("multigpu40", include_bytes!("../data/openb/openb_pod_list_multigpu40.csv.gz")),
    ("multigpu50", include_bytes!("../data/openb/openb_pod_list_multigpu50.csv.gz")),
];
