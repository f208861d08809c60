//! Who a browser's session belongs to, remembered for less than five seconds.

use std::{sync::Arc, time::Duration};

use cnlab_model::id::{ServerId, UserId};
use cnlab_service::runtime::Tasks;
use tokio::time::Instant;

use crate::{
    auth::hash,
    cache::{Cache, Lookup},
    ports::{NewSession, PortError, Sessions},
};

const FRESH: Duration = Duration::from_secs(2);
const VALID: Duration = Duration::from_secs(4);
const CAPACITY: usize = 50_000;
/// Longer ones are none of ours.
const LONGEST: usize = 512;

type Key = ([u8; 32], ServerId);

/// Checks sessions.
pub struct SessionTable {
    port: Arc<dyn Sessions>,
    known: Cache<Key, UserId>,
    tasks: Tasks,
}

impl std::fmt::Debug for SessionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionTable")
    }
}

impl SessionTable {
    /// Asks this port.
    #[must_use]
    pub fn new(port: Arc<dyn Sessions>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            port,
            known: Cache::new(FRESH, VALID, CAPACITY),
            tasks,
        })
    }

    /// Whose session this is, if it is valid for this server.
    ///
    /// # Errors
    /// [`PortError::Refused`] when it is not valid, or no longer.
    pub async fn check(
        self: &Arc<Self>,
        session: &str,
        server: ServerId,
    ) -> Result<UserId, PortError> {
        if session.len() > LONGEST {
            return Err(PortError::Refused);
        }
        let key = (hash(session), server);
        match self.known.get(&key, Instant::now()) {
            Lookup::Fresh(user) => Ok(user),
            Lookup::Aging(user) => {
                let (table, session) = (Arc::clone(self), session.to_owned());
                self.tasks.spawn("session refresh", async move {
                    if table.ask(key, &session).await.is_err() {
                        table.known.refresh_failed(&key);
                    }
                });
                Ok(user)
            }
            Lookup::Nothing => self.ask(key, session).await,
        }
    }

    async fn ask(&self, key: Key, session: &str) -> Result<UserId, PortError> {
        let asked_at = Instant::now();
        let answer = self.port.authenticate(session, key.1).await;
        match answer {
            Ok(user) => self.known.put(key, user, asked_at),
            Err(PortError::Refused) => self.known.forget(&key),
            Err(PortError::Unavailable) => {}
        }
        answer
    }

    /// Uses a sign-in code up.
    ///
    /// # Errors
    /// [`PortError::Refused`] when it is unknown, used, expired or for another server.
    pub async fn redeem(&self, code: &str, server: ServerId) -> Result<NewSession, PortError> {
        if code.is_empty() || code.len() > LONGEST {
            return Err(PortError::Refused);
        }
        self.port.redeem(code, server).await
    }
}
