//! The scheduler: decides every placement, and owns servers, runs, volumes, grants with their
//! fences, the node roster and the catalogues.
//!
//! ```text
//!  gateway ──▶ api ──▶ app ──▶ cell (one owner): scheduler-core's engine
//!  node-svc ─▶  │       │        │
//!               │       └────────┴─▶ store: one transaction = rows + grants + fences + outbox
//!               │                                     │       + answers
//!               └── watch ◀── changes                 ▼
//!                                    worker: outbox ──▶ node-svc, billing-svc
//!                                            leases, expiry ──▶ app (a run begins anew)
//! ```
//!
//! **Invariants**
//! - A slice belongs to whom the grant row says, under a fence that only ever grows; a lease
//!   is liveness and nothing else.
//! - Another service is told only what a transaction wrote into the outbox.
//! - Every decision is the core's; nothing here compares free blocks.

mod adapters;
mod api;
mod app;
mod cell;
mod config;
mod convert;
mod error;
mod metrics;
mod ports;
mod store;
mod worker;

use std::{io, sync::Arc};

use async_trait::async_trait;
use cnlab_db::Db;
use cnlab_lease::{EmbeddedStore, LeaseStore, RedisOptions, RedisStore};
use cnlab_proto::scheduler::v1::{
    catalog_service_server::{self, CatalogServiceServer},
    node_service_server::{self, NodeServiceServer},
    queue_service_server::{self, QueueServiceServer},
    roster_service_server::{self, RosterServiceServer},
    run_service_server::{self, RunServiceServer},
    server_service_server::{self, ServerServiceServer},
};
use cnlab_service::{
    GrpcStack, Runtime, Service, StartError, Wake, Worker,
    net::{self, Limits},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use adapters::{billing_grpc::GrpcBilling, node_grpc::GrpcNodes};
use app::{App, Parts, catalog::Catalogue};
pub use config::{
    CatalogConfig, Config, CountLimit, GpuLimit, GrantConfig, LeaseConfig, LeaseStoreKind,
    NotebookConfig, QuotaConfig, Scheme, TeamConfig, UpstreamConfig,
};
use worker::dispatch::Dispatcher;

/// The service.
#[derive(Debug)]
pub struct Scheduler {
    app: Arc<App>,
    dispatcher: Arc<Dispatcher>,
}

#[async_trait]
impl Service for Scheduler {
    const NAME: &'static str = "scheduler-svc";
    const DEFAULT_PORT: u16 = config::PORT;
    const SERVES: &'static [&'static str] = &[
        server_service_server::SERVICE_NAME,
        run_service_server::SERVICE_NAME,
        catalog_service_server::SERVICE_NAME,
        node_service_server::SERVICE_NAME,
        queue_service_server::SERVICE_NAME,
        roster_service_server::SERVICE_NAME,
    ];
    type Config = Config;

    async fn build(config: Config, runtime: Runtime) -> Result<Arc<Self>, StartError> {
        let catalogue = Catalogue::load(&config.catalog)?;
        let db = Db::connect(&config.database)
            .await
            .map_err(|error| StartError::from_fault(&error))?;
        // Several processes may do so at once: the migrations take a lock.
        cnlab_db::migrate::<store::Migrations>(&db)
            .await
            .map_err(|error| StartError::from_fault(&error))?;
        let key = &config.common.internal_key;
        let app = Arc::new(App::new(Parts {
            db,
            leases: leases(&config.lease, &runtime)?,
            nodes: Arc::new(GrpcNodes::new(key.clone())),
            billing: Arc::new(GrpcBilling::new(&config.billing.endpoint, key)?),
            catalogue,
            notebook: config.notebook,
            grants: config.grants,
            teams: cell::Teams::new(&config.quota),
            runtime,
        }));
        let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&app)));
        Ok(Arc::new(Self { app, dispatcher }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        let app = || Arc::clone(&self.app);
        Routes::new(ServerServiceServer::new(api::server::ServerApi(app())))
            .add_service(RunServiceServer::new(api::run::RunApi(app())))
            .add_service(CatalogServiceServer::new(api::catalog::CatalogApi(app())))
            .add_service(NodeServiceServer::new(api::node::NodeApi(app())))
            .add_service(QueueServiceServer::new(api::queue::QueueApi(app())))
            .add_service(RosterServiceServer::new(api::roster::RosterApi(app())))
    }

    fn ready(&self) -> Option<watch::Receiver<bool>> {
        Some(self.app.cell.ready())
    }

    fn workers(self: &Arc<Self>) -> Vec<Worker> {
        let dispatcher = Arc::clone(&self.dispatcher);
        let outbox = Worker::new("outbox", dispatcher.wake(), move || {
            let dispatcher = Arc::clone(&dispatcher);
            async move { dispatcher.tick().await }
        });
        let owner = Arc::new(cell::Owner::new(Arc::clone(&self.app)));
        let cell = Worker::new("cell", Wake::new(), move || {
            let owner = Arc::clone(&owner);
            async move { owner.tick().await }
        });
        let app = Arc::clone(&self.app);
        let purge = Worker::new("purge", Wake::new(), move || {
            let app = Arc::clone(&app);
            async move { worker::purge::tick(&app).await }
        });
        let app = Arc::clone(&self.app);
        let gauges = Worker::new("gauges", Wake::new(), move || {
            let app = Arc::clone(&app);
            async move { worker::gauges::tick(&app).await }
        });
        let leases = Arc::new(worker::leases::Leases::new(Arc::clone(&self.app)));
        let leases = Worker::new("leases", Wake::new(), move || {
            let leases = Arc::clone(&leases);
            async move { leases.tick().await }
        });
        let expiry = Arc::new(worker::expiry::Expiry::new(Arc::clone(&self.app)));
        let expiry = Worker::new("expiry", Wake::new(), move || {
            let expiry = Arc::clone(&expiry);
            async move { expiry.tick().await }
        });
        vec![cell, outbox, purge, gauges, leases, expiry]
    }

    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        grpc: GrpcStack,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let (app, stopped) = (Arc::clone(&self.app), stop.clone());
        self.app.runtime.tasks.spawn("closing", async move {
            stopped.cancelled().await;
            app.closing.cancel();
        });
        net::serve(listener, grpc, Limits::internal(), stop).await
    }

    async fn migrate(config: &Config) -> Result<(), StartError> {
        let db = Db::connect(&config.database)
            .await
            .map_err(|error| StartError::from_fault(&error))?;
        let applied = cnlab_db::migrate::<store::Migrations>(&db)
            .await
            .map_err(|error| StartError::from_fault(&error))?;
        tracing::info!(?applied, "database is up to date");
        db.close().await;
        Ok(())
    }
}

fn leases(config: &LeaseConfig, runtime: &Runtime) -> Result<Arc<dyn LeaseStore>, StartError> {
    Ok(match config.store {
        LeaseStoreKind::Embedded => Arc::new(EmbeddedStore::new(runtime.ids.ulid().to_string())),
        LeaseStoreKind::Redis => {
            let url = config.url.expose();
            let store = RedisStore::new(url, &config.space, RedisOptions::default());
            Arc::new(store.map_err(|error| StartError::from_fault(&error))?)
        }
    })
}
