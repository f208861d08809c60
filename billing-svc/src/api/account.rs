//! AccountService.

use cnlab_proto::billing::v1 as pb;
use cnlab_service::Caller;
use tonic::{Request, Response, Status};

use super::Api;
use crate::convert;

#[tonic::async_trait]
impl pb::account_service_server::AccountService for Api {
    async fn who_am_i(
        &self,
        request: Request<pb::WhoAmIRequest>,
    ) -> Result<Response<pb::Identity>, Status> {
        let caller = Caller::of(&request)?;
        let subject = convert::decode_subject(caller);
        let account = self.app.account(&subject, caller.user_id).await?;
        Ok(Response::new(convert::encode_identity(account, None, None)))
    }
}
