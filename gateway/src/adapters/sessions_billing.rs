//! Browser sessions, as billing-svc knows them.

use async_trait::async_trait;
use cnlab_model::id::{ServerId, UserId};
use cnlab_proto::{
    billing::v1::{
        AuthenticateSessionRequest, RedeemOpenCodeRequest,
        credential_service_client::CredentialServiceClient,
    },
    convert::decode_timestamp,
};
use cnlab_service::channel::UpstreamChannel;

use crate::{
    adapters::port_error,
    ports::{NewSession, PortError, Sessions},
};

/// Asks billing-svc.
#[derive(Debug, Clone)]
pub struct BillingSessions {
    client: CredentialServiceClient<UpstreamChannel>,
}

impl BillingSessions {
    /// Over this channel.
    #[must_use]
    pub fn new(channel: UpstreamChannel) -> Self {
        Self {
            client: CredentialServiceClient::new(channel),
        }
    }
}

#[async_trait]
impl Sessions for BillingSessions {
    async fn redeem(&self, code: &str, server: ServerId) -> Result<NewSession, PortError> {
        let request = RedeemOpenCodeRequest {
            code: code.to_owned(),
            server_id: server.to_string(),
        };
        let answer = self
            .client
            .clone()
            .redeem_open_code(request)
            .await
            .map_err(|status| port_error(&status))?
            .into_inner();
        Ok(NewSession {
            expires_at: decode_timestamp("expires_at", answer.expires_at.as_ref()).ok(),
            secret: answer.session,
        })
    }

    async fn authenticate(&self, session: &str, server: ServerId) -> Result<UserId, PortError> {
        let request = AuthenticateSessionRequest {
            session: session.to_owned(),
            server_id: server.to_string(),
        };
        let identity = self
            .client
            .clone()
            .authenticate_session(request)
            .await
            .map_err(|status| port_error(&status))?;
        identity.into_inner().user_id.parse().map_err(|_| {
            tracing::error!("billing-svc named an account that makes no sense");
            PortError::Unavailable
        })
    }
}
