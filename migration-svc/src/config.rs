//! The configuration of migration-svc.

use cnlab_db::DatabaseConfig;
use cnlab_service::{CommonConfig, ConfigFault, ServiceConfig};
use serde::{Deserialize, Serialize};

use crate::PORT;

/// The configuration of migration-svc; `Default` is a working local value but for the internal key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What every service has.
    pub common: CommonConfig,
    /// Where the service keeps its state.
    pub database: DatabaseConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: CommonConfig::on_port(PORT),
            database: DatabaseConfig::sqlite("migration-svc.sqlite".as_ref()),
        }
    }
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = self.common.validate();
        if let Err(problem) = self.database.validate() {
            faults.push(ConfigFault::new("database.url", problem));
        }
        faults
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}
