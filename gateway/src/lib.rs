//! The front door of CNLab: HTTP API, command line gRPC and notebook proxy on one port.
//!
//! ```text
//!             Host: srv-….nb.<domain> ──────────▶ notebook   ─▶ node-svc (HTTP/1.1, WebSocket)
//! listener ─▶ admit ─▶ stack ─┬─ application/grpc ─▶ passthrough ─▶ scheduler-svc, billing-svc
//!  (limits)                   ├─ /v1/…            ─▶ transcode   ─▶ scheduler-svc, billing-svc
//!                             └─ /, /srv_…        ─▶ front
//! ```
//!
//! **Invariants**
//! - It keeps nothing: a second gateway, or the same one after a restart, answers the same.
//! - No byte of a server reaches anybody but its owner; no session or token of CNLab's
//!   reaches a notebook.
//! - What is not marked public in the protos does not exist for the outside.

pub mod adapters;
pub mod auth;
pub mod body;
pub mod cache;
pub mod config;
pub mod cores;
pub mod error;
pub mod front;
pub mod http_types;
pub mod layers;
pub mod listener;
mod metrics;
pub mod notebook;
pub mod page;
pub mod passthrough;
pub mod ports;
pub mod route;
pub mod stack;
pub mod transcode;
pub mod upstream;

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use cnlab_proto::{billing::v1 as billing, scheduler::v1 as scheduler};
use cnlab_service::{GrpcStack, Runtime, Service, StartError, Wake, Worker};
use http::HeaderValue;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;

pub use config::{Config, Threads};

use crate::{
    adapters::{
        authenticator_billing::BillingAuthenticator, routes_scheduler::SchedulerRoutes,
        sessions_billing::BillingSessions,
    },
    auth::Tokens,
    cores::Cores,
    front::Front,
    layers::{
        admit::{Admission, Hosts},
        shed::ShedLayer,
    },
    listener::Seat,
    metrics::Metrics,
    notebook::{
        Notebooks, pool::Pools, routes::RouteTable, sessions::SessionTable, tunnel::Tunnels,
    },
    route::{Ends, Route},
    stack::{FrontDoor, Parts, Stack},
    transcode::{openapi, table::Table},
    upstream::{Upstream, Upstreams},
};

/// Longer than the stack's own deadline, which answers in better words.
const BEHIND_THE_DEADLINE: Duration = Duration::from_secs(5);

/// The gateway.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    runtime: Runtime,
    admission: Arc<Admission>,
    parts: Parts,
    shared: Shared,
    /// Connections and WebSockets.
    open: TaskTracker,
    drained: CancellationToken,
    metrics: Arc<Metrics>,
}

/// What all threads use, however many there are.
#[derive(Debug)]
struct Shared {
    table: Arc<Table>,
    openapi: bytes::Bytes,
    hosts: Hosts,
    routes: Arc<RouteTable>,
    sessions: Arc<SessionTable>,
    key: HeaderValue,
}

