//! The services behind the gateway, with as much memory as the tests look into.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use cnlab_model::id::{ServerId, TeamId, Ulid, UserId};
use cnlab_proto::{
    billing::v1::{
        self as billing, account_service_server::AccountServiceServer,
        credential_service_server::CredentialServiceServer,
    },
    scheduler::v1::{
        self as scheduler, catalog_service_server::CatalogServiceServer,
        roster_service_server::RosterServiceServer, server_service_server::ServerServiceServer,
    },
};
use cnlab_service::{
    Caller, CommonConfig, ConfigFault, Runtime, Service, ServiceConfig, StartError,
};
use serde::{Deserialize, Serialize};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, service::Routes};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PeerConfig {
    pub(crate) common: CommonConfig,
}

impl ServiceConfig for PeerConfig {
    fn validate(&self) -> Vec<ConfigFault> {
        self.common.validate()
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

/// Accounts are known by a number.
pub(crate) fn user(number: u128) -> UserId {
    UserId::from_ulid(Ulid(number))
}

pub(crate) fn server(number: u128) -> ServerId {
    ServerId::from_ulid(Ulid(number))
}

fn identity(number: u128) -> billing::Identity {
    billing::Identity {
        user_id: user(number).to_string(),
        user_name: format!("user{number}"),
        team_id: TeamId::from_ulid(Ulid(number)).to_string(),
        team_name: "team".to_owned(),
        projects: vec![format!("user{number}/default")],
        ..Default::default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct BillingState {
    /// Token to account.
    pub(crate) tokens: HashMap<String, u128>,
    /// Code to account and server.
    pub(crate) codes: HashMap<String, (u128, ServerId)>,
    /// Session to account and server.
    pub(crate) sessions: HashMap<String, (u128, ServerId)>,
    pub(crate) token_questions: usize,
    pub(crate) session_questions: usize,
}

#[derive(Debug)]
pub(crate) struct BillingPeer(pub(crate) Mutex<BillingState>);

#[async_trait]
impl Service for BillingPeer {
    const NAME: &'static str = "billing-svc";
    const DEFAULT_PORT: u16 = 7105;
    type Config = PeerConfig;

    async fn build(_: PeerConfig, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self(Mutex::default())))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::default()
            .add_service(AccountServiceServer::from_arc(Arc::clone(self)))
            .add_service(CredentialServiceServer::from_arc(Arc::clone(self)))
    }
}

#[async_trait]
impl billing::account_service_server::AccountService for BillingPeer {
    async fn who_am_i(
        &self,
        request: Request<billing::WhoAmIRequest>,
    ) -> Result<Response<billing::Identity>, Status> {
        let caller = Caller::of(&request)?;
        Ok(Response::new(identity(caller.user_id.ulid().0)))
    }
}

fn refused() -> Status {
    Status::unauthenticated("not known")
}

#[async_trait]
impl billing::credential_service_server::CredentialService for BillingPeer {
    async fn authenticate_token(
        &self,
        request: Request<billing::AuthenticateTokenRequest>,
    ) -> Result<Response<billing::Identity>, Status> {
        let mut state = self.0.lock().unwrap();
        state.token_questions += 1;
        let number = *state
            .tokens
            .get(&request.get_ref().token)
            .ok_or_else(refused)?;
        Ok(Response::new(identity(number)))
    }

    async fn issue_open_code(
        &self,
        _: Request<billing::IssueOpenCodeRequest>,
    ) -> Result<Response<billing::IssueOpenCodeResponse>, Status> {
        Err(Status::unimplemented(
            "the tests write codes into the state",
        ))
    }

    async fn redeem_open_code(
        &self,
        request: Request<billing::RedeemOpenCodeRequest>,
    ) -> Result<Response<billing::RedeemOpenCodeResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let (number, server) = state
            .codes
            .get(&request.code)
            .copied()
            .ok_or_else(refused)?;
        if server.to_string() != request.server_id {
            return Err(refused());
        }
        state.codes.remove(&request.code);
        let session = format!("session-of-{}", request.code);
        state.sessions.insert(session.clone(), (number, server));
        Ok(Response::new(billing::RedeemOpenCodeResponse {
            session,
            expires_at: None,
        }))
    }

    async fn authenticate_session(
        &self,
        request: Request<billing::AuthenticateSessionRequest>,
    ) -> Result<Response<billing::Identity>, Status> {
        let request = request.into_inner();
        let mut state = self.0.lock().unwrap();
        state.session_questions += 1;
        let (number, server) = state
            .sessions
            .get(&request.session)
            .copied()
            .ok_or_else(refused)?;
        if server.to_string() != request.server_id {
            return Err(refused());
        }
        Ok(Response::new(identity(number)))
    }
}

/// What a call brought along.
pub(crate) type Metadata = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(crate) struct SchedulerState {
    pub(crate) routes: HashMap<ServerId, scheduler::Route>,
    pub(crate) created: Vec<(scheduler::CreateServerRequest, Metadata)>,
    pub(crate) calls: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct SchedulerPeer(pub(crate) Mutex<SchedulerState>);

impl SchedulerPeer {
    fn note<T>(&self, what: &str, request: &Request<T>) -> Result<UserId, Status> {
        self.0.lock().unwrap().calls.push(what.to_owned());
        Ok(Caller::of(request)?.user_id)
    }
}

#[async_trait]
impl Service for SchedulerPeer {
    const NAME: &'static str = "scheduler-svc";
    const DEFAULT_PORT: u16 = 7101;
    type Config = PeerConfig;

    async fn build(_: PeerConfig, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self(Mutex::default())))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::default()
            .add_service(ServerServiceServer::from_arc(Arc::clone(self)))
            .add_service(CatalogServiceServer::from_arc(Arc::clone(self)))
            .add_service(RosterServiceServer::from_arc(Arc::clone(self)))
    }
}

