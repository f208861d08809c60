//! The ports over the services that know.

pub mod authenticator_billing;
pub mod routes_scheduler;
pub mod sessions_billing;

use tonic::{Code, Status};

use crate::ports::PortError;

/// A status that says no, told from one that says nothing.
fn port_error(status: &Status) -> PortError {
    match status.code() {
        Code::NotFound
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::AlreadyExists => PortError::Refused,
        _ => {
            tracing::warn!(code = ?status.code(), message = status.message(), "a service behind the gateway gave no answer");
            PortError::Unavailable
        }
    }
}
