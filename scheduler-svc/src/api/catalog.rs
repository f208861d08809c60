//! `CatalogService`.

use std::sync::Arc;

use cnlab_proto::scheduler::v1::{self as pb, catalog_service_server::CatalogService};
use tonic::{Request, Response, Status};

use super::status;
use crate::{
    app::App,
    convert::{encode_image, encode_profile},
};

/// The RPCs on what servers can be made of.
#[derive(Debug)]
pub(crate) struct CatalogApi(pub(crate) Arc<App>);

#[tonic::async_trait]
impl CatalogService for CatalogApi {
    async fn list_profiles(
        &self,
        _: Request<pb::ListProfilesRequest>,
    ) -> Result<Response<pb::ListProfilesResponse>, Status> {
        let profiles = self.0.profiles().await.map_err(|error| status(&error))?;
        Ok(Response::new(pb::ListProfilesResponse {
            profiles: profiles.into_iter().map(encode_profile).collect(),
        }))
    }

    async fn list_images(
        &self,
        _: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        Ok(Response::new(pb::ListImagesResponse {
            images: self.0.catalogue.images.iter().map(encode_image).collect(),
        }))
    }
}