fn named(name: &str, owner: UserId) -> scheduler::Server {
    scheduler::Server {
        id: server(7).to_string(),
        name: name.to_owned(),
        owner_id: owner.to_string(),
        state: scheduler::ServerState::Ready.into(),
        storage_bytes: 50 << 30,
        ..Default::default()
    }
}

type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl scheduler::server_service_server::ServerService for SchedulerPeer {
    async fn create_server(
        &self,
        request: Request<scheduler::CreateServerRequest>,
    ) -> Result<Response<scheduler::Server>, Status> {
        let owner = self.note("CreateServer", &request)?;
        let metadata = request
            .metadata()
            .as_ref()
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    value.to_str().unwrap_or_default().to_owned(),
                )
            })
            .collect();
        let request = request.into_inner();
        if request.storage_bytes == 0 {
            let error =
                cnlab_proto::convert::FieldError::new("storage_bytes", "must be more than nothing");
            return Err(cnlab_service::status::invalid_field(&error));
        }
        let made = named(&request.name, owner);
        self.0.lock().unwrap().created.push((request, metadata));
        Ok(Response::new(made))
    }

    async fn get_server(
        &self,
        request: Request<scheduler::GetServerRequest>,
    ) -> Result<Response<scheduler::Server>, Status> {
        let owner = self.note("GetServer", &request)?;
        match request.get_ref().server.as_str() {
            "slow" => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                Err(Status::internal("never"))
            }
            "broken" => Err(Status::unknown("secret words of a library")),
            "missing" => Err(cnlab_service::status::plain(
                cnlab_model::ErrorKind::NotFound,
                "SERVER_NOT_FOUND",
                "there is no server \"missing\"",
                Some("list them with cnlab server list"),
            )),
            name => Ok(Response::new(named(name, owner))),
        }
    }

    async fn list_servers(
        &self,
        request: Request<scheduler::ListServersRequest>,
    ) -> Result<Response<scheduler::ListServersResponse>, Status> {
        self.note("ListServers", &request)?;
        let next_page_token = format!(
            "{}/{}",
            request.get_ref().project,
            request.get_ref().page_size
        );
        Ok(Response::new(scheduler::ListServersResponse {
            servers: vec![],
            next_page_token,
        }))
    }

    async fn start_server(
        &self,
        request: Request<scheduler::StartServerRequest>,
    ) -> Result<Response<scheduler::Server>, Status> {
        let owner = self.note("StartServer", &request)?;
        Ok(Response::new(named(&request.get_ref().server, owner)))
    }

    async fn stop_server(
        &self,
        request: Request<scheduler::StopServerRequest>,
    ) -> Result<Response<scheduler::Server>, Status> {
        let owner = self.note("StopServer", &request)?;
        Ok(Response::new(named(&request.get_ref().server, owner)))
    }

    async fn delete_server(
        &self,
        request: Request<scheduler::DeleteServerRequest>,
    ) -> Result<Response<scheduler::Server>, Status> {
        let owner = self.note("DeleteServer", &request)?;
        Ok(Response::new(named(&request.get_ref().server, owner)))
    }

    type WatchServerStream = Items<scheduler::Server>;

    async fn watch_server(
        &self,
        request: Request<scheduler::WatchServerRequest>,
    ) -> Result<Response<Self::WatchServerStream>, Status> {
        let owner = self.note("WatchServer", &request)?;
        let name = request.into_inner().server;
        let first = tokio_stream::iter([Ok(named(&name, owner)), Ok(named("second", owner))]);
        let stream: Items<_> = match name.as_str() {
            "forever" => Box::pin(first.chain(tokio_stream::pending())),
            "failing" => Box::pin(first.chain(tokio_stream::once(Err(
                cnlab_service::status::plain(
                    cnlab_model::ErrorKind::Unavailable,
                    "NODE_LOST",
                    "the node is away",
                    None,
                ),
            )))),
            _ => Box::pin(first),
        };
        Ok(Response::new(stream))
    }

    async fn open_server(
        &self,
        request: Request<scheduler::OpenServerRequest>,
    ) -> Result<Response<scheduler::OpenServerResponse>, Status> {
        self.note("OpenServer", &request)?;
        Ok(Response::new(scheduler::OpenServerResponse::default()))
    }

    type GetServerLogsStream = Items<scheduler::LogChunk>;

    async fn get_server_logs(
        &self,
        request: Request<scheduler::GetServerLogsRequest>,
    ) -> Result<Response<Self::GetServerLogsStream>, Status> {
        self.note("GetServerLogs", &request)?;
        let request = request.into_inner();
        let text = format!(
            "{} {} {}\n",
            request.server, request.follow, request.tail_lines
        );
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(
            scheduler::LogChunk { text },
        )))))
    }
}

