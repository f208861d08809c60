//! Calls to other services: connected when first used, reconnected by themselves, with a
//! deadline, the present trace and the internal key on every call.

use std::time::Duration;

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{Secret, service::StartError, trace};

/// The header that carries the internal key.
pub const INTERNAL_KEY_HEADER: &str = "cnlab-internal-key";
/// The reason of a call that came without it.
pub const INTERNAL_KEY_WRONG: &str = "INTERNAL_KEY_WRONG";
const CONNECT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A channel to another service of ours.
pub type UpstreamChannel = InterceptedService<Channel, Outbound>;

/// Adds the present trace and the internal key to a call.
#[derive(Debug, Clone)]
pub struct Outbound {
    key: MetadataValue<Ascii>,
}

impl Outbound {
    /// Calls with this key.
    ///
    /// # Errors
    /// When the key is no header value.
    pub fn new(key: &Secret) -> Result<Self, StartError> {
        let mut key: MetadataValue<Ascii> = key.expose().parse().map_err(|error| {
            StartError::new("the internal key holds characters other than ASCII").caused_by(error)
        })?;
        key.set_sensitive(true);
        Ok(Self { key })
    }
}

impl Interceptor for Outbound {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let mut headers = std::mem::take(request.metadata_mut()).into_headers();
        trace::inject(&mut headers);
        *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        request
            .metadata_mut()
            .insert(INTERNAL_KEY_HEADER, self.key.clone());
        Ok(request)
    }
}

/// A channel to a service of ours. `deadline` bounds the time to the first answer; a stream
/// may then go on.
///
/// # Errors
/// When the endpoint is no `http://host:port`.
pub fn connect(
    endpoint: &str,
    key: &Secret,
    deadline: Duration,
) -> Result<UpstreamChannel, StartError> {
    let channel = endpoint_of(endpoint)?.timeout(deadline).connect_lazy();
    Ok(InterceptedService::new(channel, Outbound::new(key)?))
}

/// A bare channel, without key, trace or deadline.
///
/// # Errors
/// When the endpoint is no `http://host:port`.
pub fn plain(endpoint: &str) -> Result<Channel, StartError> {
    Ok(endpoint_of(endpoint)?.connect_lazy())
}

fn endpoint_of(endpoint: &str) -> Result<Endpoint, StartError> {
    Ok(Endpoint::from_shared(endpoint.to_owned())
        .map_err(|error| {
            StartError::new(format!(
                "{endpoint:?} is no endpoint such as http://host:port"
            ))
            .caused_by(error)
        })?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}
