//! CredentialService, for the gateway and the scheduler.

use std::sync::Arc;

use cnlab_model::id::{ServerId, UserId};
use cnlab_proto::{billing::v1 as pb, convert::encode_timestamp};
use cnlab_service::task::detached;
use tonic::{Request, Response, Status};

use super::Api;
use crate::convert::{decode_id, encode_identity};

#[tonic::async_trait]
impl pb::credential_service_server::CredentialService for Api {
    async fn authenticate_token(
        &self,
        request: Request<pb::AuthenticateTokenRequest>,
    ) -> Result<Response<pb::Identity>, Status> {
        let token = &request.get_ref().token;
        let (account, id, expires_at) = self.app.authenticate_token(token).await?;
        Ok(Response::new(encode_identity(
            account,
            Some(id),
            expires_at,
        )))
    }

    async fn issue_open_code(
        &self,
        request: Request<pb::IssueOpenCodeRequest>,
    ) -> Result<Response<pb::IssueOpenCodeResponse>, Status> {
        let pb::IssueOpenCodeRequest { user_id, server_id } = request.into_inner();
        let user: UserId = decode_id("user_id", &user_id)?;
        let server: ServerId = decode_id("server_id", &server_id)?;
        let app = Arc::clone(&self.app);
        detached(&self.tasks, "issue-open-code", async move {
            let (code, expires_at) = app.issue_open_code(user, server).await?;
            Ok(Response::new(pb::IssueOpenCodeResponse {
                code: code.expose().to_owned(),
                expires_at: Some(encode_timestamp(expires_at)),
            }))
        })
        .await
    }

    async fn redeem_open_code(
        &self,
        request: Request<pb::RedeemOpenCodeRequest>,
    ) -> Result<Response<pb::RedeemOpenCodeResponse>, Status> {
        let pb::RedeemOpenCodeRequest { code, server_id } = request.into_inner();
        let server: ServerId = decode_id("server_id", &server_id)?;
        let app = Arc::clone(&self.app);
        detached(&self.tasks, "redeem-open-code", async move {
            let (session, expires_at) = app.redeem_open_code(&code, server).await?;
            Ok(Response::new(pb::RedeemOpenCodeResponse {
                session: session.expose().to_owned(),
                expires_at: Some(encode_timestamp(expires_at)),
            }))
        })
        .await
    }

    async fn authenticate_session(
        &self,
        request: Request<pb::AuthenticateSessionRequest>,
    ) -> Result<Response<pb::Identity>, Status> {
        let pb::AuthenticateSessionRequest { session, server_id } = request.into_inner();
        let server: ServerId = decode_id("server_id", &server_id)?;
        let (account, expires_at) = self.app.authenticate_session(&session, server).await?;
        Ok(Response::new(encode_identity(
            account,
            None,
            Some(expires_at),
        )))
    }
}
