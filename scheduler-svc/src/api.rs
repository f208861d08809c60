//! The RPCs: decode, call a use case, encode. Mutating ones run detached from their connection.

pub(crate) mod catalog;
pub(crate) mod node;
pub(crate) mod queue;
pub(crate) mod roster;
pub(crate) mod run;
pub(crate) mod server;

use std::{pin::Pin, sync::Arc};

use cnlab_proto::convert::FieldError;
use cnlab_service::{
    Caller,
    caller::idempotency_key,
    status::{invalid_field, to_status},
    task::detached,
};
use futures_util::{Stream, StreamExt as _, stream};
use prost::Message;
use tonic::{Request, Response, Status};

use crate::{
    app::{App, once::Attempt},
    error::SchedulerError,
};

/// What the caller is told of an error.
pub(crate) fn status(error: &SchedulerError) -> Status {
    to_status(error)
}

pub(crate) fn field(error: &FieldError) -> Status {
    invalid_field(error)
}

/// An open stream, which ends with an error when the scheduler stops: a reader must not take
/// that for the end of what it reads.
fn until_closing<T: Send + 'static>(
    app: &App,
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>> {
    let closing = app.closing.clone();
    let cut = stream.take_until(app.closing.clone().cancelled_owned());
    let end = stream::once(async move { closing.is_cancelled() })
        .filter_map(|closed| async move { closed.then(|| Err(status(&SchedulerError::Closing))) });
    Box::pin(cut.chain(end))
}

/// Runs what changes something, once this process leads the cell, detached from its connection.
async fn change<T: Send + 'static>(
    app: &Arc<App>,
    name: &'static str,
    request: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
) -> Result<Response<T>, Status> {
    let leader = Arc::clone(app);
    detached(&app.runtime.tasks, name, async move {
        leader.cell.lead().await.map_err(|error| status(&error))?;
        request.await
    })
    .await
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
