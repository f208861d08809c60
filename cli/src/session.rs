//! A signed-in connection to one gateway, and how requests are sent over it.
//!
//! **Invariants**: every request carries the bearer token and a deadline; a mutating one also
//! an idempotency key that stays the same over its retries, so that a lost answer never makes
//! a second server; retries are bounded.

use std::{fmt, sync::Arc, time::Duration};

use cnlab_proto::{
    billing::v1::account_service_client::AccountServiceClient,
    scheduler::v1::{
        catalog_service_client::CatalogServiceClient, node_service_client::NodeServiceClient,
        queue_service_client::QueueServiceClient, run_service_client::RunServiceClient,
        server_service_client::ServerServiceClient,
    },
};
use cnlab_service::{Runtime, status::TRACE_ID_HEADER, trace};
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataMap, MetadataValue},
    transport::Channel,
};

use crate::{
    connect::Endpoint,
    context::{self, Paths},
    environment::{Environment, Program},
    error::{Exit, Failure, Result},
};

/// How long one answer may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Pauses before the second, third and fourth try.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(150),
    Duration::from_millis(450),
    Duration::from_millis(1_350),
];
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Whether repeating a request does more than doing it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It only asks.
    Read,
    /// It changes something, and needs a key.
    Mutation,
}

/// An answer and the id of the trace that it belongs to.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// What the gateway answered.
    pub message: T,
    /// Id to quote.
    pub trace_id: Option<String>,
}

/// A connection to one gateway.
#[derive(Clone)]
pub struct Session {
    program: Program,
    endpoint: Endpoint,
    bearer: Option<MetadataValue<Ascii>>,
    project: Option<String>,
    channel: Channel,
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("endpoint", &self.endpoint)
            .field("project", &self.project)
            .finish_non_exhaustive()
    }
}

/// What is needed to find a gateway.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// `--endpoint`.
    pub endpoint: Option<String>,
    /// `--project`.
    pub project: Option<String>,
}

/// The gateway to speak to and the project to use: the flag, else the environment, else the
/// context in use.
///
/// # Errors
/// When there is none, or it is written wrongly.
pub fn find(
    target: &Target,
    paths: &Paths,
    environment: &Environment,
) -> Result<(Endpoint, Option<String>)> {
    let given = target
        .endpoint
        .as_deref()
        .or(environment.endpoint.as_deref());
    let context = context::current(paths)?;
    let endpoint = match (given, &context) {
        (Some(given), _) => Endpoint::parse(given)?,
        (None, Some(context)) => Endpoint::parse(&context.endpoint)?,
        (None, None) => {
            return Err(Failure::new(Exit::Usage, "NO_ENDPOINT", "no gateway is known")
                .caused_by(format!("{} names none", paths.config().display()))
                .try_this(format!(
                    "`{} up` starts one on this machine; --endpoint URL or CNLAB_ENDPOINT name another",
                    environment.program
                )));
        }
    };
    // A context's project belongs to its gateway.
    let same = |context: &context::Context| {
        Endpoint::parse(&context.endpoint).is_ok_and(|known| known == endpoint)
    };
    let project = target
        .project
        .clone()
        .or_else(|| context.filter(same).and_then(|context| context.project));
    if let Some(project) = &project {
        project
            .parse::<cnlab_model::ProjectName>()
            .map_err(|error| {
                Failure::new(Exit::Usage, "PROJECT_NAME_INVALID", error.to_string())
                    .field("project")
            })?;
    }
    Ok((endpoint, project))
}

impl Session {
    /// Finds the gateway and the token for it.
    ///
    /// # Errors
    /// When no gateway is known or nobody is signed in.
    pub fn open(target: &Target, paths: &Paths, environment: &Environment) -> Result<Self> {
        let (endpoint, project) = find(target, paths, environment)?;
        let token = match &environment.token {
            Some(token) => token.clone(),
            None => context::token(paths, endpoint.as_str())?.ok_or_else(|| {
                Failure::new(
                    Exit::Auth,
                    "NOT_LOGGED_IN",
                    format!("nobody is signed in at {endpoint}"),
                )
                .try_this(format!(
                    "`{} login --token-stdin`, or set CNLAB_TOKEN",
                    environment.program
                ))
            })?,
        };
        Self::with_token(environment.program, endpoint, project, &token)
    }

    /// A session with this token.
    ///
    /// # Errors
    /// When the text cannot be a token.
    pub fn with_token(
        program: Program,
        endpoint: Endpoint,
        project: Option<String>,
        token: &str,
    ) -> Result<Self> {
        let bearer = check_token(token)?;
        let channel = endpoint.channel();
        Ok(Self {
            program,
            endpoint,
            bearer: Some(bearer),
            project,
            channel,
            runtime: Arc::new(Runtime::system()),
        })
    }

    /// The name that the program acts under.
    #[must_use]
    pub const fn program(&self) -> Program {
        self.program
    }

    /// The gateway.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The project that was chosen, if any.
    #[must_use]
    pub fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// Mixes the token into a hash, so that a cache can be kept per account.
    pub fn token_hash(&self, hasher: &mut impl std::hash::Hasher) {
        std::hash::Hash::hash(
            &self.bearer.as_ref().map(MetadataValue::as_encoded_bytes),
            hasher,
        );
    }

    /// Servers.
    #[must_use]
    pub fn servers(&self) -> ServerServiceClient<Channel> {
        ServerServiceClient::new(self.channel.clone())
    }

    /// Runs.
    #[must_use]
    pub fn runs(&self) -> RunServiceClient<Channel> {
        RunServiceClient::new(self.channel.clone())
    }

