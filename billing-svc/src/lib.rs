//! Knows who somebody is, and meters what they hold.
//!
//! ```text
//!  gateway ── AuthenticateToken, RedeemOpenCode, AuthenticateSession ─┐
//!  users ──── WhoAmI, ListUsage ──────────────────────────────────────┼▶ api ▶ app ▶ store
//!  scheduler ─ IssueOpenCode, OpenUsage, CloseUsage ──────────────────┘        │
//!                                                                             ▼
//!                                                  billing-core: token, meter, policy
//! ```
//!
//! **Invariants**
//! - Of every credential only its SHA-256 is stored; with 256 random bits in it, nothing
//!   slower is needed.
//! - An open code is redeemed at most once, by one conditional update.
//! - An interval is opened and closed at most once per grant, however often it is asked for.
#![warn(missing_docs)]

mod adapters;
mod api;
mod app;
mod config;
mod convert;
mod error;
mod store;
mod worker;

use std::sync::Arc;

use async_trait::async_trait;
use cnlab_proto::billing::v1::{
    account_service_server::{self, AccountServiceServer},
    credential_service_server::{self, CredentialServiceServer},
    meter_service_server::{self, MeterServiceServer},
    usage_service_server::{self, UsageServiceServer},
};
use cnlab_service::{Runtime, Service, StartError, Wake, Worker};
use tonic::service::Routes;

use crate::{api::Api, app::App};

pub use config::{BootstrapConfig, Config, PORT};

/// The service.
#[derive(Debug)]
pub struct Billing {
    app: Arc<App>,
    runtime: Runtime,
}

#[async_trait]
impl Service for Billing {
    const NAME: &'static str = "billing-svc";
    const DEFAULT_PORT: u16 = PORT;
    const SERVES: &'static [&'static str] = &[
        account_service_server::SERVICE_NAME,
        credential_service_server::SERVICE_NAME,
        usage_service_server::SERVICE_NAME,
        meter_service_server::SERVICE_NAME,
    ];
    type Config = Config;

    async fn build(config: Config, runtime: Runtime) -> Result<Arc<Self>, StartError> {
        let db = store::open(&config.database).await?;
        let app = Arc::new(App::new(db, &runtime));
        app.bootstrap(&config.bootstrap).await?;
        Ok(Arc::new(Self { app, runtime }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        let api = Arc::new(Api::new(Arc::clone(&self.app), self.runtime.tasks.clone()));
        Routes::new(AccountServiceServer::from_arc(Arc::clone(&api)))
            .add_service(CredentialServiceServer::from_arc(Arc::clone(&api)))
            .add_service(UsageServiceServer::from_arc(Arc::clone(&api)))
            .add_service(MeterServiceServer::from_arc(api))
    }

    fn workers(self: &Arc<Self>) -> Vec<Worker> {
        let app = Arc::clone(&self.app);
        vec![Worker::new("purge", Wake::new(), move || {
            let app = Arc::clone(&app);
            async move { worker::purge(&app).await }
        })]
    }

    async fn migrate(config: &Config) -> Result<(), StartError> {
        store::open(&config.database).await?.close().await;
        Ok(())
    }

    async fn shutdown(&self) {
        self.app.close().await;
    }
}
