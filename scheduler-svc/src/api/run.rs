//! `RunService`.

use std::{pin::Pin, sync::Arc};

use cnlab_proto::scheduler::v1::{self as pb, run_service_server::RunService};
use cnlab_service::Caller;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{attempt, change, field, status, until_closing};
use crate::{
    app::App,
    convert::{
        TextPieces,
        run::{decode_new_run, encode_run},
    },
    error::SchedulerError,
};

/// The RPCs on runs.
#[derive(Debug)]
pub(crate) struct RunApi(pub(crate) Arc<App>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl RunService for RunApi {
    async fn submit_run(
        &self,
        request: Request<pb::SubmitRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let (caller, attempt) = attempt(&request, "SubmitRun")?;
        let ask = decode_new_run(request.into_inner()).map_err(|error| field(&error))?;
        let app = Arc::clone(&self.0);
        change(&self.0, "SubmitRun", async move {
            let view = app.submit(&caller, ask, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_run(view)))
        })
        .await
    }

    async fn get_run(
        &self,
        request: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let caller = Caller::of(&request)?;
        let view = self.0.get_run(caller, &request.get_ref().run).await;
        let view = view.map_err(|error| status(&error))?;
        Ok(Response::new(encode_run(view)))
    }

    async fn list_runs(
        &self,
        request: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ask = request.get_ref();
        let page = self
            .0
            .list_runs(caller, &ask.project, ask.page_size, &ask.page_token)
            .await
            .map_err(|error| status(&error))?;
        Ok(Response::new(pb::ListRunsResponse {
            runs: page.runs.into_iter().map(encode_run).collect(),
            next_page_token: page.next,
        }))
    }

    async fn cancel_run(
        &self,
        request: Request<pb::CancelRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let (caller, attempt) = attempt(&request, "CancelRun")?;
        let wanted = request.into_inner().run;
        let app = Arc::clone(&self.0);
        change(&self.0, "CancelRun", async move {
            let view = app.cancel_run(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_run(view)))
        })
        .await
    }

    async fn delete_run(
        &self,
        request: Request<pb::DeleteRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let (caller, attempt) = attempt(&request, "DeleteRun")?;
        let wanted = request.into_inner().run;
        let app = Arc::clone(&self.0);
        change(&self.0, "DeleteRun", async move {
            let view = app.delete_run(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_run(view)))
        })
        .await
    }

    type WatchRunStream = Answers<pb::Run>;

    async fn watch_run(
        &self,
        request: Request<pb::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let caller = Caller::of(&request)?;
        let views = self.0.watch_run(caller, &request.get_ref().run).await;
        let views = views.map_err(|error| status(&error))?;
        let runs = ReceiverStream::new(views).map(|view| match view {
            Ok(view) => Ok(encode_run(view)),
            Err(error) => Err(status(&error)),
        });
        Ok(Response::new(until_closing(&self.0, runs)))
    }

    type GetRunLogsStream = Answers<pb::LogChunk>;

    async fn get_run_logs(
        &self,
        request: Request<pb::GetRunLogsRequest>,
    ) -> Result<Response<Self::GetRunLogsStream>, Status> {
        let caller = Caller::of(&request)?;
        let ask = request.get_ref();
        let logs = self
            .0
            .run_logs(caller, &ask.run, ask.follow, ask.tail_lines)
            .await;
        let logs = logs.map_err(|error| status(&error))?;
        let chunks = TextPieces::new(logs).map(|text| match text {
            Ok(text) => Ok(pb::LogChunk { text }),
            Err(error) => Err(status(&SchedulerError::Upstream(error))),
        });
        Ok(Response::new(until_closing(&self.0, chunks)))
    }
}
