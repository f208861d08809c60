//! One scheduler with its peers, and shorthand for what tests do with them.

use std::{sync::Arc, time::Duration};

use cnlab_db::DatabaseConfig;
use cnlab_model::{
    Blocks,
    id::{TeamId, Ulid, UserId},
};
use cnlab_proto::{
    convert::decode_blocks,
    model::v1 as model,
    node::v1::{self as node, WorkloadState},
    scheduler::v1::{
        self as pb, ServerState, catalog_service_client::CatalogServiceClient,
        node_service_client::NodeServiceClient, queue_service_client::QueueServiceClient,
        roster_service_client::RosterServiceClient, run_service_client::RunServiceClient,
        server_service_client::ServerServiceClient,
    },
};
use cnlab_service::{
    Caller, Runtime, Secret, Span, caller::IDEMPOTENCY_KEY, channel, runtime::TestClock,
    status::PublicError,
};
use cnlab_testkit::{GENEROUS, PostgresServer, ScratchDir, wait_for};
use scheduler_svc::{Config, Scheduler, UpstreamConfig};
use tokio::net::TcpListener;
use tonic::{Request, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::peers::{PeerBilling, PeerNode};

pub(crate) const KEY: &str = "a key that all services of this test share";
pub(crate) const GIB: u64 = 1 << 30;

/// Where the scheduler records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// A scheduler, its billing service and whatever nodes a test makes.
pub(crate) struct World {
    pub(crate) config: Config,
    scheduler: Option<cnlab_service::Running<Scheduler>>,
    pub(crate) billing: PeerBilling,
    /// A clock that stands still, in place of the real one.
    pub(crate) clock: Option<TestClock>,
    dir: ScratchDir,
}

impl World {
    pub(crate) async fn start(database: Database) -> Self {
        Self::start_with(database, |_| {}).await
    }

    pub(crate) async fn start_with(database: Database, change: impl FnOnce(&mut Config)) -> Self {
        let dir = ScratchDir::new("scheduler").unwrap();
        let billing = PeerBilling::new();
        billing.up();
        let mut config = Config {
            database: match database {
                Database::Sqlite => DatabaseConfig::sqlite(&dir.path().join("scheduler.sqlite")),
                Database::Postgres => DatabaseConfig {
                    url: PostgresServer::shared()
                        .await
                        .unwrap()
                        .create_database()
                        .await
                        .unwrap(),
                },
            },
            billing: UpstreamConfig {
                endpoint: billing.endpoint(),
            },
            ..Config::default()
        };
        config.common.internal_key = Secret::new(KEY.to_owned());
        config.common.shutdown_grace = Span(Duration::from_secs(5));
        change(&mut config);
        let mut world = Self {
            config,
            scheduler: None,
            billing,
            clock: None,
            dir,
        };
        world.start_again().await;
        world
    }

    /// Writes a file beside the database and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> std::path::PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Starts the scheduler on what an earlier life of it left.
    pub(crate) async fn start_again(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut runtime = Runtime::system();
        if let Some(clock) = &self.clock {
            runtime.clock = Arc::new(clock.clone());
        }
        let started =
            cnlab_service::start::<Scheduler>(self.config.clone(), runtime, listener).await;
        self.scheduler = Some(started.unwrap());
    }

    pub(crate) async fn stop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.stop().await;
        }
    }

    fn channel(&self) -> channel::UpstreamChannel {
        let endpoint = self.scheduler.as_ref().unwrap().endpoint();
        channel::connect(&endpoint, &self.config.common.internal_key, GENEROUS).unwrap()
    }

    /// The health of this name, as a number of `grpc.health.v1`.
    pub(crate) async fn health(&self, name: &str) -> i32 {
        let request = HealthCheckRequest {
            service: name.to_owned(),
        };
        let mut health = HealthClient::new(self.channel());
        health.check(request).await.unwrap().into_inner().status
    }

    pub(crate) fn servers(&self) -> ServerServiceClient<channel::UpstreamChannel> {
        ServerServiceClient::new(self.channel())
    }

    pub(crate) fn runs(&self) -> RunServiceClient<channel::UpstreamChannel> {
        RunServiceClient::new(self.channel())
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<channel::UpstreamChannel> {
        NodeServiceClient::new(self.channel())
    }

    pub(crate) fn catalog(&self) -> CatalogServiceClient<channel::UpstreamChannel> {
        CatalogServiceClient::new(self.channel())
    }

    pub(crate) fn queue(&self) -> QueueServiceClient<channel::UpstreamChannel> {
        QueueServiceClient::new(self.channel())
    }

    pub(crate) fn roster(&self) -> RosterServiceClient<channel::UpstreamChannel> {
        RosterServiceClient::new(self.channel())
    }

    /// A node with these GPUs that answers and is registered.
    pub(crate) async fn node(&self, name: &str, gpus: &[&str]) -> PeerNode {
        let node = PeerNode::new(name);
        node.up();
        self.register(&node, gpus).await;
        node
    }

    pub(crate) async fn register(&self, node: &PeerNode, gpus: &[&str]) {
        let gpus = gpus.iter().enumerate().map(|(index, family)| model::Gpu {
            uuid: format!("SIM-{}-{index}", node.name),
            gpu_type: (*family).to_owned(),
            name: format!("NVIDIA {family}"),
            memory_bytes: 80 * GIB,
            simulated: true,
            driver_version: "simulated".to_owned(),
        });
        let request = pb::RegisterNodeRequest {
            node_id: node.id.to_string(),
            name: node.name.clone(),
            endpoint: node.endpoint(),
            gpus: gpus.collect(),
            cpu_milli: 2000,
            memory_bytes: 8 * GIB,
            disk_bytes: 500 * GIB,
            disk_free_bytes: 400 * GIB,
            not_enforced: vec![],
            ready_images: vec![],
        };
        let answer = self.roster().register_node(request).await.unwrap();
        assert!(answer.get_ref().lease_ttl.is_some() && answer.get_ref().renew_every.is_some());
    }

    pub(crate) async fn report(&self, peer: &PeerNode, workload: node::Workload) {
        let request = pb::ReportWorkloadRequest {
            node_id: peer.id.to_string(),
            workload: Some(workload),
        };
        self.roster().report_workload(request).await.unwrap();
    }

    pub(crate) async fn renew(&self, peer: &PeerNode) -> pb::RenewGrantsResponse {
        let request = pb::RenewGrantsRequest {
            node_id: peer.id.to_string(),
            workloads: peer.workloads(),
            disk_free_bytes: 400 * GIB,
        };
        self.roster()
            .renew_grants(request)
            .await
            .unwrap()
            .into_inner()
    }

    /// Lets the node report this state of a server, once the launch has reached it.
    pub(crate) async fn moves(
        &self,
        peer: &PeerNode,
        server: &str,
        state: WorkloadState,
        detail: &str,
    ) {
        launched(peer, server).await;
        let report = peer.moved(server, state, detail);
        self.report(peer, report).await;
    }

    /// Creates a server and brings it up.
    pub(crate) async fn ready(&self, me: &Caller, peer: &PeerNode, name: &str) -> pb::Server {
        let server = self.create(me, ask(name)).await.unwrap();
        self.moves(peer, &server.id, WorkloadState::Ready, "").await;
        self.get(me, &server.id).await.unwrap()
    }

    pub(crate) async fn create(
        &self,
        me: &Caller,
        ask: pb::CreateServerRequest,
    ) -> Result<pb::Server, Box<PublicError>> {
        done(self.servers().create_server(by(me, ask)).await)
    }

    pub(crate) async fn get(
        &self,
        me: &Caller,
        server: &str,
    ) -> Result<pb::Server, Box<PublicError>> {
        let server = server.to_owned();
        done(
            self.servers()
                .get_server(by(me, pb::GetServerRequest { server }))
                .await,
        )
    }

    pub(crate) async fn start_server(
        &self,
        me: &Caller,
        server: &str,
    ) -> Result<pb::Server, Box<PublicError>> {
        let server = server.to_owned();
        done(
            self.servers()
                .start_server(by(me, pb::StartServerRequest { server }))
                .await,
        )
    }

    pub(crate) async fn stop_server(
        &self,
        me: &Caller,
        server: &str,
    ) -> Result<pb::Server, Box<PublicError>> {
        let server = server.to_owned();
        done(
            self.servers()
                .stop_server(by(me, pb::StopServerRequest { server }))
                .await,
        )
    }

    pub(crate) async fn delete_server(
        &self,
        me: &Caller,
        server: &str,
    ) -> Result<pb::Server, Box<PublicError>> {
        let server = server.to_owned();
        done(
            self.servers()
                .delete_server(by(me, pb::DeleteServerRequest { server }))
                .await,
        )
    }

    pub(crate) async fn watch(&self, me: &Caller, server: &str) -> Streaming<pb::Server> {
        let server = server.to_owned();
        let request = by(me, pb::WatchServerRequest { server });
        self.servers()
            .watch_server(request)
            .await
            .unwrap()
            .into_inner()
    }

    /// Waits until a server is in this state.
    pub(crate) async fn until(&self, me: &Caller, server: &str, state: ServerState) -> pb::Server {
        let mut last = None;
        let reached = wait_for(GENEROUS, &format!("{server} to be {state:?}"), async || {
            let now = self.get(me, server).await.unwrap();
            let reached = now.state() == state;
            last = Some(now.clone());
            reached.then_some(now)
        })
        .await;
        reached.unwrap_or_else(|error| panic!("{error}; it is {last:?}"))
    }

    /// The profile of this name as it stands now.
    pub(crate) async fn profile(&self, name: &str) -> pb::Profile {
        let profiles = self
            .catalog()
            .list_profiles(pb::ListProfilesRequest {})
            .await;
        let profiles = profiles.unwrap().into_inner().profiles;
        let found = profiles.iter().find(|profile| profile.name == name);
        found
            .cloned()
            .unwrap_or_else(|| panic!("no {name} in {profiles:?}"))
    }
}