#[async_trait]
impl scheduler::catalog_service_server::CatalogService for SchedulerPeer {
    async fn list_profiles(
        &self,
        request: Request<scheduler::ListProfilesRequest>,
    ) -> Result<Response<scheduler::ListProfilesResponse>, Status> {
        self.note("ListProfiles", &request)?;
        Ok(Response::new(scheduler::ListProfilesResponse::default()))
    }

    async fn list_images(
        &self,
        request: Request<scheduler::ListImagesRequest>,
    ) -> Result<Response<scheduler::ListImagesResponse>, Status> {
        self.note("ListImages", &request)?;
        Ok(Response::new(scheduler::ListImagesResponse::default()))
    }
}

#[async_trait]
impl scheduler::roster_service_server::RosterService for SchedulerPeer {
    async fn register_node(
        &self,
        _: Request<scheduler::RegisterNodeRequest>,
    ) -> Result<Response<scheduler::RegisterNodeResponse>, Status> {
        Err(Status::unimplemented("no node registers in these tests"))
    }

    async fn renew_grants(
        &self,
        _: Request<scheduler::RenewGrantsRequest>,
    ) -> Result<Response<scheduler::RenewGrantsResponse>, Status> {
        Err(Status::unimplemented("no node renews in these tests"))
    }

    async fn report_workload(
        &self,
        _: Request<scheduler::ReportWorkloadRequest>,
    ) -> Result<Response<scheduler::ReportWorkloadResponse>, Status> {
        Err(Status::unimplemented("no node reports in these tests"))
    }

    async fn resolve_route(
        &self,
        request: Request<scheduler::ResolveRouteRequest>,
    ) -> Result<Response<scheduler::Route>, Status> {
        let state = self.0.lock().unwrap();
        let server: ServerId = request
            .get_ref()
            .server_id
            .parse()
            .map_err(|_| Status::invalid_argument("no id"))?;
        state
            .routes
            .get(&server)
            .cloned()
            .map(Response::new)
            .ok_or_else(|| Status::not_found("no such server"))
    }
}
