//! The gRPC methods: decode, call the use case, encode.

mod account;
mod credential;
mod meter;
mod usage;

use std::sync::Arc;

use cnlab_service::runtime::Tasks;

use crate::app::App;

/// All methods of this service.
#[derive(Debug)]
pub(crate) struct Api {
    app: Arc<App>,
    tasks: Tasks,
}

impl Api {
    pub(crate) fn new(app: Arc<App>, tasks: Tasks) -> Self {
        Self { app, tasks }
    }
}
