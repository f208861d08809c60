//! The other side of the wire: a node and a billing service that keep state and refuse what a
//! real one would refuse.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use cnlab_model::id::NodeId;
use cnlab_proto::{
    billing::v1::{
        self as billing, credential_service_server::CredentialServiceServer,
        meter_service_server::MeterServiceServer,
    },
    convert::decode_blocks,
    model::v1 as model,
    node::v1::{
        self as pb, WorkloadState,
        node_service_server::{NodeService, NodeServiceServer},
    },
};
use cnlab_service::{Runtime, channel::INTERNAL_KEY_HEADER};
use cnlab_testkit::free_port;
use tokio::net::TcpListener;
use tokio_stream::{Stream, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, transport::Server};

use crate::world::KEY;

fn knows_the_key<T>(request: &Request<T>) -> Result<(), Status> {
    let given = request.metadata().get(INTERNAL_KEY_HEADER);
    if given.is_some_and(|given| given == KEY) {
        Ok(())
    } else {
        Err(Status::unauthenticated("wrong key"))
    }
}

/// A listener on a port of its own that can be closed and opened again.
///
/// Its server has a runtime of its own, so that closing ends every connection at once, as the
/// loss of a machine does.
#[derive(Debug)]
struct Door {
    addr: SocketAddr,
    open: Mutex<Option<tokio::runtime::Runtime>>,
}

impl Door {
    fn new() -> Self {
        Self {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap())),
            open: Mutex::default(),
        }
    }

    fn open(&self, router: tonic::transport::server::Router) {
        let listener = std::net::TcpListener::bind(self.addr).unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            router
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        *self.open.lock().unwrap() = Some(runtime);
    }

    fn close(&self) {
        if let Some(runtime) = self.open.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Dropping a runtime inside another one would block, which tokio refuses.
        self.close();
    }
}

// --- node

/// What a node remembers.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    pub(crate) workloads: BTreeMap<String, pb::Workload>,
    /// Every launch that was carried out, in order.
    pub(crate) launches: Vec<pb::LaunchWorkloadRequest>,
    pub(crate) removed_volumes: Vec<String>,
    /// Highest fence per GPU.
    high_water: HashMap<String, u64>,
    /// Trace contexts of launches.
    pub(crate) traceparents: Vec<String>,
    /// What the next launches are refused with.
    pub(crate) refuse: Option<Status>,
    /// What launches are answered with that were carried out.
    pub(crate) garble: Option<Status>,
    /// What stops are refused with.
    pub(crate) keeps: Option<Status>,
    /// Stops that were refused.
    pub(crate) kept: usize,
    pub(crate) logs: Vec<Vec<u8>>,
    /// Whether launches are never answered.
    pub(crate) hangs: bool,
    /// The servers whose launches were not answered, once per launch.
    pub(crate) hung: Vec<String>,
}

impl NodeState {
    fn answer(&self, workload: pb::Workload) -> Result<Response<pb::Workload>, Status> {
        match &self.garble {
            Some(status) => Err(status.clone()),
            None => Ok(Response::new(workload)),
        }
    }
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct PeerNode {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    state: Arc<Mutex<NodeState>>,
    door: Arc<Door>,
}

impl PeerNode {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            id: NodeId::from_ulid(Runtime::system().ids.ulid()),
            name: name.to_owned(),
            state: Arc::default(),
            door: Arc::new(Door::new()),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.door.addr)
    }

    pub(crate) fn up(&self) {
        let service = NodeServiceServer::new(self.clone());
        self.door.open(Server::builder().add_service(service));
    }

    pub(crate) fn down(&self) {
        self.door.close();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap()
    }

    /// Forgets its workloads, as the restart of a machine does.
    pub(crate) fn reboot(&self) {
        self.state().workloads.clear();
    }

    /// Moves a workload that it runs on, and returns the report of that.
    pub(crate) fn moved(&self, server: &str, state: WorkloadState, detail: &str) -> pb::Workload {
        self.try_moved(server, state, detail)
            .expect("the node runs it")
    }

    /// The same for a workload that it may have ended meanwhile.
    pub(crate) fn try_moved(
        &self,
        server: &str,
        state: WorkloadState,
        detail: &str,
    ) -> Option<pb::Workload> {
        let mut node = self.state();
        let workload = node.workloads.get_mut(server)?;
        workload.set_state(state);
        workload.sequence += 1;
        workload.detail = detail.to_owned();
        if state == WorkloadState::Ready {
            workload.simulated_gpu = true;
            workload.installed = vec!["jupyterlab==4.6.6".to_owned()];
            workload.python_version = "3.11.7".to_owned();
        }
        Some(workload.clone())
    }

    pub(crate) fn workloads(&self) -> Vec<pb::Workload> {
        self.state().workloads.values().cloned().collect()
    }
}

