//! `RosterService`.

use std::sync::Arc;

use cnlab_model::id::{NodeId, ServerId};
use cnlab_proto::{
    convert::{encode_duration, parse_field},
    scheduler::v1::{self as pb, roster_service_server::RosterService},
};
use tonic::{Request, Response, Status};

use super::{change, field, status};
use crate::{
    app::{App, renew::Renewed},
    convert::{decode_node, decode_workload, encode_route},
    error::SchedulerError,
};

/// The RPCs of nodes and of the gateway.
#[derive(Debug)]
pub(crate) struct RosterApi(pub(crate) Arc<App>);

#[tonic::async_trait]
impl RosterService for RosterApi {
    async fn register_node(
        &self,
        request: Request<pb::RegisterNodeRequest>,
    ) -> Result<Response<pb::RegisterNodeResponse>, Status> {
        let now = self.0.runtime.clock.now();
        let (node, gpus) = decode_node(request.into_inner(), now).map_err(|error| field(&error))?;
        let app = Arc::clone(&self.0);
        change(&self.0, "RegisterNode", async move {
            app.register(&node, &gpus)
                .await
                .map_err(|error| status(&error))?;
            Ok(Response::new(pb::RegisterNodeResponse {
                lease_ttl: Some(encode_duration(app.grants.ttl.0)),
                renew_every: Some(encode_duration(app.grants.renew_every.0)),
            }))
        })
        .await
    }

    async fn renew_grants(
        &self,
        request: Request<pb::RenewGrantsRequest>,
    ) -> Result<Response<pb::RenewGrantsResponse>, Status> {
        let request = request.into_inner();
        let node: NodeId =
            parse_field("node_id", &request.node_id).map_err(|error| field(&error))?;
        let mut workloads = Vec::with_capacity(request.workloads.len());
        for (index, workload) in request.workloads.into_iter().enumerate() {
            let at = format!("workloads[{index}]");
            workloads.push(decode_workload(&at, workload).map_err(|error| field(&error))?);
        }
        let app = Arc::clone(&self.0);
        change(&self.0, "RenewGrants", async move {
            let renewed = app.renew(node, &workloads, request.disk_free_bytes).await;
            let renewed = renewed.map_err(|error| status(&error))?;
            Ok(Response::new(match renewed {
                Renewed::End(servers) => pb::RenewGrantsResponse {
                    end_workload_ids: servers.into_iter().map(String::from).collect(),
                    register_again: false,
                },
                Renewed::RegisterAgain => pb::RenewGrantsResponse {
                    end_workload_ids: Vec::new(),
                    register_again: true,
                },
            }))
        })
        .await
    }

    async fn report_workload(
        &self,
        request: Request<pb::ReportWorkloadRequest>,
    ) -> Result<Response<pb::ReportWorkloadResponse>, Status> {
        let request = request.into_inner();
        let id: NodeId = parse_field("node_id", &request.node_id).map_err(|error| field(&error))?;
        let workload = decode_workload("workload", request.workload.unwrap_or_default())
            .map_err(|error| field(&error))?;
        let app = Arc::clone(&self.0);
        change(&self.0, "ReportWorkload", async move {
            let known = app.node(id).await.map_err(|error| status(&error))?;
            if known.is_none() {
                let what = id.to_string();
                return Err(status(&SchedulerError::NodeUnknown { what }));
            }
            let taken = app.take_in(id, &workload).await;
            taken.map_err(|error| status(&error))?;
            Ok(Response::new(pb::ReportWorkloadResponse {}))
        })
        .await
    }

    async fn resolve_route(
        &self,
        request: Request<pb::ResolveRouteRequest>,
    ) -> Result<Response<pb::Route>, Status> {
        let id: ServerId = parse_field("server_id", &request.get_ref().server_id)
            .map_err(|error| field(&error))?;
        let route = self.0.route(id).await.map_err(|error| status(&error))?;
        Ok(Response::new(encode_route(route)))
    }
}
