//! MeterService, for the scheduler.

use std::sync::Arc;

use cnlab_model::id::GrantId;
use cnlab_proto::billing::v1 as pb;
use cnlab_service::task::detached;
use tonic::{Request, Response, Status};

use super::Api;
use crate::convert::{self, decode_id, decode_time};

#[tonic::async_trait]
impl pb::meter_service_server::MeterService for Api {
    async fn open_usage(
        &self,
        request: Request<pb::OpenUsageRequest>,
    ) -> Result<Response<pb::UsageInterval>, Status> {
        let opening = convert::decode_opening(request.into_inner())?;
        let app = Arc::clone(&self.app);
        detached(&self.tasks, "open-usage", async move {
            let usage = app.open_usage(opening).await?;
            Ok(Response::new(convert::encode_usage(usage, app.now())))
        })
        .await
    }

    async fn close_usage(
        &self,
        request: Request<pb::CloseUsageRequest>,
    ) -> Result<Response<pb::UsageInterval>, Status> {
        let request = request.into_inner();
        let grant: GrantId = decode_id("grant_id", &request.grant_id)?;
        let at = decode_time("ended_at", request.ended_at.as_ref())?;
        let app = Arc::clone(&self.app);
        detached(&self.tasks, "close-usage", async move {
            let usage = app.close_usage(grant, at).await?;
            Ok(Response::new(convert::encode_usage(usage, app.now())))
        })
        .await
    }
}
