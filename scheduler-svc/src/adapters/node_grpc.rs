//! Nodes over gRPC: one channel per endpoint, kept for as long as nodes have it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use cnlab_model::id::{VolumeId, WorkloadId};
use cnlab_proto::node::v1::{self as pb, node_service_client::NodeServiceClient};
use cnlab_service::{
    Secret,
    channel::{self, UpstreamChannel},
};
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{refused, senseless};
use crate::{
    convert::{decode_workload, encode_launch},
    error::CallError,
    ports::{Launch, Logs, Nodes, Workload},
};

const SERVICE: &str = "node-svc";
/// A stop waits until processes are gone, which have some seconds to end in good order.
const DEADLINE: Duration = Duration::from_secs(25);

/// Nodes that are called directly.
#[derive(Debug)]
pub(crate) struct GrpcNodes {
    key: Secret,
    clients: Mutex<HashMap<String, NodeServiceClient<UpstreamChannel>>>,
}

impl GrpcNodes {
    pub(crate) fn new(key: Secret) -> Self {
        Self {
            key,
            clients: Mutex::default(),
        }
    }

    fn client(&self, endpoint: &str) -> Result<NodeServiceClient<UpstreamChannel>, CallError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(endpoint) {
            return Ok(client.clone());
        }
        let channel = channel::connect(endpoint, &self.key, DEADLINE)
            .map_err(|error| senseless(SERVICE, &error.to_string()))?;
        let client = NodeServiceClient::new(channel);
        clients.insert(endpoint.to_owned(), client.clone());
        Ok(client)
    }
}

fn workload(answer: pb::Workload) -> Result<Workload, CallError> {
    decode_workload("workload", answer).map_err(|error| senseless(SERVICE, &error.to_string()))
}

#[async_trait]
impl Nodes for GrpcNodes {
    async fn launch(&self, endpoint: &str, launch: Launch) -> Result<Workload, CallError> {
        let answer = self
            .client(endpoint)?
            .launch_workload(encode_launch(launch))
            .await
            .map_err(|status| refused(SERVICE, &status))?;
        workload(answer.into_inner())
    }

    async fn stop(
        &self,
        endpoint: &str,
        id: WorkloadId,
        fence: u64,
    ) -> Result<Option<Workload>, CallError> {
        let request = pb::StopWorkloadRequest {
            workload_id: id.to_string(),
            fence,
        };
        match self.client(endpoint)?.stop_workload(request).await {
            Ok(answer) => workload(answer.into_inner()).map(Some),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(SERVICE, &status)),
        }
    }

    async fn remove_volume(&self, endpoint: &str, volume: VolumeId) -> Result<(), CallError> {
        let request = pb::RemoveVolumeRequest {
            volume_id: volume.to_string(),
        };
        let done = self.client(endpoint)?.remove_volume(request).await;
        done.map(drop).map_err(|status| refused(SERVICE, &status))
    }

    async fn logs(
        &self,
        endpoint: &str,
        id: WorkloadId,
        follow: bool,
        tail_lines: u32,
    ) -> Result<Logs, CallError> {
        let request = pb::StreamLogsRequest {
            workload_id: id.to_string(),
            follow,
            tail_lines,
        };
        let answer = self
            .client(endpoint)?
            .stream_logs(request)
            .await
            .map_err(|status| refused(SERVICE, &status))?;
        let pieces = answer.into_inner().map(|piece| match piece {
            Ok(piece) => Ok(piece.data),
            Err(status) => Err(refused(SERVICE, &status)),
        });
        Ok(Box::pin(pieces))
    }
}
