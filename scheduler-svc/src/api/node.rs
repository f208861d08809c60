//! `NodeService`.

use std::sync::Arc;

use cnlab_proto::scheduler::v1::{self as pb, node_service_server::NodeService};
use cnlab_service::Caller;
use tonic::{Request, Response, Status};

use super::{attempt, change, field, status};
use crate::{
    app::App,
    convert::nodes::{decode_reason, encode_node},
};

/// The RPCs on nodes. Until accounts have roles, everybody who is signed in may call them.
#[derive(Debug)]
pub(crate) struct NodeApi(pub(crate) Arc<App>);

#[tonic::async_trait]
impl NodeService for NodeApi {
    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        Caller::of(&request)?;
        let ask = request.get_ref();
        let page = self.0.list_nodes(ask.page_size, &ask.page_token).await;
        let page = page.map_err(|error| status(&error))?;
        Ok(Response::new(pb::ListNodesResponse {
            nodes: page.nodes.into_iter().map(encode_node).collect(),
            next_page_token: page.next,
        }))
    }

    async fn get_node(
        &self,
        request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let caller = Caller::of(&request)?;
        let view = self.0.get_node(caller, &request.get_ref().node).await;
        let view = view.map_err(|error| status(&error))?;
        Ok(Response::new(encode_node(view)))
    }

    async fn cordon_node(
        &self,
        request: Request<pb::CordonNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let (caller, attempt) = attempt(&request, "CordonNode")?;
        let ask = request.into_inner();
        let reason = decode_reason(&ask.reason).map_err(|error| field(&error))?;
        let app = Arc::clone(&self.0);
        change(&self.0, "CordonNode", async move {
            let view = app.cordon(&caller, &ask.node, reason, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_node(view)))
        })
        .await
    }

    async fn uncordon_node(
        &self,
        request: Request<pb::UncordonNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let (caller, attempt) = attempt(&request, "UncordonNode")?;
        let wanted = request.into_inner().node;
        let app = Arc::clone(&self.0);
        change(&self.0, "UncordonNode", async move {
            let view = app.uncordon(&caller, &wanted, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_node(view)))
        })
        .await
    }

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<pb::Node>, Status> {
        let (caller, attempt) = attempt(&request, "DrainNode")?;
        let ask = request.into_inner();
        let reason = decode_reason(&ask.reason).map_err(|error| field(&error))?;
        let app = Arc::clone(&self.0);
        change(&self.0, "DrainNode", async move {
            let view = app.drain(&caller, &ask.node, reason, &attempt).await;
            let view = view.map_err(|error| status(&error))?;
            Ok(Response::new(encode_node(view)))
        })
        .await
    }
}