#[tonic::async_trait]
impl NodeService for PeerNode {
    async fn launch_workload(
        &self,
        request: Request<pb::LaunchWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        knows_the_key(&request)?;
        let traceparent = request.metadata().get("traceparent");
        let traceparent = traceparent.map(|value| value.to_str().unwrap().to_owned());
        let launch = request.into_inner();
        let hangs = {
            let mut node = self.state();
            if node.hangs {
                node.hung.push(launch.workload_id.clone());
            }
            node.hangs
        };
        if hangs {
            return std::future::pending().await;
        }
        let mut node = self.state();
        node.traceparents.extend(traceparent);
        if let Some(status) = &node.refuse {
            return Err(status.clone());
        }
        let grant = launch.grant.clone().unwrap();
        if let Some(running) = node.workloads.get(&launch.workload_id)
            && running.fence == grant.fence
        {
            return node.answer(running.clone());
        }
        assert!(!grant.slices.is_empty());
        for slice in &grant.slices {
            let high_water = node.high_water.entry(slice.gpu_uuid.clone()).or_default();
            *high_water = (*high_water).max(grant.fence);
            assert!(decode_blocks("blocks", &slice.blocks).unwrap().count() > 0);
        }
        let workload = pb::Workload {
            workload_id: launch.workload_id.clone(),
            fence: grant.fence,
            state: WorkloadState::Accepted.into(),
            sequence: 1,
            ..pb::Workload::default()
        };
        node.workloads
            .insert(launch.workload_id.clone(), workload.clone());
        node.launches.push(launch);
        node.answer(workload)
    }

    async fn stop_workload(
        &self,
        request: Request<pb::StopWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        knows_the_key(&request)?;
        let stop = request.into_inner();
        let mut node = self.state();
        if let Some(status) = node.keeps.clone() {
            node.kept += 1;
            return Err(status);
        }
        let mut workload = node
            .workloads
            .remove(&stop.workload_id)
            .ok_or_else(|| Status::not_found("no such workload"))?;
        workload.sequence += 1;
        workload.set_state(WorkloadState::Stopped);
        Ok(Response::new(workload))
    }

    async fn get_workload(
        &self,
        request: Request<pb::GetWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        let node = self.state();
        let workload = node.workloads.get(&request.get_ref().workload_id);
        workload
            .cloned()
            .map(Response::new)
            .ok_or_else(|| Status::not_found("no such workload"))
    }

    async fn list_workloads(
        &self,
        _: Request<pb::ListWorkloadsRequest>,
    ) -> Result<Response<pb::ListWorkloadsResponse>, Status> {
        Ok(Response::new(pb::ListWorkloadsResponse {
            workloads: self.workloads(),
        }))
    }

    type StreamLogsStream = Pin<Box<dyn Stream<Item = Result<pb::LogData, Status>> + Send>>;

    async fn stream_logs(
        &self,
        request: Request<pb::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        knows_the_key(&request)?;
        let pieces = self.state().logs.clone();
        let data = pieces.into_iter().map(|data| Ok(pb::LogData { data }));
        Ok(Response::new(Box::pin(tokio_stream::iter(data))))
    }

    async fn remove_volume(
        &self,
        request: Request<pb::RemoveVolumeRequest>,
    ) -> Result<Response<pb::RemoveVolumeResponse>, Status> {
        knows_the_key(&request)?;
        let volume = request.into_inner().volume_id;
        self.state().removed_volumes.push(volume);
        Ok(Response::new(pb::RemoveVolumeResponse {}))
    }
}

