//! The same request twice has one effect and one answer (INV-7).

use cnlab_db::{
    DbError, Tx,
    idempotency::{self, Begun, Pending},
};
use cnlab_model::{Timestamp, id::UserId};
use serde::{Serialize, de::DeserializeOwned};

use super::App;
use crate::error::SchedulerError;

/// One attempt at a mutating request.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    /// Whose key it is.
    pub(crate) tenant: UserId,
    /// Which method.
    pub(crate) method: &'static str,
    /// Without a key every attempt stands alone.
    pub(crate) key: Option<String>,
    /// The request as it was sent: another one under the same key is refused.
    pub(crate) request: Vec<u8>,
}

/// Whether an attempt is the first; if not, what the first one was answered with.
pub(crate) enum Once<V> {
    First(Option<Pending>),
    Again(Box<V>),
}

impl Attempt {
    /// The request under its key, if it has one.
    pub(crate) fn keyed(&self) -> Option<idempotency::Keyed<'_>> {
        Some(idempotency::Keyed {
            tenant: self.tenant.to_string(),
            method: self.method,
            key: self.key.as_deref()?,
            request: &self.request,
        })
    }

    /// The error of a kept answer that cannot be read.
    pub(crate) fn unreadable(&self, error: &serde_json::Error) -> SchedulerError {
        SchedulerError::Row {
            table: "idempotency",
            id: shown_key(self.key.as_deref().unwrap_or_default()),
            problem: error.to_string(),
        }
    }

    /// First in the transaction of the request.
    pub(crate) async fn begin<V: DeserializeOwned>(
        &self,
        tx: &Tx,
        now: Timestamp,
    ) -> Result<Once<V>, SchedulerError> {
        let Some(key) = &self.key else {
            return Ok(Once::First(None));
        };
        let tenant = self.tenant.to_string();
        match idempotency::begin(tx, &tenant, self.method, key, &self.request, now).await? {
            Begun::Fresh(pending) => Ok(Once::First(Some(pending))),
            Begun::Replay(answer) => {
                let view =
                    serde_json::from_slice(&answer).map_err(|error| self.unreadable(&error))?;
                Ok(Once::Again(Box::new(view)))
            }
        }
    }
}

fn shown_key(key: &str) -> String {
    key.chars().take(40).collect()
}

/// Last in the transaction of the request.
pub(crate) async fn finish(
    tx: &Tx,
    pending: Option<Pending>,
    view: &impl Serialize,
) -> Result<(), SchedulerError> {
    if let Some(pending) = pending {
        let answer = serde_json::to_vec(view).unwrap_or_default();
        idempotency::finish(tx, pending, &answer).await?;
    }
    Ok(())
}

/// Ends a transaction that was only asked whether it is the first.
enum Probe {
    First,
    Failed(SchedulerError),
}

impl From<DbError> for Probe {
    fn from(error: DbError) -> Self {
        Self::Failed(error.into())
    }
}

impl App {
    /// The kept answer of an attempt, if it is a repetition. For requests that fail before
    /// their transaction: what fails now may have succeeded the first time.
    pub(crate) async fn kept_answer<V: DeserializeOwned + Send>(
        &self,
        attempt: &Attempt,
    ) -> Result<Option<V>, SchedulerError> {
        if attempt.key.is_none() {
            return Ok(None);
        }
        let now = self.now();
        let probed = self
            .db
            .write(|tx| async move {
                match attempt.begin(&tx, now).await.map_err(Probe::Failed)? {
                    Once::Again(view) => Ok(*view),
                    // An error, so that nothing of the probe stays.
                    Once::First(_) => Err(Probe::First),
                }
            })
            .await;
        match probed {
            Ok(view) => Ok(Some(view)),
            Err(Probe::First) => Ok(None),
            Err(Probe::Failed(error)) => Err(error),
        }
    }
}
