//! One multiplexed connection to Redis, thrown away at the first sign of trouble.
//!
//! After a timeout nobody can know whether the peer is still there, so the connection is replaced
//! instead of waited for: a peer that vanished without a word would otherwise swallow requests for
//! minutes. What was sent on the old connection may still be carried out later; the scripts are
//! made for that. There is no retry in here: the caller knows whether its request still matters.

use std::fmt;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, RedisError, ScriptInvocation,
    ServerErrorKind,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::LeaseError;

/// How long to wait for a Redis server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedisOptions {
    /// For a connection to be set up.
    pub connect_timeout: Duration,
    /// For the answer to a request, after which its outcome counts as unknown.
    pub response_timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
        }
    }
}

pub(super) struct Link {
    client: Client,
    options: RedisOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Counts connections, so that only the one that failed is thrown away.
    generation: u64,
    connection: Option<MultiplexedConnection>,
    /// When the last attempt to connect failed, and why.
    failure: Option<(Instant, RedisError)>,
}

impl fmt::Debug for Link {
    // The client knows the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(url: &str, options: RedisOptions) -> Result<Self, LeaseError> {
        let client =
            Client::open(url).map_err(|error| LeaseError::invalid("url", error.to_string()))?;
        Ok(Self {
            client,
            options,
            state: Mutex::default(),
        })
    }

    /// Runs a script, loading it first where the server does not know it yet.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        operation: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, LeaseError> {
        let (generation, mut connection) = self.connection().await?;
        match call.invoke_async(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let (fault, keep) = classify(operation, error);
                if !keep {
                    self.discard(generation).await;
                }
                Err(fault)
            }
        }
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), LeaseError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((state.generation, connection.clone()));
        }
        // Whoever waited while somebody else's attempt failed shares that failure; otherwise each
        // of many callers would in turn wait for the whole time.
        if let Some((failed, error)) = &state.failure
            && *failed >= asked
        {
            return Err(unavailable(error.clone()));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout));
        match self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
        {
            Ok(connection) => {
                state.generation += 1;
                state.connection = Some(connection.clone());
                state.failure = None;
                tracing::info!(generation = state.generation, "connected to redis");
                Ok((state.generation, connection))
            }
            Err(error) => {
                state.failure = Some((Instant::now(), error.clone()));
                Err(unavailable(error))
            }
        }
    }

    async fn discard(&self, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation == generation && state.connection.take().is_some() {
            tracing::warn!(generation, "dropped the connection to redis");
        }
    }
}

fn unavailable(error: RedisError) -> LeaseError {
    LeaseError::Unavailable {
        cause: error.into(),
    }
}

/// What an error of a request that was sent means, and whether its connection is still good.
fn classify(operation: &'static str, error: RedisError) -> (LeaseError, bool) {
    let kind = error.kind();
    // Refused as a whole before anything was done.
    let refused = matches!(
        error.code(),
        Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY")
    );
    match kind {
        // Whether it was a timeout or a lost connection: the request may have arrived.
        ErrorKind::Io => {
            let cause = error.into();
            (LeaseError::Unknown { operation, cause }, false)
        }
        // This server will not become usable again, but another one behind the same name may be.
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            (unavailable(error), false)
        }
        ErrorKind::Server(
            ServerErrorKind::BusyLoading | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown,
        ) => (unavailable(error), true),
        _ if refused => (unavailable(error), true),
        _ => {
            let keep = matches!(kind, ErrorKind::Server(_));
            let cause = error.into();
            (LeaseError::Fault { operation, cause }, keep)
        }
    }
}
