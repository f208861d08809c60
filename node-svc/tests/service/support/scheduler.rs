use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use cnlab_proto::{
    convert::encode_duration,
    model::v1 as model,
    node::v1::{Workload, WorkloadState},
    scheduler::v1::{
        self as pb,
        roster_service_server::{RosterService, RosterServiceServer},
    },
};
use cnlab_testkit::{GENEROUS, wait_for};
use node_sandbox::Boottime;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// The other end of a node's calls: it writes down what it hears and says what it was told to.
#[derive(Clone)]
pub(crate) struct Scheduler {
    pub(crate) endpoint: String,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    registrations: Vec<pb::RegisterNodeRequest>,
    /// How long a lease lives, where that is not the usual time.
    ttl: Option<Duration>,
    /// The newest last.
    renewals: Vec<pb::RenewGrantsRequest>,
    /// When the newest was heard.
    renewed_at: Option<Boottime>,
    /// Renewals are heard and answered later.
    late: bool,
    reports: Vec<Workload>,
    to_end: Vec<String>,
    forget: bool,
}

struct Roster(Arc<Mutex<Heard>>);

#[tonic::async_trait]
impl RosterService for Roster {
    async fn register_node(
        &self,
        request: Request<pb::RegisterNodeRequest>,
    ) -> Result<Response<pb::RegisterNodeResponse>, Status> {
        let mut heard = self.0.lock().unwrap();
        heard.registrations.push(request.into_inner());
        let ttl = heard.ttl.unwrap_or(Duration::from_secs(30));
        Ok(Response::new(pb::RegisterNodeResponse {
            lease_ttl: Some(encode_duration(ttl)),
            renew_every: Some(encode_duration(Duration::from_millis(100))),
        }))
    }

    async fn renew_grants(
        &self,
        request: Request<pb::RenewGrantsRequest>,
    ) -> Result<Response<pb::RenewGrantsResponse>, Status> {
        let answer = {
            let mut heard = self.0.lock().unwrap();
            heard.renewals.push(request.into_inner());
            heard.renewed_at = Some(Boottime::now());
            pb::RenewGrantsResponse {
                end_workload_ids: std::mem::take(&mut heard.to_end),
                register_again: std::mem::take(&mut heard.forget),
            }
        };
        while self.0.lock().unwrap().late {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(Response::new(answer))
    }

    async fn report_workload(
        &self,
        request: Request<pb::ReportWorkloadRequest>,
    ) -> Result<Response<pb::ReportWorkloadResponse>, Status> {
        let workload = request.into_inner().workload.unwrap();
        self.0.lock().unwrap().reports.push(workload);
        Ok(Response::new(pb::ReportWorkloadResponse {}))
    }

    async fn resolve_route(
        &self,
        _: Request<pb::ResolveRouteRequest>,
    ) -> Result<Response<pb::Route>, Status> {
        Err(Status::internal("nodes never ask for routes"))
    }
}

impl Scheduler {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Heard::default()));
        let roster = RosterServiceServer::new(Roster(Arc::clone(&heard)));
        let serving = tonic::transport::Server::builder()
            .add_service(roster)
            .serve_with_incoming(TcpListenerStream::new(listener));
        cnlab_service::Runtime::system()
            .tasks
            .spawn("scheduler", serving);
        Self { endpoint, heard }
    }

    pub(crate) fn registrations(&self) -> Vec<pb::RegisterNodeRequest> {
        self.heard.lock().unwrap().registrations.clone()
    }

    /// Says to nodes that register from now on that a lease lives for so long.
    pub(crate) fn lease(&self, ttl: Duration) {
        self.heard.lock().unwrap().ttl = Some(ttl);
    }

    /// The first GPU of the first node, once it has registered.
    pub(crate) async fn first_gpu(&self) -> model::Gpu {
        wait_for(GENEROUS, "a node to register", async || {
            let all = self.registrations();
            all.first().map(|node| node.gpus[0].clone())
        })
        .await
        .unwrap()
    }

    pub(crate) fn reports(&self) -> Vec<Workload> {
        self.heard.lock().unwrap().reports.clone()
    }

    /// States of a workload in the order in which they were first heard.
    pub(crate) fn states(&self, workload_id: &str) -> Vec<WorkloadState> {
        let mut states = Vec::new();
        for report in self.reports() {
            if report.workload_id == workload_id && states.last() != Some(&report.state()) {
                states.push(report.state());
            }
        }
        states
    }

    /// Asks the node, with its next renewal, to end this workload.
    pub(crate) fn end(&self, workload_id: &str) {
        self.heard
            .lock()
            .unwrap()
            .to_end
            .push(workload_id.to_owned());
    }

    /// Answers no renewal, or all of them again.
    pub(crate) fn answer_later(&self, late: bool) {
        self.heard.lock().unwrap().late = late;
    }

    /// Every renewal that was heard, the newest last.
    pub(crate) fn renewals(&self) -> Vec<pb::RenewGrantsRequest> {
        self.heard.lock().unwrap().renewals.clone()
    }

    /// When the newest renewal was heard: what a scheduler counts a lease from.
    pub(crate) fn renewed_at(&self) -> Boottime {
        self.heard.lock().unwrap().renewed_at.expect("a renewal")
    }

    /// Whether an end that was asked for is part of an answer by now.
    pub(crate) fn has_answered_end(&self) -> bool {
        self.heard.lock().unwrap().to_end.is_empty()
    }

    /// Acts as if it had never heard of the node.
    pub(crate) fn forget(&self) {
        self.heard.lock().unwrap().forget = true;
    }
}
