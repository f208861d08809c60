//! Makes the first account, and keeps its token file and the database in agreement.
//!
//! **Invariant**: the file is written before the database knows its token, so a start that is
//! cut off anywhere is finished by the next one.

use billing_core::token::{Kind, Token};
use cnlab_model::id::{ProjectId, TeamId, TokenId, Ulid, UserId};
use cnlab_service::StartError;
use sha2::{Digest, Sha256};

use super::{App, credential::hash};
use crate::{
    adapters::token_file,
    config::{BootstrapConfig, BootstrapNames},
    error::Error,
    store::{account, credential},
};

impl App {
    /// Does what [`BootstrapConfig`] says.
    pub(crate) async fn bootstrap(&self, config: &BootstrapConfig) -> Result<(), StartError> {
        let Some(file) = config.token_file.clone() else {
            return Ok(());
        };
        let names = config.names().map_err(|faults| {
            let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
            StartError::new("the first account cannot be made").caused_by(texts.join("; "))
        })?;
        let fresh = Token::from_random(Kind::User, &self.ids.secret());
        let token = tokio::task::spawn_blocking(move || token_file::read_or_write(&file, fresh))
            .await
            .map_err(|error| {
                StartError::new("reading the token file broke off").caused_by(error)
            })??;
        self.ensure_admin(&names, &token)
            .await
            .map_err(|error| StartError::from_fault(&error))
    }

    async fn ensure_admin(&self, names: &BootstrapNames, token: &Token) -> Result<(), Error> {
        let (hash, now) = (&hash(token), self.now());
        let token_id = TokenId::from_ulid(self.ids.ulid());
        self.db
            .write(|tx| async move {
                let BootstrapNames {
                    user,
                    team,
                    project,
                } = names;
                // Ids follow from the names: after the loss of this database the admin is still
                // the owner of what other services have recorded.
                let team_id = TeamId::from_ulid(derived("team", team.as_str()));
                let team_id = account::ensure_team(&tx, team_id, team, now).await?;
                let user_id = UserId::from_ulid(derived("user", user.as_str()));
                let user_id = account::ensure_user(&tx, user_id, user, team_id, now).await?;
                let project_id = ProjectId::from_ulid(derived("project", project.as_str()));
                account::ensure_member(&tx, project_id, project, team_id, user_id, now).await?;
                credential::validate_token(&tx, token_id, hash, user_id, now).await
            })
            .await
    }
}

fn derived(what: &str, name: &str) -> Ulid {
    let digest = Sha256::digest(format!("cnlab first account: {what} {name}"));
    let number = digest
        .iter()
        .take(16)
        .fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
    Ulid(number)
}
