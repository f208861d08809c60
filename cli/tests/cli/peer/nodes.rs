//! Nodes of the peer. The name of a node says how it stands with it.

use cnlab_model::id::{NodeId, RunId, ServerId, Ulid};
use cnlab_proto::{
    model::v1 as model,
    scheduler::v1::{self as pb, node_service_server::NodeService},
};
use tonic::{Code, Request, Response, Status};

use super::api::{Api, finish, need_key, refusal};

const GIB: u64 = 1 << 30;
const BASE: u128 = 0x0190_0000_0000_0000_0000_0000_0000_0000;

fn at(second: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: 1_764_500_000 + second,
        nanos: 0,
    }
}

fn gpu(uuid: &str, family: &str, simulated: bool, taken: &[(u32, u32)]) -> pb::NodeGpu {
    pb::NodeGpu {
        gpu: Some(model::Gpu {
            uuid: uuid.to_owned(),
            gpu_type: family.to_owned(),
            name: format!("NVIDIA {family}"),
            memory_bytes: 80 * GIB,
            simulated,
            driver_version: "550.54.15".to_owned(),
        }),
        taken: taken
            .iter()
            .map(|(first, count)| model::BlockRange {
                first: *first,
                count: *count,
            })
            .collect(),
    }
}

fn tenant(id: String, name: &str, state: &str, slice: Option<(u32, u32)>) -> pb::NodeWorkload {
    pb::NodeWorkload {
        id,
        name: name.to_owned(),
        project: "local/default".to_owned(),
        state_text: state.to_owned(),
        slices: Vec::from_iter(slice.map(|(first, count)| model::Slice {
            gpu_uuid: "SIM-h100-0".to_owned(),
            gpu_type: "H100".to_owned(),
            blocks: vec![model::BlockRange { first, count }],
            vram_bytes: 20 * GIB,
            isolation: model::IsolationClass::Soft.into(),
        })),
        since: Some(at(100)),
    }
}

/// `gpu-box` has a server, a run and something of others, and drains in two steps; `far-box` is
/// silent; nothing runs on `idle-box`; there are two of the name `twin`.
pub(crate) fn all() -> Vec<pb::Node> {
    let node = |n: u128, name: &str| pb::Node {
        id: NodeId::from_ulid(Ulid(BASE + n)).to_string(),
        name: name.to_owned(),
        state: pb::NodeState::Ready.into(),
        answers: true,
        registered_at: Some(at(0)),
        last_seen_at: Some(at(600)),
        last_seen_ago: Some(prost_types::Duration {
            seconds: 3,
            nanos: 0,
        }),
        cpu_milli: 32_000,
        memory_bytes: 256 * GIB,
        disk_bytes: 2_000 * GIB,
        disk_free_bytes: 1_500 * GIB,
        ..pb::Node::default()
    };
    let server = ServerId::from_ulid(Ulid(BASE + 10)).to_string();
    let run = RunId::from_ulid(Ulid(BASE + 11)).to_string();
    let rests = ServerId::from_ulid(Ulid(BASE + 12)).to_string();
    vec![
        pb::Node {
            gpus: vec![
                gpu("SIM-h100-0", "H100", true, &[(0, 25), (25, 50)]),
                gpu("SIM-h100-1", "H100", true, &[(0, 10)]),
            ],
            running: 3,
            workloads: vec![
                tenant(server, "first", "ready", Some((0, 25))),
                tenant(run, "train", "running", Some((25, 50))),
            ],
            resting: 1,
            resting_servers: vec![tenant(rests, "old", "stopped", None)],
            not_enforced: vec!["memory: no cgroup can be made here".to_owned()],
            ..node(1, "gpu-box")
        },
        pb::Node {
            gpus: vec![gpu("GPU-1", "A100", false, &[])],
            ..node(2, "idle-box")
        },
        pb::Node {
            state: pb::NodeState::Silent.into(),
            answers: false,
            last_seen_ago: Some(prost_types::Duration {
                seconds: 185,
                nanos: 0,
            }),
            gpus: vec![gpu("GPU-2", "A100", false, &[(0, 100)])],
            running: 1,
            ..node(3, "far-box")
        },
        node(4, "twin"),
        node(5, "twin"),
    ]
}

