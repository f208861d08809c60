//! Billing over gRPC.

use std::time::Duration;

use async_trait::async_trait;
use cnlab_model::{
    Timestamp,
    id::{GrantId, ServerId, UserId},
};
use cnlab_proto::{
    billing::v1::{
        self as pb, credential_service_client::CredentialServiceClient,
        meter_service_client::MeterServiceClient,
    },
    convert::{decode_timestamp, encode_timestamp},
};
use cnlab_service::{
    Secret, StartError,
    channel::{self, UpstreamChannel},
};

use super::{refused, senseless};
use crate::{
    convert::encode_slices,
    error::CallError,
    ports::{Billing, OpenCode, Usage},
};

const SERVICE: &str = "billing-svc";
const DEADLINE: Duration = Duration::from_secs(10);

/// The billing service.
#[derive(Debug)]
pub(crate) struct GrpcBilling {
    meter: MeterServiceClient<UpstreamChannel>,
    credentials: CredentialServiceClient<UpstreamChannel>,
}

impl GrpcBilling {
    pub(crate) fn new(endpoint: &str, key: &Secret) -> Result<Self, StartError> {
        let channel = channel::connect(endpoint, key, DEADLINE)?;
        Ok(Self {
            meter: MeterServiceClient::new(channel.clone()),
            credentials: CredentialServiceClient::new(channel),
        })
    }
}

#[async_trait]
impl Billing for GrpcBilling {
    async fn open_usage(&self, usage: Usage) -> Result<(), CallError> {
        let request = pb::OpenUsageRequest {
            grant_id: usage.grant.to_string(),
            user_id: usage.owner.to_string(),
            project: usage.project,
            workload_id: usage.workload.to_string(),
            slices: encode_slices(&usage.gpu_type, &usage.slices),
            started_at: Some(encode_timestamp(usage.started_at)),
        };
        let done = self.meter.clone().open_usage(request).await;
        done.map(drop).map_err(|status| refused(SERVICE, &status))
    }

    async fn close_usage(&self, grant: GrantId, ended_at: Timestamp) -> Result<(), CallError> {
        let request = pb::CloseUsageRequest {
            grant_id: grant.to_string(),
            ended_at: Some(encode_timestamp(ended_at)),
        };
        let done = self.meter.clone().close_usage(request).await;
        done.map(drop).map_err(|status| refused(SERVICE, &status))
    }

    async fn issue_open_code(&self, user: UserId, server: ServerId) -> Result<OpenCode, CallError> {
        let request = pb::IssueOpenCodeRequest {
            user_id: user.to_string(),
            server_id: server.to_string(),
        };
        let answer = self
            .credentials
            .clone()
            .issue_open_code(request)
            .await
            .map_err(|status| refused(SERVICE, &status))?
            .into_inner();
        let expires_at = decode_timestamp("expires_at", answer.expires_at.as_ref())
            .map_err(|error| senseless(SERVICE, &error.to_string()))?;
        Ok(OpenCode {
            code: answer.code,
            expires_at,
        })
    }
}
