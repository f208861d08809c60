//! Coordinates live migrations: it will keep their journal and drive both nodes; pages go
//! straight from node to node.
//!
//! Its database, configuration, health and reflection are real; it has no method yet, since
//! a method that does not work is absent.
//!
//! **Invariant**: No page of memory ever passes through this service.
#![warn(missing_docs)]

mod config;
mod store;

use std::sync::Arc;

use async_trait::async_trait;
use cnlab_db::Db;
use cnlab_proto::migration::v1::migration_service_server::{
    self, MigrationService, MigrationServiceServer,
};
use cnlab_service::{Runtime, Service, StartError};
use tonic::service::Routes;

pub use config::Config;

/// The port of the default configuration.
pub const PORT: u16 = 7103;

/// The service.
#[derive(Debug)]
pub struct Migration {
    db: Db,
}

#[async_trait]
impl Service for Migration {
    const NAME: &'static str = "migration-svc";
    const DEFAULT_PORT: u16 = PORT;
    const SERVES: &'static [&'static str] = &[migration_service_server::SERVICE_NAME];
    type Config = Config;

    async fn build(config: Config, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self {
            db: store::open(&config.database).await?,
        }))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::new(MigrationServiceServer::new(Api))
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

impl MigrationService for Api {}
