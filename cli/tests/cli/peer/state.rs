//! Servers, profiles and images of the peer, and what becomes of a server.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cnlab_model::id::{GrantId, NodeId, ServerId, Ulid, VolumeId};
use cnlab_proto::{model::v1 as model, scheduler::v1 as pb};
use prost_types::{Duration, Timestamp};

/// One request as it came in.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) authorization: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) traceparent: Option<String>,
}

/// What to do wrong, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answer UNAVAILABLE and do nothing.
    Away,
    /// Do it, then answer UNAVAILABLE as if the answer were lost.
    LoseAnswer,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) port: u16,
    pub(crate) calls: Vec<Call>,
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    pub(crate) servers: BTreeMap<String, pb::Server>,
    pub(crate) runs: super::runs::Runs,
    pub(crate) nodes: Vec<pb::Node>,
    pub(crate) profiles: Vec<pb::Profile>,
    pub(crate) images: Vec<pb::Image>,
    pub(crate) logs: Vec<String>,
    /// What comes next for a server, in order.
    pub(crate) steps: HashMap<String, VecDeque<pb::Server>>,
    /// Names of servers whose watch breaks off before the next step, once.
    pub(crate) broken_watches: Vec<String>,
    keys: HashMap<String, String>,
    made: u128,
    pub(crate) page: usize,
}

const BYTES_PER_GIB: u64 = 1 << 30;

impl State {
    pub(crate) fn new(port: u16) -> Self {
        let profile =
            |name: &str, gpu: &str, percent, isolation: model::IsolationClass| pb::Profile {
                name: name.to_owned(),
                gpu_type: gpu.to_owned(),
                slice_percent: percent,
                isolation: isolation.into(),
                available_now: true,
                vram_bytes: 80 * BYTES_PER_GIB / 100 * u64::from(percent),
                memory_bytes: 16 * BYTES_PER_GIB,
                cpu_milli: 4_000,
                simulated: true,
                ..pb::Profile::default()
            };
        use model::IsolationClass::{Hard, Soft};
        let mut full = profile("h100-full", "H100", 100, Hard);
        full.available_now = false;
        full.wait = Some(seconds(701));
        Self {
            port,
            calls: Vec::new(),
            faults: VecDeque::new(),
            servers: BTreeMap::new(),
            runs: super::runs::Runs::default(),
            nodes: super::nodes::all(),
            profiles: vec![
                profile("h100-25pct", "H100", 25, Soft),
                full,
                profile("a100-50pct", "A100", 50, Soft),
                profile("l40s-block", "L40S", 10, Soft),
            ],
            images: vec![
                pb::Image {
                    name: "pytorch:2.4-cuda12.4".to_owned(),
                    reference: "docker.io/pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime".to_owned(),
                    description: "JupyterLab with PyTorch 2.4".to_owned(),
                    packages: vec!["jupyterlab".to_owned()],
                    heavy_packages: vec!["torch".to_owned()],
                },
                pb::Image {
                    name: "base:3.12".to_owned(),
                    reference: "docker.io/library/python:3.12".to_owned(),
                    description: "JupyterLab alone".to_owned(),
                    packages: vec!["jupyterlab".to_owned()],
                    heavy_packages: Vec::new(),
                },
            ],
            logs: Vec::new(),
            steps: HashMap::new(),
            broken_watches: Vec::new(),
            keys: HashMap::new(),
            made: 0,
            page: 2,
        }
    }

    /// The server that an id, a name or `owner/slug/name` means.
    pub(crate) fn find(&self, wanted: &str) -> Option<pb::Server> {
        self.servers
            .values()
            .find(|server| {
                server.id == wanted
                    || server.name == wanted
                    || format!("{}/{}", server.project, server.name) == wanted
            })
            .cloned()
    }

    pub(crate) fn id_of_key(&self, key: &str) -> Option<String> {
        self.keys.get(key).cloned()
    }

    pub(crate) fn create(&mut self, request: pb::CreateServerRequest, key: &str) -> pb::Server {
        self.made += 1;
        let ulid = Ulid(0x0190_0000_0000_0000_0000_0000_0000_0000 + self.made);
        let id = ServerId::from_ulid(ulid).to_string();
        let profile = self
            .profiles
            .iter()
            .find(|profile| profile.name == request.profile)
            .cloned();
        let profile = profile.unwrap_or_default();
        let project = if request.project.is_empty() {
            "local/default".to_owned()
        } else {
            request.project
        };
        let image = self.images.iter().find(|image| image.name == request.image);
        let server = pb::Server {
            id: id.clone(),
            name: request.name,
            project,
            owner_id: "usr_01900000000000000000000001".to_owned(),
            profile: request.profile,
            image_reference: image
                .map(|image| image.reference.clone())
                .unwrap_or_default(),
            image: request.image,
            storage_bytes: request.storage_bytes,
            volume_id: VolumeId::from_ulid(ulid).to_string(),
            state: pb::ServerState::Queued.into(),
            phase: pb::ServerPhase::WaitingForSlice.into(),
            eta: Some(seconds(701)),
            url: format!("http://nb.localhost:{}/{id}", self.port),
            created_at: Some(at(0)),
            version: 1,
            install_heavy: request.install_heavy,
            gpus: request.gpus.unwrap_or(1),
            ..pb::Server::default()
        };
        let placed = Self::placed(&server, &profile);
        let mut steps = Self::steps_to_ready(&placed);
        let first = if profile.available_now {
            placed
        } else {
            steps.push_front(placed);
            server
        };
        self.keys.insert(key.to_owned(), id.clone());
        self.steps.insert(id.clone(), steps);
        self.servers.insert(id, first.clone());
        first
    }

