//! What the gateway needs to know from others.

use async_trait::async_trait;
use cnlab_model::{
    Timestamp,
    id::{ServerId, UserId},
};
use cnlab_service::Caller;
use thiserror::Error;

/// Why a question got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PortError {
    /// The answer is no: unknown, expired, revoked, or not for this server.
    #[error("refused")]
    Refused,
    /// Nobody answered, so nothing is known.
    #[error("not reachable")]
    Unavailable,
}

/// Who is behind a token.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The account of a token that is valid now.
    async fn authenticate(&self, token: &str) -> Result<Caller, PortError>;
}

/// A new session.
#[derive(Clone)]
pub struct NewSession {
    /// The secret for the cookie.
    pub secret: String,
    /// When it ends at the latest.
    pub expires_at: Option<Timestamp>,
}

impl std::fmt::Debug for NewSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSession")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Browser sessions, each for one server.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Uses a sign-in code up.
    async fn redeem(&self, code: &str, server: ServerId) -> Result<NewSession, PortError>;
    /// Whose session this is, if it is valid for this server now.
    async fn authenticate(&self, session: &str, server: ServerId) -> Result<UserId, PortError>;
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Whose it is.
    pub owner: UserId,
    /// The node's notebook port, such as `http://127.0.0.1:7102`; none while no node runs it.
    pub endpoint: Option<String>,
    /// The fence of its grant: the node refuses another one.
    pub fence: u64,
    /// Whether its page answers.
    pub ready: bool,
    /// What to tell a visitor while it does not.
    pub state_text: String,
}

/// Where servers are.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Where this server is now. [`PortError::Refused`] means that there is none.
    async fn resolve(&self, server: ServerId) -> Result<Location, PortError>;
}
