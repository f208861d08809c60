//! The ports over the services that know.

pub mod authenticator_billing;
pub mod routes_scheduler;
pub mod sessions_billing;

use cnlab_service::{channel::INTERNAL_KEY_WRONG, status::PublicError};
use tonic::{Code, Status};

use crate::ports::PortError;

/// A status that says no, told from one that says nothing.
fn port_error(status: &Status) -> PortError {
    if PublicError::from_status(status).reason == INTERNAL_KEY_WRONG {
        // The refusal is of this gateway, not of whoever asks.
        tracing::error!(
            "a service behind the gateway refuses the internal key; it must be the same in all services"
        );
        return PortError::Unavailable;
    }
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
