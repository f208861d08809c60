//! Follows the expiry events of a store, and notices when its data are in another life.
//!
//! Nothing is spawned here: a worker calls [`ExpiryWatch::tick`] when it is due.

use std::sync::Arc;
use std::time::Duration;

use crate::{Cursor, Epoch, LeaseError, LeaseExpired, LeaseStore, SWEEP_EVERY};

/// Something that the owner of leases must react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A lease ran out.
    Expired(LeaseExpired),
    /// Leases or events may have been lost: compare all rows with the store, and acquire anew
    /// what is missing. Comes once at the start, too, since nobody watched before.
    Reset {
        /// The life of the data that is to be compared with.
        epoch: Epoch,
    },
}

/// A reader of one store's expiry events.
///
/// Each watcher sees every event that happens while it is at work, whichever process swept it.
#[derive(Debug)]
pub struct ExpiryWatch {
    store: Arc<dyn LeaseStore>,
    cursor: Cursor,
}

impl ExpiryWatch {
    /// Starts before the first tick.
    #[must_use]
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        Self {
            store,
            cursor: Cursor::default(),
        }
    }

    /// Sweeps once; returns what happened and after how long to call again, at most
    /// [`SWEEP_EVERY`].
    ///
    /// # Errors
    /// [`LeaseError`]; call again after [`SWEEP_EVERY`], nothing was missed by it.
    pub async fn tick(&mut self) -> Result<(Vec<LeaseEvent>, Duration), LeaseError> {
        let first = self.cursor == Cursor::default();
        let sweep = self.store.sweep(&self.cursor).await?;
        self.cursor = sweep.cursor;
        let mut events = Vec::with_capacity(sweep.expired.len() + 1);
        if first || sweep.missed {
            events.push(LeaseEvent::Reset { epoch: sweep.epoch });
        }
        events.extend(sweep.expired.into_iter().map(LeaseEvent::Expired));
        Ok((events, sweep.next_in.min(SWEEP_EVERY)))
    }

    /// Ticks until something has happened, riding out the time in which the store is away.
    ///
    /// Dropping the future loses nothing: a cursor moves only together with its events.
    ///
    /// # Errors
    /// [`LeaseError`] that waiting does not cure.
    pub async fn next(&mut self) -> Result<Vec<LeaseEvent>, LeaseError> {
        loop {
            let wait = match self.tick().await {
                Ok((events, wait)) if events.is_empty() => wait,
                Ok((events, _)) => return Ok(events),
                Err(error) if error.is_transient() => SWEEP_EVERY,
                Err(error) => return Err(error),
            };
            tokio::time::sleep(wait).await;
        }
    }
}
