//! UsageService.

use cnlab_proto::billing::v1 as pb;
use cnlab_service::Caller;
use tonic::{Request, Response, Status};

use super::Api;
use crate::convert;

#[tonic::async_trait]
impl pb::usage_service_server::UsageService for Api {
    async fn list_usage(
        &self,
        request: Request<pb::ListUsageRequest>,
    ) -> Result<Response<pb::ListUsageResponse>, Status> {
        let caller = Caller::of(&request)?.clone();
        let request = request.into_inner();
        let project = convert::decode_project(&request.project)?;
        let after = convert::decode_page_token(&request.page_token)?;
        let size = convert::decode_page_size(request.page_size)?;
        let page = self
            .app
            .list_usage(
                &convert::decode_subject(&caller),
                caller.user_id,
                project.as_ref(),
                after,
                size,
            )
            .await?;
        let now = self.app.now();
        let encode = |usage| convert::encode_usage(usage, now);
        Ok(Response::new(pb::ListUsageResponse {
            intervals: page.items.into_iter().map(encode).collect(),
            next_page_token: page
                .next
                .map(convert::encode_page_token)
                .unwrap_or_default(),
        }))
    }
}
