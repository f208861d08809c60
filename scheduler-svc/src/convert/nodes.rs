//! Nodes on the wire.

use cnlab_proto::{
    convert::{FieldError, encode_blocks, encode_duration, encode_timestamp},
    model::v1 as model,
    scheduler::v1 as pb,
};

use super::encode_slices;
use crate::{
    app::node::{NodeView, Standing, Tenant},
    store::record::{Cordon, Gpu},
};

/// Most bytes of a reason: a line, not a page.
const REASON: usize = 500;

/// The reason of a cordon as an operator gives it.
pub(crate) fn decode_reason(reason: &str) -> Result<String, FieldError> {
    let reason = reason.trim();
    if reason.len() > REASON {
        return Err(FieldError::new(
            "reason",
            format!("must have at most {REASON} bytes"),
        ));
    }
    if reason.chars().any(char::is_control) {
        return Err(FieldError::new(
            "reason",
            "must be one line without control characters",
        ));
    }
    Ok(reason.to_owned())
}

const fn encode_standing(standing: Standing) -> pb::NodeState {
    match standing {
        Standing::Ready => pb::NodeState::Ready,
        Standing::Silent => pb::NodeState::Silent,
        Standing::Cordoned => pb::NodeState::Cordoned,
        Standing::Draining => pb::NodeState::Draining,
    }
}

fn encode_cordon(cordon: Cordon) -> pb::Cordon {
    pb::Cordon {
        since: Some(encode_timestamp(cordon.since)),
        reason: cordon.reason,
        drain: cordon.drain,
    }
}

fn encode_gpu(gpu: Gpu) -> pb::NodeGpu {
    pb::NodeGpu {
        taken: encode_blocks(gpu.taken),
        gpu: Some(model::Gpu {
            uuid: gpu.uuid,
            gpu_type: gpu.family,
            name: gpu.name,
            memory_bytes: gpu.memory_bytes,
            simulated: gpu.simulated,
            driver_version: gpu.driver_version,
        }),
    }
}

fn encode_tenant(tenant: Tenant) -> pb::NodeWorkload {
    pb::NodeWorkload {
        id: tenant.id.to_string(),
        name: tenant.name,
        project: tenant.project,
        state_text: tenant.state_text,
        slices: tenant
            .grant
            .map(|grant| encode_slices(&grant.gpu_type, &grant.slices))
            .unwrap_or_default(),
        since: Some(encode_timestamp(tenant.since)),
    }
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

pub(crate) fn encode_node(view: NodeView) -> pb::Node {
    let node = view.node;
    pb::Node {
        id: node.id.to_string(),
        name: node.name,
        state: encode_standing(view.standing).into(),
        answers: view.answers,
        registered_at: Some(encode_timestamp(node.registered_at)),
        last_seen_at: Some(encode_timestamp(node.last_seen_at)),
        last_seen_ago: Some(encode_duration(view.last_seen_ago)),
        cordon: node.cordon.map(encode_cordon),
        gpus: view.gpus.into_iter().map(encode_gpu).collect(),
        cpu_milli: node.cpu_milli,
        memory_bytes: node.memory_bytes,
        disk_bytes: node.disk_bytes,
        disk_free_bytes: node.disk_free_bytes,
        not_enforced: node.not_enforced,
        running: count(view.running),
        workloads: view.workloads.into_iter().map(encode_tenant).collect(),
        resting: count(view.resting),
        resting_servers: view
            .resting_servers
            .into_iter()
            .map(encode_tenant)
            .collect(),
        drain_detail: view.drain_detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_line() {
        assert_eq!(decode_reason(" new fans ").unwrap(), "new fans");
        assert_eq!(decode_reason("").unwrap(), "");
        for wrong in ["a\nb", "\u{1b}[2J", &"x".repeat(501)] {
            assert_eq!(decode_reason(wrong).unwrap_err().field, "reason");
        }
    }
}