    /// Who waits, and why.
    #[must_use]
    pub fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone())
    }

    /// Nodes.
    #[must_use]
    pub fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone())
    }

    /// Profiles and images.
    #[must_use]
    pub fn catalog(&self) -> CatalogServiceClient<Channel> {
        CatalogServiceClient::new(self.channel.clone())
    }

    /// The caller's account.
    #[must_use]
    pub fn account(&self) -> AccountServiceClient<Channel> {
        AccountServiceClient::new(self.channel.clone())
    }

    /// Sends a request, again where the gateway was away, and waits for its answer.
    ///
    /// # Errors
    /// What the gateway answered, or that it could not be reached.
    pub async fn call<Q: Clone, A>(
        &self,
        effect: Effect,
        message: Q,
        send: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<Answer<A>> {
        let key = (effect == Effect::Mutation).then(|| self.runtime.ids.ulid().to_string());
        let mut pauses = PAUSES.into_iter();
        loop {
            let mut request = self.request(message.clone(), key.as_deref());
            request.set_timeout(DEADLINE);
            let status = match tokio::time::timeout(DEADLINE, send(request)).await {
                Ok(Ok(response)) => {
                    let trace_id = trace_id(response.metadata());
                    return Ok(Answer {
                        message: response.into_inner(),
                        trace_id,
                    });
                }
                Ok(Err(status)) => status,
                Err(_) => {
                    Status::deadline_exceeded(format!("no answer within {} s", DEADLINE.as_secs()))
                }
            };
            match pauses.next().filter(|_| status.code() == Code::Unavailable) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(self.failure(&status)),
            }
        }
    }

    /// Opens a stream of answers. Without retries: the caller knows where to go on.
    ///
    /// # Errors
    /// The status, so that the caller can tell a lost gateway from a refusal.
    pub async fn stream<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFn(Request<Q>) -> Result<Response<Streaming<A>>, Status>,
    ) -> Result<Answer<Streaming<A>>, Status> {
        let request = self.request(message, None);
        match tokio::time::timeout(DEADLINE, send(request)).await {
            Ok(answer) => answer.map(|response| {
                let trace_id = trace_id(response.metadata());
                Answer {
                    message: response.into_inner(),
                    trace_id,
                }
            }),
            // Worth another try, unlike a deadline that the gateway reports.
            Err(_) => Err(Status::unavailable(format!(
                "no answer within {} s",
                DEADLINE.as_secs()
            ))),
        }
    }

    /// What to tell the user of a status.
    #[must_use]
    pub fn failure(&self, status: &Status) -> Failure {
        if let Some(cause) = lost_connection(status) {
            return Failure::new(
                Exit::Error,
                "GATEWAY_UNREACHABLE",
                format!("no gateway answers at {}", self.endpoint),
            )
            .caused_by(cause)
            .try_this(if self.endpoint.is_loopback() {
                format!(
                    "`{} up` starts one on this machine; --endpoint URL names another",
                    self.program
                )
            } else {
                "check the address and the network; --endpoint URL names another gateway".to_owned()
            });
        }
        let failure = Failure::from_status(status);
        match failure.exit() {
            Exit::Auth => failure
                .or_try(|| format!("`{} login --token-stdin` with a valid token", self.program)),
            _ => failure,
        }
    }

    fn request<Q>(&self, message: Q, key: Option<&str>) -> Request<Q> {
        let mut headers = http::HeaderMap::new();
        trace::inject(&mut headers);
        let mut metadata = MetadataMap::from_headers(headers);
        if let Some(bearer) = &self.bearer {
            metadata.insert("authorization", bearer.clone());
        }
        // A ULID is always valid metadata.
        if let Some(key) = key.and_then(|key| key.parse().ok()) {
            metadata.insert(IDEMPOTENCY_KEY, key);
        }
        Request::from_parts(metadata, http::Extensions::new(), message)
    }
}

/// Checks that a text can be a token, and makes it ready to be sent. It is never repeated.
///
/// # Errors
/// When it is empty, too long or has other characters than visible ASCII.
pub fn check_token(token: &str) -> Result<MetadataValue<Ascii>> {
    const LONGEST: usize = 4096;
    let wrong = |cause: String| {
        Failure::new(Exit::Auth, "TOKEN_MALFORMED", "that is no token")
            .caused_by(cause)
            .try_this("copy the whole token, and nothing else")
    };
    if token.is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    if token.len() > LONGEST {
        return Err(wrong(format!("it has more than {LONGEST} characters")));
    }
    if let Some(at) = token.bytes().position(|byte| !byte.is_ascii_graphic()) {
        return Err(wrong(format!(
            "the character at position {} is not allowed",
            at + 1
        )));
    }
    let mut bearer: MetadataValue<Ascii> = format!("Bearer {token}")
        .parse()
        .map_err(|_| wrong("it cannot be sent".to_owned()))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// The trace id that a gateway put into its answer.
#[must_use]
pub fn trace_id(metadata: &MetadataMap) -> Option<String> {
    metadata
        .get(TRACE_ID_HEADER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

/// The innermost cause, when the status was made on this side because of the connection.
fn lost_connection(status: &Status) -> Option<String> {
    let first = std::error::Error::source(status)?;
    let mut cause = first.to_string();
    let mut next = first.source();
    while let Some(source) = next {
        cause = source.to_string();
        next = source.source();
    }
    Some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_checked_and_never_repeated() {
        for bad in [
            "",
            "two words",
            "line\nfeed",
            "esc\u{1b}",
            "ümlaut",
            &"x".repeat(5000),
        ] {
            let failure = check_token(bad).unwrap_err();
            assert_eq!(failure.exit().code(), 4);
            assert!(bad.is_empty() || !format!("{failure:?}").contains(bad));
        }
        let bearer = check_token("cnl_abc").unwrap();
        assert!(bearer.is_sensitive());
        assert!(!format!("{bearer:?}").contains("abc"));
    }
}
