//! Elects one leader among processes by a lease, with a fence for whatever the leader writes.
//!
//! Invariants:
//! - A term's fence comes from the candidate's database and is taken anew for each term.
//! - A leader counts its time from *before* it sent the last successful renewal, so it steps down
//!   before the store gives the lease to another.
//! - Leading is still only a belief: the database must refuse writes with a lower fence.
//!
//! Nothing is spawned here: a worker calls [`Election::tick`] when it is due.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{Acquired, Claim, LeaseError, LeaseStore, Renewal};

/// Where a candidate gets the fence of a new term: a counter in its database.
#[async_trait]
pub trait FenceSource: Send + Sync {
    /// A number above all that were ever returned.
    ///
    /// # Errors
    /// Whatever the database says.
    async fn next_fence(&self) -> Result<u64, Box<dyn std::error::Error + Send + Sync>>;
}

/// Why a candidate is not as far as it would like to be.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The lease store gave no answer.
    #[error("the election cannot use its lease")]
    Lease(#[from] LeaseError),
    /// No fence for a new term could be had.
    #[error("the election got no fence for a new term")]
    Fence(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a process is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Somebody else leads, or nobody.
    Follower,
    /// This process leads.
    Leader {
        /// The term's fence, to be checked by every write.
        fence: u64,
        /// Until when, unless a renewal succeeds before; on this process's monotonic clock.
        until: Instant,
    },
}

/// The outcome of a tick.
#[derive(Debug)]
pub struct Step {
    /// The role from now on.
    pub role: Role,
    /// After how long to tick again.
    pub wake_in: Duration,
    /// What went wrong, for the log; the next tick tries again.
    pub trouble: Option<ElectionError>,
}

/// One candidate in one election.
#[derive(Debug)]
pub struct Election {
    store: Arc<dyn LeaseStore>,
    key: String,
    candidate: String,
    ttl: Duration,
    role: Role,
    /// The fence of an attempt whose outcome is unknown; it is repeated with the same one.
    pending: Option<u64>,
}

impl Election {
    /// Stands for `key` as `candidate`, a name that no other process has at the same time. A dead
    /// leader is replaced after `ttl` and up to a third more.
    #[must_use]
    pub fn new(
        store: Arc<dyn LeaseStore>,
        key: impl Into<String>,
        candidate: impl Into<String>,
        ttl: Duration,
    ) -> Self {
        Self {
            store,
            key: key.into(),
            candidate: candidate.into(),
            ttl,
            role: Role::Follower,
            pending: None,
        }
    }

    /// The fence of the present term, if this process leads right now.
    #[must_use]
    pub fn leads(&self) -> Option<u64> {
        match self.role {
            Role::Leader { fence, until } if Instant::now() < until => Some(fence),
            Role::Leader { .. } | Role::Follower => None,
        }
    }

    /// Renews the term, or tries to start one.
    pub async fn tick(&mut self, fences: &dyn FenceSource) -> Step {
        let outcome = match self.role {
            Role::Leader { fence, until } => self.hold(fence, until).await,
            Role::Follower => self.stand(fences).await,
        };
        let (wake_in, trouble) = match outcome {
            Ok(wake_in) => (wake_in, None),
            Err(trouble) => (self.pace(), Some(trouble)),
        };
        if self.role != Role::Follower && self.leads().is_none() {
            self.role = Role::Follower;
        }
        Step {
            role: self.role,
            wake_in,
            trouble,
        }
    }

    /// Ends the term at once, so that another candidate need not wait for it to run out.
    ///
    /// # Errors
    /// [`LeaseError`]; this process has stepped down all the same.
    pub async fn resign(&mut self) -> Result<(), LeaseError> {
        let Role::Leader { fence, .. } = std::mem::replace(&mut self.role, Role::Follower) else {
            return Ok(());
        };
        self.store.release(&self.claim(fence)).await.map(drop)
    }

    async fn hold(&mut self, fence: u64, until: Instant) -> Result<Duration, ElectionError> {
        let sent = Instant::now();
        if sent >= until {
            self.role = Role::Follower;
            return Ok(Duration::ZERO);
        }
        let answers = self.store.renew(&[self.claim(fence)], self.ttl).await?;
        if answers == [Renewal::Renewed] {
            self.role = Role::Leader {
                fence,
                until: sent + self.ttl,
            };
            return Ok(self.ttl / 3);
        }
        self.role = Role::Follower;
        Ok(Duration::ZERO)
    }

    async fn stand(&mut self, fences: &dyn FenceSource) -> Result<Duration, ElectionError> {
        if let Some(lease) = self.store.get(&self.key).await?
            && lease.holder != self.candidate
        {
            self.pending = None;
            return Ok(lease.ttl_left.min(self.ttl / 3));
        }
        let fence = match self.pending {
            Some(fence) => fence,
            None => fences.next_fence().await.map_err(ElectionError::Fence)?,
        };
        self.pending = Some(fence);
        let sent = Instant::now();
        let answer = self.store.acquire(&self.claim(fence), self.ttl).await?;
        self.pending = None;
        Ok(match answer {
            Acquired::Acquired => {
                self.role = Role::Leader {
                    fence,
                    until: sent + self.ttl,
                };
                self.ttl / 3
            }
            Acquired::Held { ttl_left, .. } => ttl_left.min(self.ttl / 3),
            Acquired::StaleFence { .. } => self.pace(),
        })
    }

    fn claim(&self, fence: u64) -> Claim {
        Claim::new(&self.key, &self.candidate, fence)
    }

    /// How soon to try again after trouble: several times within a term.
    fn pace(&self) -> Duration {
        self.ttl / 10
    }
}