/// What a drain does: one server ends at a look, all the rest at the next.
fn step(node: &mut pb::Node) {
    if node.state() != pb::NodeState::Draining || !node.answers {
        return;
    }
    if node.running > 1 {
        node.running = 1;
        node.workloads.clear();
        node.resting += 1;
        node.drain_detail = "waiting for 1 server to end".to_owned();
    } else {
        drained(node);
    }
}

fn drained(node: &mut pb::Node) {
    node.set_state(pb::NodeState::Cordoned);
    node.drain_detail = String::new();
    node.running = 0;
    for gpu in &mut node.gpus {
        gpu.taken.clear();
    }
}

fn mark(node: &mut pb::Node, reason: &str, drain: bool) {
    let cordon = node.cordon.get_or_insert_default();
    cordon.since = Some(at(700));
    if !reason.is_empty() {
        cordon.reason = reason.to_owned();
    }
    cordon.drain |= drain;
    node.set_state(pb::NodeState::Cordoned);
    if !drain {
        return;
    }
    node.set_state(pb::NodeState::Draining);
    match (node.running, node.answers) {
        (0, _) => drained(node),
        (_, true) => node.drain_detail = "waiting for 2 servers and 1 run to end".to_owned(),
        (_, false) => {
            node.drain_detail = format!(
                "waiting for {} to answer again; 1 server may still run there",
                node.name
            );
        }
    }
}

impl Api {
    fn on_node(&self, wanted: &str, then: impl FnOnce(&mut pb::Node)) -> Result<pb::Node, Status> {
        let mut state = self.state();
        let mut found: Vec<&mut pb::Node> = state
            .nodes
            .iter_mut()
            .filter(|node| node.id == wanted || node.name == wanted)
            .collect();
        match found.as_mut_slice() {
            [node] => {
                then(node);
                Ok((*node).clone())
            }
            [] => Err(refusal(
                Code::NotFound,
                "NODE_NOT_FOUND",
                &format!("there is no node {wanted:?}"),
                &[("try", "did you mean gpu-box"), ("field", "node")],
            )),
            [first, ..] => Err(refusal(
                Code::InvalidArgument,
                "NODE_AMBIGUOUS",
                &format!("{wanted:?} is the name of several nodes"),
                &[(
                    "try",
                    &format!("write the id of one of them, for example {}", first.id),
                )],
            )),
        }
    }
}

#[tonic::async_trait]
impl NodeService for Api {
    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        let fault = self.enter("ListNodes", &request)?;
        let from: usize = request.get_ref().page_token.parse().unwrap_or(0);
        let state = self.state();
        let nodes: Vec<_> = state
            .nodes
            .iter()
            .skip(from)
            .take(state.page)
            .map(|node| pb::Node {
                workloads: Vec::new(),
                resting_servers: Vec::new(),
                resting: 0,
                ..node.clone()
            })
            .collect();
        let next = from + nodes.len();
        let next_page_token = if next < state.nodes.len() {
            next.to_string()
        } else {
            String::new()
        };
        finish(
            fault,
            pb::ListNodesResponse {
                nodes,
                next_page_token,
            },
        )
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let fault = self.enter("GetNode", &request)?;
        finish(fault, self.on_node(&request.get_ref().node, step)?)
    }

    async fn cordon_node(
        &self,
        request: Request<pb::CordonNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let fault = self.enter("CordonNode", &request)?;
        need_key(&request)?;
        let ask = request.into_inner();
        let node = self.on_node(&ask.node, |node| mark(node, &ask.reason, false))?;
        finish(fault, node)
    }

    async fn uncordon_node(
        &self,
        request: Request<pb::UncordonNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let fault = self.enter("UncordonNode", &request)?;
        need_key(&request)?;
        let node = self.on_node(&request.get_ref().node, |node| {
            node.cordon = None;
            node.drain_detail = String::new();
            node.set_state(if node.answers {
                pb::NodeState::Ready
            } else {
                pb::NodeState::Silent
            });
        })?;
        finish(fault, node)
    }

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let fault = self.enter("DrainNode", &request)?;
        need_key(&request)?;
        let ask = request.into_inner();
        let node = self.on_node(&ask.node, |node| mark(node, &ask.reason, true))?;
        finish(fault, node)
    }
}
