//! The RPCs: decode, call a use case, encode. Mutating ones run detached from their connection.

pub(crate) mod catalog;
pub(crate) mod roster;
pub(crate) mod server;

use cnlab_proto::convert::FieldError;
use cnlab_service::{
    Caller,
    caller::idempotency_key,
    status::{invalid_field, to_status},
};
use prost::Message;
use tonic::{Request, Status};

use crate::{app::once::Attempt, error::SchedulerError};

/// What the caller is told of an error.
pub(crate) fn status(error: &SchedulerError) -> Status {
    to_status(error)
}

pub(crate) fn field(error: &FieldError) -> Status {
    invalid_field(error)
}

/// Who asks, and which attempt this is.
fn attempt<T: Message>(
    request: &Request<T>,
    method: &'static str,
) -> Result<(Caller, Attempt), Status> {
    let caller = Caller::of(request)?.clone();
    let attempt = Attempt {
        tenant: caller.user_id,
        method,
        key: idempotency_key(request)?,
        request: request.get_ref().encode_to_vec(),
    };
    Ok((caller, attempt))
}
