//! `ServerService`.

use std::{pin::Pin, sync::Arc};

use cnlab_proto::scheduler::v1::{self as pb, server_service_server::ServerService};
use cnlab_service::{Caller, task::detached};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{attempt, change, status, until_closing};
use crate::{
    app::App,
    convert::{TextPieces, decode_new_server, encode_opened, encode_server},
    error::SchedulerError,
};

/// The RPCs on servers.
#[derive(Debug)]
pub(crate) struct ServerApi(pub(crate) Arc<App>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ServerService for ServerApi {
    async fn create_server(
        &self,
        request: Request<pb::CreateServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let (caller, attempt) = attempt(&request, "CreateServer")?;
        let ask = decode_new_server(request.into_inner());
        let app = Arc::clone(&self.0);
        change(&self.0, "CreateServer", async move {
            let view = app.create(&caller, ask, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_server(view, &app.notebook)))
        })
        .await
    }

    async fn get_server(
        &self,
        request: Request<pb::GetServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let caller = Caller::of(&request)?;
        let view = self.0.get(caller, &request.get_ref().server).await;
        let view = view.map_err(|error| status(&error))?;
        Ok(Response::new(encode_server(view, &self.0.notebook)))
    }

    async fn list_servers(
        &self,
        request: Request<pb::ListServersRequest>,
    ) -> Result<Response<pb::ListServersResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ask = request.get_ref();
        let page = self
            .0
            .list(caller, &ask.project, ask.page_size, &ask.page_token)
            .await
            .map_err(|error| status(&error))?;
        Ok(Response::new(pb::ListServersResponse {
            servers: page
                .servers
                .into_iter()
                .map(|view| encode_server(view, &self.0.notebook))
                .collect(),
            next_page_token: page.next,
        }))
    }

    async fn start_server(
        &self,
        request: Request<pb::StartServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let (caller, attempt) = attempt(&request, "StartServer")?;
        let wanted = request.into_inner().server;
        let app = Arc::clone(&self.0);
        change(&self.0, "StartServer", async move {
            let view = app.start(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_server(view, &app.notebook)))
        })
        .await
    }

    async fn stop_server(
        &self,
        request: Request<pb::StopServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let (caller, attempt) = attempt(&request, "StopServer")?;
        let wanted = request.into_inner().server;
        let app = Arc::clone(&self.0);
        change(&self.0, "StopServer", async move {
            let view = app.stop(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_server(view, &app.notebook)))
        })
        .await
    }

    async fn delete_server(
        &self,
        request: Request<pb::DeleteServerRequest>,
    ) -> Result<Response<pb::Server>, Status> {
        let (caller, attempt) = attempt(&request, "DeleteServer")?;
        let wanted = request.into_inner().server;
        let app = Arc::clone(&self.0);
        change(&self.0, "DeleteServer", async move {
            let view = app.delete(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_server(view, &app.notebook)))
        })
        .await
    }

    type WatchServerStream = Answers<pb::Server>;

    async fn watch_server(
        &self,
        request: Request<pb::WatchServerRequest>,
    ) -> Result<Response<Self::WatchServerStream>, Status> {
        let caller = Caller::of(&request)?;
        let views = self.0.watch(caller, &request.get_ref().server).await;
        let views = views.map_err(|error| status(&error))?;
        let app = Arc::clone(&self.0);
        let servers = ReceiverStream::new(views).map(move |view| match view {
            Ok(view) => Ok(encode_server(view, &app.notebook)),
            Err(error) => Err(status(&error)),
        });
        Ok(Response::new(until_closing(&self.0, servers)))
    }

    async fn open_server(
        &self,
        request: Request<pb::OpenServerRequest>,
    ) -> Result<Response<pb::OpenServerResponse>, Status> {
        let caller = Caller::of(&request)?.clone();
        let wanted = request.into_inner().server;
        let app = Arc::clone(&self.0);
        detached(&self.0.runtime.tasks, "OpenServer", async move {
            let opened = app.open(&caller, &wanted).await;
            let opened = opened.map_err(|error| status(&error))?;
            Ok(Response::new(encode_opened(opened)))
        })
        .await
    }

    type GetServerLogsStream = Answers<pb::LogChunk>;

    async fn get_server_logs(
        &self,
        request: Request<pb::GetServerLogsRequest>,
    ) -> Result<Response<Self::GetServerLogsStream>, Status> {
        let caller = Caller::of(&request)?;
        let ask = request.get_ref();
        let logs = self
            .0
            .logs(caller, &ask.server, ask.follow, ask.tail_lines)
            .await;
        let logs = logs.map_err(|error| status(&error))?;
        let chunks = TextPieces::new(logs).map(|text| match text {
            Ok(text) => Ok(pb::LogChunk { text }),
            Err(error) => Err(status(&SchedulerError::Upstream(error))),
        });
        Ok(Response::new(until_closing(&self.0, chunks)))
    }
}