// --- billing

/// One usage interval.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Interval {
    pub(crate) workload_id: String,
    pub(crate) project: String,
    pub(crate) slices: Vec<model::Slice>,
    pub(crate) started_at: prost_types::Timestamp,
    pub(crate) ended_at: Option<prost_types::Timestamp>,
}

/// A billing service.
#[derive(Debug, Clone)]
pub(crate) struct PeerBilling {
    intervals: Arc<Mutex<BTreeMap<String, Interval>>>,
    door: Arc<Door>,
}

impl PeerBilling {
    pub(crate) fn new() -> Self {
        Self {
            intervals: Arc::default(),
            door: Arc::new(Door::new()),
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.door.addr)
    }

    pub(crate) fn up(&self) {
        let router = Server::builder()
            .add_service(MeterServiceServer::new(self.clone()))
            .add_service(CredentialServiceServer::new(self.clone()));
        self.door.open(router);
    }

    pub(crate) fn down(&self) {
        self.door.close();
    }

    pub(crate) fn intervals(&self) -> BTreeMap<String, Interval> {
        self.intervals.lock().unwrap().clone()
    }
}

fn answer(grant_id: String) -> Response<billing::UsageInterval> {
    Response::new(billing::UsageInterval {
        grant_id,
        ..billing::UsageInterval::default()
    })
}

#[tonic::async_trait]
impl billing::meter_service_server::MeterService for PeerBilling {
    async fn open_usage(
        &self,
        request: Request<billing::OpenUsageRequest>,
    ) -> Result<Response<billing::UsageInterval>, Status> {
        knows_the_key(&request)?;
        let open = request.into_inner();
        let interval = Interval {
            workload_id: open.workload_id,
            project: open.project,
            slices: open.slices,
            started_at: open.started_at.unwrap(),
            ended_at: None,
        };
        let mut intervals = self.intervals.lock().unwrap();
        intervals.entry(open.grant_id.clone()).or_insert(interval);
        Ok(answer(open.grant_id))
    }

    async fn close_usage(
        &self,
        request: Request<billing::CloseUsageRequest>,
    ) -> Result<Response<billing::UsageInterval>, Status> {
        knows_the_key(&request)?;
        let close = request.into_inner();
        let mut intervals = self.intervals.lock().unwrap();
        let interval = intervals
            .get_mut(&close.grant_id)
            .ok_or_else(|| Status::not_found("no such interval"))?;
        interval.ended_at = interval.ended_at.or(close.ended_at);
        Ok(answer(close.grant_id))
    }
}

#[tonic::async_trait]
impl billing::credential_service_server::CredentialService for PeerBilling {
    async fn authenticate_token(
        &self,
        _: Request<billing::AuthenticateTokenRequest>,
    ) -> Result<Response<billing::Identity>, Status> {
        Err(Status::unimplemented("the scheduler asks for no tokens"))
    }

    async fn issue_open_code(
        &self,
        request: Request<billing::IssueOpenCodeRequest>,
    ) -> Result<Response<billing::IssueOpenCodeResponse>, Status> {
        knows_the_key(&request)?;
        let ask = request.into_inner();
        Ok(Response::new(billing::IssueOpenCodeResponse {
            code: format!("code-for-{}", ask.user_id),
            expires_at: Some(prost_types::Timestamp {
                seconds: 4_000_000_000,
                nanos: 0,
            }),
        }))
    }

    async fn redeem_open_code(
        &self,
        _: Request<billing::RedeemOpenCodeRequest>,
    ) -> Result<Response<billing::RedeemOpenCodeResponse>, Status> {
        Err(Status::unimplemented("the scheduler redeems no codes"))
    }

    async fn authenticate_session(
        &self,
        _: Request<billing::AuthenticateSessionRequest>,
    ) -> Result<Response<billing::Identity>, Status> {
        Err(Status::unimplemented("the scheduler asks for no sessions"))
    }
}
