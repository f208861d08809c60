//! What can be set, and what holds when nothing is.

use std::path::PathBuf;

use billing_core::AccountName;
use cnlab_db::DatabaseConfig;
use cnlab_model::ProjectName;
use cnlab_service::{CommonConfig, ConfigFault, ServiceConfig};
use serde::{Deserialize, Serialize};

/// The port of the default configuration.
pub const PORT: u16 = 7105;

/// Configuration of billing-svc.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What every service needs.
    pub common: CommonConfig,
    /// Where accounts and usage are recorded.
    pub database: DatabaseConfig,
    /// The first account.
    pub bootstrap: BootstrapConfig,
}

/// The account that exists before anybody can make one.
///
/// With a `token_file`, every start makes sure that the account is there and that the token in
/// the file works: a file that is lost is written anew, and after the loss of the database the
/// same file is valid again. Without one nothing is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BootstrapConfig {
    /// Name of the user.
    pub admin_user: String,
    /// Name of the user's team.
    pub team: String,
    /// The user's project, `<owner>/<slug>`.
    pub project: String,
    /// Where the user's token is kept, readable by its owner only. Its folder must exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: CommonConfig::on_port(PORT),
            database: DatabaseConfig {
                url: "sqlite://billing-svc.sqlite?mode=rwc".to_owned(),
            },
            bootstrap: BootstrapConfig::default(),
        }
    }
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        Self {
            admin_user: "admin".to_owned(),
            team: "local".to_owned(),
            project: "local/default".to_owned(),
            token_file: None,
        }
    }
}

/// The names of the first account, understood.
pub(crate) struct BootstrapNames {
    pub(crate) user: AccountName,
    pub(crate) team: AccountName,
    pub(crate) project: ProjectName,
}

impl BootstrapConfig {
    /// The names, or every fault.
    pub(crate) fn names(&self) -> Result<BootstrapNames, Vec<ConfigFault>> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, problem: String| faults.push(ConfigFault::new(key, problem));
        let user = self.admin_user.parse();
        let team = self.team.parse();
        let project = self.project.parse();
        if let Err(error) = &user {
            let error: &cnlab_model::name::NameError = error;
            fault("bootstrap.admin_user", error.to_string());
        }
        if let Err(error) = &team {
            let error: &cnlab_model::name::NameError = error;
            fault("bootstrap.team", error.to_string());
        }
        if let Err(error) = &project {
            let error: &cnlab_model::name::NameError = error;
            fault("bootstrap.project", error.to_string());
        }
        match (user, team, project) {
            (Ok(user), Ok(team), Ok(project)) => Ok(BootstrapNames {
                user,
                team,
                project,
            }),
            _ => Err(faults),
        }
    }
}

impl ServiceConfig for Config {
    fn validate(&self) -> Vec<ConfigFault> {
        let mut faults = self.common.validate();
        if let Err(problem) = self.database.validate() {
            faults.push(ConfigFault::new("database.url", problem));
        }
        if let Err(more) = self.bootstrap.names() {
            faults.extend(more);
        }
        if self
            .bootstrap
            .token_file
            .as_ref()
            .is_some_and(|file| file.file_name().is_none())
        {
            faults.push(ConfigFault::new(
                "bootstrap.token_file",
                "is no path of a file",
            ));
        }
        faults
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_told() {
        let config = Config {
            database: DatabaseConfig {
                url: "mysql://x".to_owned(),
            },
            bootstrap: BootstrapConfig {
                admin_user: "Ada Lovelace".to_owned(),
                team: String::new(),
                project: "default".to_owned(),
                token_file: Some(PathBuf::from("/")),
            },
            ..Config::default()
        };
        let keys: Vec<String> = config
            .validate()
            .into_iter()
            .map(|fault| fault.key)
            .collect();
        assert_eq!(
            keys,
            [
                "common.internal_key",
                "database.url",
                "bootstrap.admin_user",
                "bootstrap.team",
                "bootstrap.project",
                "bootstrap.token_file"
            ]
        );
    }
}
