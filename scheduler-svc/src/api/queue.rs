//! `QueueService`.

use std::sync::Arc;

use cnlab_proto::scheduler::v1::{self as pb, queue_service_server::QueueService};
use cnlab_service::Caller;
use tonic::{Request, Response, Status};

use super::status;
use crate::{
    app::App,
    convert::queue::{encode_explained, encode_queue},
};

/// The RPCs on who waits, and why.
#[derive(Debug)]
pub(crate) struct QueueApi(pub(crate) Arc<App>);

#[tonic::async_trait]
impl QueueService for QueueApi {
    async fn explain_server(
        &self,
        request: Request<pb::ExplainServerRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let caller = Caller::of(&request)?;
        let explained = self
            .0
            .explain_server(caller, &request.get_ref().server)
            .await;
        let explained = explained.map_err(|error| status(&error))?;
        Ok(Response::new(encode_explained(explained)))
    }

    async fn explain_run(
        &self,
        request: Request<pb::ExplainRunRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let caller = Caller::of(&request)?;
        let explained = self.0.explain_run(caller, &request.get_ref().run).await;
        let explained = explained.map_err(|error| status(&error))?;
        Ok(Response::new(encode_explained(explained)))
    }

    async fn list_queue(
        &self,
        request: Request<pb::ListQueueRequest>,
    ) -> Result<Response<pb::ListQueueResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ask = request.get_ref();
        let page = self
            .0
            .queue(caller, &ask.profile, ask.page_size, &ask.page_token)
            .await
            .map_err(|error| status(&error))?;
        Ok(Response::new(encode_queue(page)))
    }
}