/// Waits until the node runs a server.
pub(crate) async fn launched(peer: &PeerNode, server: &str) {
    wait_for(GENEROUS, "the launch to reach the node", async || {
        peer.state().workloads.contains_key(server).then_some(())
    })
    .await
    .unwrap();
}

/// Somebody who may use these projects.
pub(crate) fn person(n: u128, projects: &[&str]) -> Caller {
    Caller {
        user_id: UserId::from_ulid(Ulid(n)),
        user_name: format!("user-{n}"),
        team_id: TeamId::from_ulid(Ulid(n)),
        projects: projects
            .iter()
            .map(|project| project.parse().unwrap())
            .collect(),
    }
}

pub(crate) fn ada() -> Caller {
    person(1, &["ada/default", "ada/second"])
}

/// The request of the quickstart, under this name.
pub(crate) fn ask(name: &str) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        name: name.to_owned(),
        image: "pytorch:2.4-cuda12.4".to_owned(),
        profile: "h100-25pct".to_owned(),
        storage_bytes: 50_000_000_000,
        project: String::new(),
        install_heavy: false,
        gpus: None,
    }
}

/// A request on somebody's behalf.
pub(crate) fn by<T>(caller: &Caller, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let mut headers = std::mem::take(request.metadata_mut()).into_headers();
    caller.write_to(&mut headers);
    *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
    request
}

/// The same with an idempotency key.
pub(crate) fn keyed<T>(caller: &Caller, key: &str, message: T) -> Request<T> {
    let mut request = by(caller, message);
    request
        .metadata_mut()
        .insert(IDEMPOTENCY_KEY, key.parse().unwrap());
    request
}

pub(crate) fn done<T>(answer: Result<tonic::Response<T>, Status>) -> Result<T, Box<PublicError>> {
    match answer {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => Err(Box::new(PublicError::from_status(&status))),
    }
}

/// The blocks that a server holds.
pub(crate) fn blocks(server: &pb::Server) -> Blocks {
    let slice = &server.grant.as_ref().unwrap().slices[0];
    decode_blocks("blocks", &slice.blocks).unwrap()
}

pub(crate) fn fence(server: &pb::Server) -> u64 {
    server.grant.as_ref().unwrap().fence
}
