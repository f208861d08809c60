//! What the scheduler tells of its decisions: all nodes of the cell and the meter, in one
//! process that accepts everything and remembers nothing, so that what is measured is the
//! scheduler's.

use std::{pin::Pin, sync::Arc};

use anyhow::Result;
use async_trait::async_trait;
use cnlab_proto::{
    billing::v1::{
        CloseUsageRequest, OpenUsageRequest, UsageInterval,
        meter_service_server::{MeterService, MeterServiceServer},
    },
    node::v1::{
        GetWorkloadRequest, LaunchWorkloadRequest, ListWorkloadsRequest, ListWorkloadsResponse,
        LogData, RemoveVolumeRequest, RemoveVolumeResponse, StopWorkloadRequest, StreamLogsRequest,
        Workload, WorkloadState,
        node_service_server::{NodeService, NodeServiceServer},
    },
};
use cnlab_service::{
    CommonConfig, ConfigFault, Running, Runtime, Secret, Service, ServiceConfig, StartError,
};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, service::Routes};

const ELSEWHERE: &str = "the bench only launches and stops";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeersConfig {
    common: CommonConfig,
}

impl ServiceConfig for PeersConfig {
    fn validate(&self) -> Vec<ConfigFault> {
        self.common.validate()
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }
}

/// Every node and the meter.
#[derive(Debug)]
pub(crate) struct Peers;

/// Starts them on a free port.
pub(crate) async fn start(key: &Secret) -> Result<Running<Peers>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let config = PeersConfig {
        common: CommonConfig {
            internal_key: key.clone(),
            ..CommonConfig::default()
        },
    };
    Ok(cnlab_service::start(config, Runtime::system(), listener).await?)
}

#[async_trait]
impl Service for Peers {
    const NAME: &'static str = "bench-peers";
    const DEFAULT_PORT: u16 = 0;
    type Config = PeersConfig;

    async fn build(_: PeersConfig, _: Runtime) -> Result<Arc<Self>, StartError> {
        Ok(Arc::new(Self))
    }

    fn grpc(self: &Arc<Self>) -> Routes {
        Routes::new(NodeServiceServer::from_arc(Arc::clone(self)))
            .add_service(MeterServiceServer::from_arc(Arc::clone(self)))
    }
}

fn workload(id: String, fence: u64, state: WorkloadState) -> Response<Workload> {
    Response::new(Workload {
        workload_id: id,
        fence,
        state: state.into(),
        sequence: 1,
        ..Workload::default()
    })
}

#[async_trait]
impl NodeService for Peers {
    async fn launch_workload(
        &self,
        request: Request<LaunchWorkloadRequest>,
    ) -> Result<Response<Workload>, Status> {
        let launch = request.into_inner();
        let fence = launch.grant.map_or(0, |grant| grant.fence);
        Ok(workload(launch.workload_id, fence, WorkloadState::Accepted))
    }

    async fn stop_workload(
        &self,
        request: Request<StopWorkloadRequest>,
    ) -> Result<Response<Workload>, Status> {
        let stop = request.into_inner();
        Ok(workload(
            stop.workload_id,
            stop.fence,
            WorkloadState::Stopped,
        ))
    }

    async fn get_workload(
        &self,
        _: Request<GetWorkloadRequest>,
    ) -> Result<Response<Workload>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    async fn list_workloads(
        &self,
        _: Request<ListWorkloadsRequest>,
    ) -> Result<Response<ListWorkloadsResponse>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    type StreamLogsStream = Pin<Box<dyn Stream<Item = Result<LogData, Status>> + Send>>;

    async fn stream_logs(
        &self,
        _: Request<StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        Err(Status::unimplemented(ELSEWHERE))
    }

    async fn remove_volume(
        &self,
        _: Request<RemoveVolumeRequest>,
    ) -> Result<Response<RemoveVolumeResponse>, Status> {
        Ok(Response::new(RemoveVolumeResponse {}))
    }
}

#[async_trait]
impl MeterService for Peers {
    async fn open_usage(
        &self,
        _: Request<OpenUsageRequest>,
    ) -> Result<Response<UsageInterval>, Status> {
        Ok(Response::new(UsageInterval::default()))
    }

    async fn close_usage(
        &self,
        _: Request<CloseUsageRequest>,
    ) -> Result<Response<UsageInterval>, Status> {
        Ok(Response::new(UsageInterval::default()))
    }
}
