//! The two services that the gateway asks, scheduler-svc and billing-svc, answering from
//! memory on the real kit: whatever the gateway costs is the gateway's.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use async_trait::async_trait;
use cnlab_model::id::{ServerId, TeamId, Ulid, UserId};
use cnlab_proto::{
    billing::v1::{
        AuthenticateSessionRequest, AuthenticateTokenRequest, Identity, IssueOpenCodeRequest,
        IssueOpenCodeResponse, RedeemOpenCodeRequest, RedeemOpenCodeResponse, WhoAmIRequest,
        account_service_server::{AccountService, AccountServiceServer},
        credential_service_server::{CredentialService, CredentialServiceServer},
    },
    scheduler::v1::{
        RegisterNodeRequest, RegisterNodeResponse, RenewGrantsRequest, RenewGrantsResponse,
        ReportWorkloadRequest, ReportWorkloadResponse, ResolveRouteRequest, Route,
        roster_service_server::{RosterService, RosterServiceServer},
    },
};
use cnlab_service::{
    Caller, CommonConfig, ConfigFault, Running, Runtime, Secret, Service, ServiceConfig, StartError,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, service::Routes};

/// The one token that is valid.
pub(crate) const TOKEN: &str = "cnlab_bench_token_0123456789abcdefghijklmnopqrstuv";
/// The one session that is valid.
pub(crate) const SESSION: &str = "bench_session_0123456789abcdefghijklmnopqrstuvwx";
const PROJECT: &str = "ada/first";
const ELSEWHERE: &str = "the bench asks for routes and identities only";

/// The one server that there is.
pub(crate) fn server() -> ServerId {
    ServerId::from_ulid(Ulid(7))
}

/// The one account, which owns the server.
pub(crate) fn user() -> UserId {
    UserId::from_ulid(Ulid(8))
}

fn team() -> TeamId {
    TeamId::from_ulid(Ulid(9))
}

/// The account as the gateway names it to services.
pub(crate) fn caller() -> Result<Caller> {
    Ok(Caller {
        user_id: user(),
        user_name: "ada".to_owned(),
        team_id: team(),
        projects: vec![PROJECT.parse()?],
    })
}

fn identity() -> Identity {
    Identity {
        user_id: user().to_string(),
        user_name: "ada".to_owned(),
        team_id: team().to_string(),
        team_name: "engines".to_owned(),
        projects: vec![PROJECT.to_owned()],
        ..Identity::default()
    }
}

/// What the peers must know.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeersConfig {
    common: CommonConfig,
    /// Where the server's node is.
    node: String,
}

impl ServiceConfig for PeersConfig {
    fn validate(&self) -> Vec<ConfigFault> {
        self.common.validate()
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

/// Both services in one.
#[derive(Debug)]
pub(crate) struct Peers {
    node: String,
}

/// Starts the peers on a free port, in front of this node.
pub(crate) async fn start(key: &Secret, node: SocketAddr) -> Result<Running<Peers>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let config = PeersConfig {
        common: CommonConfig {
            internal_key: key.clone(),
            ..CommonConfig::default()
        },
        node: format!("http://{node}"),
    };
    Ok(cnlab_service::start(config, Runtime::system(), listener).await?)
}

#[async_trait]
impl Service for Peers {
    const NAME: &'static str = "bench-peers";
    const DEFAULT_PORT: u16 = 0;
    type Config = PeersConfig;

    async fn build(config: PeersConfig, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self { node: config.node }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::new(RosterServiceServer::from_arc(Arc::clone(self)))
            .add_service(CredentialServiceServer::from_arc(Arc::clone(self)))
            .add_service(AccountServiceServer::from_arc(Arc::clone(self)))
    }
}

#[async_trait]
impl RosterService for Peers {
    async fn resolve_route(
        &self,
        request: Request<ResolveRouteRequest>,
    ) -> Result<Response<Route>, Status> {
        let asked = request.into_inner().server_id;
        if asked != server().to_string() {
            return Err(Status::not_found(asked));
        }
        Ok(Response::new(Route {
            server_id: asked,
            server_name: "bench".to_owned(),
            owner_id: user().to_string(),
            project: PROJECT.to_owned(),
            node_endpoint: self.node.clone(),
            fence: 1,
            ready: true,
            state_text: String::new(),
        }))
    }

    async fn register_node(
        &self,
        _: Request<RegisterNodeRequest>,
    ) -> Result<Response<RegisterNodeResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    async fn renew_grants(
        &self,
        _: Request<RenewGrantsRequest>,
    ) -> Result<Response<RenewGrantsResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    async fn report_workload(
        &self,
        _: Request<ReportWorkloadRequest>,
    ) -> Result<Response<ReportWorkloadResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }
}

#[async_trait]
impl CredentialService for Peers {
    async fn authenticate_token(
        &self,
        request: Request<AuthenticateTokenRequest>,
    ) -> Result<Response<Identity>, Status> {
        if request.into_inner().token != TOKEN {
            return Err(Status::unauthenticated("another token"));
        }
        Ok(Response::new(identity()))
    }

    async fn authenticate_session(
        &self,
        request: Request<AuthenticateSessionRequest>,
    ) -> Result<Response<Identity>, Status> {
        let asked = request.into_inner();
        if asked.session != SESSION || asked.server_id != server().to_string() {
            return Err(Status::unauthenticated("another session"));
        }
        Ok(Response::new(identity()))
    }

    async fn issue_open_code(
        &self,
        _: Request<IssueOpenCodeRequest>,
    ) -> Result<Response<IssueOpenCodeResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    async fn redeem_open_code(
        &self,
        _: Request<RedeemOpenCodeRequest>,
    ) -> Result<Response<RedeemOpenCodeResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }
}

#[async_trait]
impl AccountService for Peers {
    async fn who_am_i(
        &self,
        request: Request<WhoAmIRequest>,
    ) -> Result<Response<Identity>, Status> {
        let caller = Caller::of(&request)?;
        Ok(Response::new(Identity {
            user_id: caller.user_id.to_string(),
            user_name: caller.user_name.clone(),
            team_id: caller.team_id.to_string(),
            ..identity()
        }))
    }
}