#[async_trait]
impl Service for Gateway {
    const NAME: &'static str = "gateway";
    const DEFAULT_PORT: u16 = config::DEFAULT_PORT;
    /// Those that it passes on.
    const SERVES: &'static [&'static str] = &[
        billing::account_service_server::SERVICE_NAME,
        billing::usage_service_server::SERVICE_NAME,
        scheduler::catalog_service_server::SERVICE_NAME,
        scheduler::node_service_server::SERVICE_NAME,
        scheduler::queue_service_server::SERVICE_NAME,
        scheduler::run_service_server::SERVICE_NAME,
        scheduler::server_service_server::SERVICE_NAME,
    ];
    type Config = Config;

    async fn build(config: Config, runtime: Runtime) -> Result<Arc<Self>, StartError> {
        let table = Table::from_descriptors(cnlab_proto::DESCRIPTOR_SET)
            .map_err(|error| StartError::new("the protos make no HTTP API").caused_by(error))?;
        let openapi = openapi::document(&table);
        let mut key =
            HeaderValue::try_from(config.common.internal_key.expose()).map_err(|error| {
                StartError::new("the internal key holds characters other than ASCII")
                    .caused_by(error)
            })?;
        key.set_sensitive(true);

        let tasks = &runtime.tasks;
        let upstreams = upstreams(&config)?;
        let (scheduler, billing) = (
            upstreams.channel(Upstream::Scheduler),
            upstreams.channel(Upstream::Billing),
        );
        let shared = Shared {
            table: Arc::new(table),
            openapi: openapi.into(),
            hosts: Hosts::new(&config.notebook.domain),
            routes: RouteTable::new(Arc::new(SchedulerRoutes::new(scheduler)), tasks.clone()),
            sessions: SessionTable::new(
                Arc::new(BillingSessions::new(billing.clone())),
                tasks.clone(),
            ),
            key,
        };
        let parts = Parts {
            shed: ShedLayer::new(config.limits.api_requests, config.limits.notebook_requests),
            deadline: config.limits.deadline.0,
            body_bytes: config.limits.api_body_bytes,
            tokens: Tokens::new(Arc::new(BillingAuthenticator::new(billing)), tasks.clone()),
            ids: Arc::clone(&runtime.ids),
        };
        let (open, drained) = (TaskTracker::new(), CancellationToken::new());
        let metrics = Metrics::new(&parts.shed, open.clone());
        let admission = Arc::new(Admission {
            hosts: shared.hosts.clone(),
            head_bytes: usize::try_from(config.limits.header_bytes).unwrap_or(usize::MAX),
            body_idle: config.limits.body_idle.0,
        });
        Ok(Arc::new(Self {
            config,
            runtime,
            admission,
            parts,
            shared,
            metrics: Arc::new(metrics),
            open,
            drained,
        }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        // Public methods are passed on by name; the kit adds health and reflection.
        Routes::default()
    }

    fn workers(self: &Arc<Self>) -> Vec<Worker> {
        let metrics = Arc::clone(&self.metrics);
        vec![Worker::new("metrics", Wake::new(), move || {
            std::future::ready(metrics.tick())
        })]
    }

    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        grpc: GrpcStack,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let stack = || self.stack(&grpc).map_err(io::Error::other);
        let cores = match self.config.threads {
            Threads::Own => Some(Cores::start(stack)?),
            Threads::Shared => None,
        };
        let shared = stack()?;
        let seat = |peer: std::net::SocketAddr| {
            let core = cores.as_ref().and_then(Cores::least);
            let (on, stack, held) = core.map_or((None, &shared, None), |(on, stack, held)| {
                (Some(on.clone()), stack, Some(held))
            });
            let admission = Arc::clone(&self.admission);
            let service = FrontDoor::new(admission, stack.clone(), peer.ip());
            Seat { on, service, held }
        };
        let served = listener::serve(
            listener,
            seat,
            self.config.limits.listener(),
            self.runtime.tasks.clone(),
            stop,
            self.open.clone(),
            self.drained.clone(),
        )
        .await;
        if let Some(cores) = cores {
            cores.stop().await;
        }
        served
    }
}

impl Gateway {
    /// The stack with connections of its own to whatever is behind, in the present runtime.
    fn stack(&self, own: &GrpcStack) -> Result<Stack, StartError> {
        let upstreams = upstreams(&self.config)?;
        let (shared, tasks) = (&self.shared, &self.runtime.tasks);
        let scheme = self.config.notebook.scheme.as_str();
        let notebooks = Notebooks::new(
            Arc::clone(&shared.routes),
            Pools::new(tasks.clone()),
            Arc::clone(&shared.sessions),
            Tunnels::new(
                Arc::clone(&shared.sessions),
                self.config.limits.session_unchecked.0,
                self.open.clone(),
                self.drained.clone(),
                tasks.clone(),
            ),
            Arc::clone(&self.runtime.clock),
            HeaderValue::from_static(scheme),
            shared.key.clone(),
        );
        let ends = Ends {
            table: Arc::clone(&shared.table),
            notebooks: Arc::new(notebooks),
            front: Arc::new(Front::new(shared.hosts.clone(), scheme, upstreams.clone())),
            upstreams,
            openapi: shared.openapi.clone(),
            own: own.clone(),
        };
        Ok(stack::build(self.parts.clone(), Route(Arc::new(ends))))
    }
}

/// Channels to the services behind, in the present runtime.
fn upstreams(config: &Config) -> Result<Upstreams, StartError> {
    Upstreams::connect(
        &config.scheduler,
        &config.billing,
        &config.common.internal_key,
        config.limits.deadline.0 + BEHIND_THE_DEADLINE,
    )
}
