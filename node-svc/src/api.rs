//! `cnlab.node.v1.NodeService`: decode, call, encode.

use std::{pin::Pin, sync::Arc};

use cnlab_proto::node::v1::{self as pb, node_service_server::NodeService};
use cnlab_service::{
    status::{invalid_field, to_status},
    task::detached,
};
use futures_util::{Stream, StreamExt as _};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{
    app::Node,
    convert::{
        decode_holder, decode_launch, decode_volume_id, decode_workload_id, encode_workload,
    },
};

/// The gRPC methods of a node.
#[derive(Debug, Clone)]
pub(crate) struct Api(pub(crate) Arc<Node>);

#[tonic::async_trait]
impl NodeService for Api {
    async fn launch_workload(
        &self,
        request: Request<pb::LaunchWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        let (holder, launch) =
            decode_launch(request.into_inner()).map_err(|error| invalid_field(&error))?;
        let node = Arc::clone(&self.0);
        detached(&self.0.runtime.tasks, "launch", async move {
            let life = node.launch(holder, launch).await;
            life.map(|life| Response::new(encode_workload(life)))
                .map_err(|error| to_status(&error))
        })
        .await
    }

    async fn stop_workload(
        &self,
        request: Request<pb::StopWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        let request = request.into_inner();
        let holder = decode_holder(&request.workload_id, request.fence)
            .map_err(|error| invalid_field(&error))?;
        let node = Arc::clone(&self.0);
        detached(&self.0.runtime.tasks, "stop", async move {
            let life = node.stop(holder).await;
            life.map(|life| Response::new(encode_workload(life)))
                .map_err(|error| to_status(&error))
        })
        .await
    }

    async fn get_workload(
        &self,
        request: Request<pb::GetWorkloadRequest>,
    ) -> Result<Response<pb::Workload>, Status> {
        let id = decode_workload_id(&request.get_ref().workload_id)
            .map_err(|error| invalid_field(&error))?;
        let life = self.0.get(id).map_err(|error| to_status(&error))?;
        Ok(Response::new(encode_workload(life.snapshot())))
    }

    async fn list_workloads(
        &self,
        _: Request<pb::ListWorkloadsRequest>,
    ) -> Result<Response<pb::ListWorkloadsResponse>, Status> {
        let workloads = self
            .0
            .list()
            .iter()
            .map(|life| encode_workload(life.snapshot()))
            .collect();
        Ok(Response::new(pb::ListWorkloadsResponse { workloads }))
    }

    type StreamLogsStream = Pin<Box<dyn Stream<Item = Result<pb::LogData, Status>> + Send>>;

    async fn stream_logs(
        &self,
        request: Request<pb::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let request = request.into_inner();
        let id = decode_workload_id(&request.workload_id).map_err(|error| invalid_field(&error))?;
        let life = self.0.get(id).map_err(|error| to_status(&error))?;
        let lines = self.0.logs(life, request.follow, request.tail_lines);
        let (chunks, reading) = (ReceiverStream::new(lines.0), lines.1);
        let data = chunks.map(|data| Ok(pb::LogData { data: data.into() }));
        let end = futures_util::stream::once(reading).filter_map(|read| async move {
            match read {
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a log could not be read");
                    Some(Err(Status::internal("internal error")))
                }
                Ok(Ok(())) | Err(_) => None,
            }
        });
        Ok(Response::new(Box::pin(data.chain(end))))
    }

    async fn remove_volume(
        &self,
        request: Request<pb::RemoveVolumeRequest>,
    ) -> Result<Response<pb::RemoveVolumeResponse>, Status> {
        let volume = decode_volume_id(&request.get_ref().volume_id)
            .map_err(|error| invalid_field(&error))?;
        let node = Arc::clone(&self.0);
        detached(&self.0.runtime.tasks, "remove-volume", async move {
            let removed = node.remove_volume(volume).await;
            removed
                .map(|()| Response::new(pb::RemoveVolumeResponse {}))
                .map_err(|error| to_status(&error))
        })
        .await
    }
}
