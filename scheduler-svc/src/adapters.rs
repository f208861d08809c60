//! The ports over gRPC.

pub(crate) mod billing_grpc;
pub(crate) mod node_grpc;

use cnlab_model::ErrorKind;
use cnlab_service::status::PublicError;
use tonic::{Code, Status};

use crate::error::CallError;

/// What another service answered.
fn refused(service: &'static str, status: &Status) -> CallError {
    let mut error = PublicError::from_status(status);
    // Services of ours never answer UNKNOWN; a connection that breaks in a call does.
    if status.code() == Code::Unknown {
        error.kind = ErrorKind::Unavailable;
    }
    // So ends a call of ours whose time is over, and nobody else cancels one.
    if status.code() == Code::Cancelled {
        error.kind = ErrorKind::Deadline;
    }
    CallError {
        service,
        error: Box::new(error),
    }
}

/// An answer that means nothing.
fn senseless(service: &'static str, problem: &str) -> CallError {
    CallError {
        service,
        error: Box::new(PublicError {
            kind: ErrorKind::Internal,
            reason: "ANSWER_UNREADABLE".to_owned(),
            message: format!("the answer makes no sense: {problem}"),
            cause: None,
            try_this: None,
            field: None,
            trace_id: None,
        }),
    }
}