    fn placed(server: &pb::Server, profile: &pb::Profile) -> pb::Server {
        let ulid = Ulid(0x0190_0000_0000_0000_0000_0000_0000_0000);
        let mut placed = server.clone();
        placed.version += 1;
        placed.set_state(pb::ServerState::Provisioning);
        placed.set_phase(pb::ServerPhase::SendingToNode);
        placed.eta = Some(Duration {
            seconds: 17,
            nanos: 400_000_000,
        });
        placed.node_id = NodeId::from_ulid(ulid).to_string();
        placed.node_name = "local".to_owned();
        placed.started_at = Some(at(1));
        placed.grant = Some(model::Grant {
            id: GrantId::from_ulid(ulid).to_string(),
            fence: 7,
            slices: vec![model::Slice {
                gpu_uuid: "SIM-h100-0".to_owned(),
                gpu_type: profile.gpu_type.clone(),
                blocks: vec![model::BlockRange {
                    first: 0,
                    count: profile.slice_percent,
                }],
                vram_bytes: profile.vram_bytes,
                isolation: profile.isolation,
            }],
        });
        placed
    }

    /// By the beginning of its name: `stuck` stays, `doomed` fails, `taken` is stopped by
    /// somebody else, everything else becomes ready.
    fn steps_to_ready(server: &pb::Server) -> VecDeque<pb::Server> {
        let mut steps = VecDeque::new();
        if server.name.starts_with("stuck") {
            return steps;
        }
        let mut now = server.clone();
        let mut push = |now: &mut pb::Server| {
            now.version += 1;
            steps.push_back(now.clone());
        };
        now.set_phase(pb::ServerPhase::BuildingEnvironment);
        now.phase_detail = "installing jupyterlab".to_owned();
        if server.name.starts_with("hostile") {
            now.phase_detail = "\u{1b}[2J\u{1b}]0;owned\u{7}evil\nline".to_owned();
        }
        push(&mut now);
        if server.name.starts_with("doomed") {
            now.set_state(pb::ServerState::Failed);
            now.failure = Some(model::Failure {
                reason: "ENVIRONMENT_BUILD_FAILED".to_owned(),
                message: "the environment of pytorch:2.4-cuda12.4 could not be built".to_owned(),
                cause: "pip: no matching distribution\npip: \u{1b}[31mgiving up\u{1b}[0m"
                    .to_owned(),
                try_this: "check the network, then `cnlab server start doomed`".to_owned(),
            });
            push(&mut now);
            return steps;
        }
        if server.name.starts_with("taken") {
            now.set_state(pb::ServerState::Stopping);
            push(&mut now);
            return steps;
        }
        now.set_phase(pb::ServerPhase::Starting);
        now.phase_detail = String::new();
        push(&mut now);
        now.set_phase(pb::ServerPhase::WaitingForPage);
        push(&mut now);
        now.set_state(pb::ServerState::Ready);
        now.set_phase(pb::ServerPhase::Unspecified);
        now.eta = None;
        now.ready_at = Some(at(18));
        now.runtime = Some(pb::RuntimeFacts {
            simulated_gpu: true,
            installed: vec!["jupyterlab==4.2.5".to_owned()],
            not_installed: vec!["torch: heavy, and no real GPU is here".to_owned()],
            enforced: vec!["files: a mount namespace of its own".to_owned()],
            not_enforced: vec!["memory: no cgroup can be made here".to_owned()],
            python_version: "3.12.4".to_owned(),
        });
        push(&mut now);
        steps
    }

    pub(crate) fn start(&mut self, server: &pb::Server) -> pb::Server {
        let mut again = server.clone();
        again.stopped_at = None;
        again.failure = None;
        let profile = self
            .profiles
            .iter()
            .find(|profile| profile.name == server.profile)
            .cloned();
        let placed = Self::placed(&again, &profile.unwrap_or_default());
        self.steps
            .insert(placed.id.clone(), Self::steps_to_ready(&placed));
        self.servers.insert(placed.id.clone(), placed.clone());
        placed
    }

    pub(crate) fn stop(&mut self, server: &pb::Server) -> pb::Server {
        let mut now = server.clone();
        now.version += 1;
        now.set_state(pb::ServerState::Stopping);
        let stopping = now.clone();
        now.version += 1;
        now.set_state(pb::ServerState::Stopped);
        now.set_phase(pb::ServerPhase::Unspecified);
        now.phase_detail = String::new();
        now.eta = None;
        now.grant = None;
        now.runtime = None;
        now.node_id = String::new();
        now.node_name = String::new();
        now.stopped_at = Some(at(60));
        self.steps.insert(now.id.clone(), VecDeque::from([now]));
        self.servers.insert(stopping.id.clone(), stopping.clone());
        stopping
    }

    pub(crate) fn delete(&mut self, server: &pb::Server) -> pb::Server {
        let mut now = server.clone();
        now.version += 1;
        now.set_state(pb::ServerState::Deleting);
        let deleting = now.clone();
        now.version += 1;
        now.set_state(pb::ServerState::Deleted);
        self.steps.insert(now.id.clone(), VecDeque::from([now]));
        self.servers.insert(deleting.id.clone(), deleting.clone());
        deleting
    }

    /// Takes the next step of a server, if there is one.
    pub(crate) fn step(&mut self, id: &str) -> Option<pb::Server> {
        let next = self.steps.get_mut(id)?.pop_front()?;
        if next.state() == pb::ServerState::Deleted {
            self.servers.remove(id);
        } else {
            self.servers.insert(id.to_owned(), next.clone());
        }
        Some(next)
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn at(second: i64) -> Timestamp {
    Timestamp {
        seconds: 1_764_500_000 + second,
        nanos: 0,
    }
}
