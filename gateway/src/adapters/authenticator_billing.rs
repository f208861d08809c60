//! Tokens, as billing-svc knows them.

use async_trait::async_trait;
use cnlab_proto::billing::v1::{
    AuthenticateTokenRequest, Identity, credential_service_client::CredentialServiceClient,
};
use cnlab_service::{Caller, channel::UpstreamChannel};

use crate::{
    adapters::port_error,
    ports::{Authenticator, PortError},
};

/// Asks billing-svc.
#[derive(Debug, Clone)]
pub struct BillingAuthenticator {
    client: CredentialServiceClient<UpstreamChannel>,
}

impl BillingAuthenticator {
    /// Over this channel.
    #[must_use]
    pub fn new(channel: UpstreamChannel) -> Self {
        Self {
            client: CredentialServiceClient::new(channel),
        }
    }
}

#[async_trait]
impl Authenticator for BillingAuthenticator {
    async fn authenticate(&self, token: &str) -> Result<Caller, PortError> {
        let request = AuthenticateTokenRequest {
            token: token.to_owned(),
        };
        let identity = self
            .client
            .clone()
            .authenticate_token(request)
            .await
            .map_err(|status| port_error(&status))?;
        decode(identity.into_inner()).ok_or_else(|| {
            tracing::error!("billing-svc named an account that makes no sense");
            PortError::Unavailable
        })
    }
}

fn decode(identity: Identity) -> Option<Caller> {
    Some(Caller {
        user_id: identity.user_id.parse().ok()?,
        user_name: identity.user_name,
        team_id: identity.team_id.parse().ok()?,
        projects: identity
            .projects
            .into_iter()
            .map(|project| project.parse().ok())
            .collect::<Option<_>>()?,
    })
}
