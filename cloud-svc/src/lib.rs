//! Rents machines from public clouds when the site is full; it will own accounts, policies
//! and rentals.
//!
//! Its database, configuration, health and reflection are real; it has no method yet, since
//! a method that does not work is absent.
//!
//! **Invariant**: Credentials of a cloud are decrypted nowhere else.
#![warn(missing_docs)]

mod config;
mod store;

use std::sync::Arc;

use async_trait::async_trait;
use cnlab_db::Db;
use cnlab_proto::cloud::v1::cloud_service_server::{self, CloudService, CloudServiceServer};
use cnlab_service::{Runtime, Service, StartError};
use tonic::service::Routes;

pub use config::Config;

/// The port of the default configuration.
pub const PORT: u16 = 7104;

/// The service.
#[derive(Debug)]
pub struct Cloud {
    db: Db,
}

#[async_trait]
impl Service for Cloud {
    const NAME: &'static str = "cloud-svc";
    const DEFAULT_PORT: u16 = PORT;
    const SERVES: &'static [&'static str] = &[cloud_service_server::SERVICE_NAME];
    type Config = Config;

    async fn build(config: Config, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self {
            db: store::open(&config.database).await?,
        }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::new(CloudServiceServer::new(Api))
    }

    async fn migrate(config: &Config) -> Result<(), StartError> {
        store::open(&config.database).await?.close().await;
        Ok(())
    }

    async fn shutdown(&self) {
        self.db.close().await;
    }
}

/// The service's methods: none yet.
#[derive(Debug)]
struct Api;

impl CloudService for Api {}
