//! Places of servers, as scheduler-svc knows them.

use async_trait::async_trait;
use cnlab_model::id::ServerId;
use cnlab_proto::scheduler::v1::{ResolveRouteRequest, roster_service_client::RosterServiceClient};
use cnlab_service::channel::UpstreamChannel;

use crate::{
    adapters::port_error,
    ports::{Location, PortError, Routes},
};

/// Asks scheduler-svc.
#[derive(Debug, Clone)]
pub struct SchedulerRoutes {
    client: RosterServiceClient<UpstreamChannel>,
}

impl SchedulerRoutes {
    /// Over this channel.
    #[must_use]
    pub fn new(channel: UpstreamChannel) -> Self {
        Self {
            client: RosterServiceClient::new(channel),
        }
    }
}

#[async_trait]
impl Routes for SchedulerRoutes {
    async fn resolve(&self, server: ServerId) -> Result<Location, PortError> {
        let request = ResolveRouteRequest {
            server_id: server.to_string(),
        };
        let route = self
            .client
            .clone()
            .resolve_route(request)
            .await
            .map_err(|status| port_error(&status))?
            .into_inner();
        let senseless = || {
            tracing::error!(%server, "scheduler-svc gave a route that makes no sense");
            PortError::Unavailable
        };
        if route.server_id != server.to_string() {
            return Err(senseless());
        }
        Ok(Location {
            owner: route.owner_id.parse().map_err(|_| senseless())?,
            endpoint: Some(route.node_endpoint).filter(|endpoint| !endpoint.is_empty()),
            fence: route.fence,
            ready: route.ready,
            state_text: route.state_text,
        })
    }
}
