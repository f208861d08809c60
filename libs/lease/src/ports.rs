//! What callers need from a lease store and from a rate counter, whatever stands behind them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::LeaseError;

/// How often a watcher looks for ended leases at the latest; a fourth of the second within which
/// an expiry must be noticed.
pub const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How long a fence is remembered after its lease ended. Long enough for any request that is still
/// under way; the node's own high-water mark, which is for ever, is what makes fences safe.
pub const FENCE_MEMORY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time to live of a lease.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest key or holder name, in bytes.
pub const MAX_NAME: usize = 256;
/// Most leases that are renewed in one round trip; more are sent in several, one after another, so
/// that no batch keeps Redis from other callers for more than a few milliseconds.
pub const MAX_BATCH: usize = 1000;
/// Most expiry events that a store keeps for watchers that lag behind.
pub(crate) const EVENTS_KEPT: u64 = 10_000;
/// Most leases that one sweep ends, and most events that it returns.
pub(crate) const SWEEP_BATCH: usize = 1000;

/// Somebody's claim to a key: what it is, who says so, and under which fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Name of the leased thing, unique within the store's key space.
    pub key: String,
    /// Name of the holder, the same in every repetition of a request.
    pub holder: String,
    /// From the owner's database; grows with every new claim to the key.
    pub fence: u64,
}

impl Claim {
    /// Puts the three parts together.
    #[must_use]
    pub fn new(key: impl Into<String>, holder: impl Into<String>, fence: u64) -> Self {
        Self {
            key: key.into(),
            holder: holder.into(),
            fence,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LeaseError> {
        check_name("key", &self.key)?;
        check_name("holder", &self.holder)
    }
}

/// The answer to a request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The caller holds it from now on for the whole time to live.
    Acquired,
    /// Somebody else does, whose time has not run out.
    Held {
        /// Who.
        holder: String,
        /// Under which fence.
        fence: u64,
        /// For how long still, unless it is renewed.
        ttl_left: Duration,
    },
    /// The key was already held under a higher fence, or under this one by somebody else or by a
    /// holder that released it.
    StaleFence {
        /// The highest fence that held the key.
        highest: u64,
    },
}

/// The answer to a renewal, for each lease of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// It lives for another whole time to live.
    Renewed,
    /// It does not live any more, and was not changed.
    Lost(Lost),
}

/// Why a lease could not be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The store knows nothing of this fence: it lost its data, or the lease was never acquired.
    Absent,
    /// It ran out, or was released.
    Ended,
    /// The key has been acquired by somebody else or under a higher fence.
    Superseded {
        /// Who acquired it last; empty when that one released it.
        holder: String,
        /// Under which fence.
        fence: u64,
    },
}

/// A lease that lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub holder: String,
    /// Under which fence.
    pub fence: u64,
    /// For how long still, unless it is renewed.
    pub ttl_left: Duration,
}

/// The time of a lease ran out without a renewal or a release.
///
/// A hint to look: the same holder may have acquired the key anew meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseExpired {
    /// Which key.
    pub key: String,
    /// Under which fence it was held.
    pub fence: u64,
}

/// Which life of its data a store is in.
///
/// A value that was never seen before means that leases may have been lost: the server lost its
/// data, was restarted (perhaps from an old snapshot), or another one took over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch(pub(crate) String);

impl Epoch {
    /// An epoch that was written down before.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text to write down.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a watcher has read the expiry events of a store, and of which life of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor(pub(crate) Option<(Epoch, u64)>);

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Leases that ran out since the cursor, by whomever they were swept, oldest first.
    pub expired: Vec<LeaseExpired>,
    /// Whether there may have been events that this watcher will never see: the store's data are
    /// in another life than the cursor, or the watcher lagged too far behind.
    pub missed: bool,
    /// Where to read on.
    pub cursor: Cursor,
    /// The present life of the data.
    pub epoch: Epoch,
    /// When to sweep again: zero when more is waiting, [`SWEEP_EVERY`] at most.
    pub next_in: Duration,
}

/// Leases of one key space.
///
/// Every operation may be repeated with the same arguments after
/// [`LeaseError::Unknown`].
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync {
    /// Takes the key for `ttl`, or says who has it.
    ///
    /// The same holder with the same fence is given it again with a full `ttl`, the same holder
    /// with a higher fence moves to that one.
    ///
    /// # Errors
    /// [`LeaseError`]; a refusal is no error.
    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquired, LeaseError>;

    /// Prolongs each lease of `batch` to `ttl` from now; the answers are in the same order.
    /// A lease that ran out is never revived.
    ///
    /// # Errors
    /// [`LeaseError`]; then any part of the batch may have been renewed.
    async fn renew(&self, batch: &[Claim], ttl: Duration) -> Result<Vec<Renewal>, LeaseError>;

    /// Ends the lease, and says whether the caller held it until now.
    ///
    /// Unless somebody else holds the key, the fence is used up: a request to acquire under it
    /// that arrives later is refused.
    ///
    /// # Errors
    /// [`LeaseError`]; not holding it is no error.
    async fn release(&self, claim: &Claim) -> Result<bool, LeaseError>;

    /// The lease on `key`, if it lives.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn get(&self, key: &str) -> Result<Option<Lease>, LeaseError>;

    /// Ends the leases whose time ran out and returns all such events after `after`; a new cursor
    /// starts with what this call ends. [`ExpiryWatch`](crate::ExpiryWatch) is the way to use it.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn sweep(&self, after: &Cursor) -> Result<Sweep, LeaseError>;

    /// The present life of the data.
    ///
    /// # Errors
    /// [`LeaseError`].
    async fn epoch(&self) -> Result<Epoch, LeaseError>;
}

/// How much may be taken: `limit` units at once, refilled evenly over `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Units per window, and the most that can be taken at once.
    pub limit: u64,
    /// The time in which an emptied bucket is full again.
    pub window: Duration,
}

/// The answer of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Go on.
    Allowed {
        /// Units that could be taken now on top.
        remaining: u64,
    },
    /// Too much; nothing was taken.
    Refused {
        /// After this long the same request fits, if nobody else takes meanwhile.
        retry_after: Duration,
    },
}

/// Rate limits that hold across all replicas of a service.
#[async_trait]
pub trait Counter: fmt::Debug + Send + Sync {
    /// Takes `cost` units from the bucket of `key`.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] for a cost above the limit, which could never be allowed; otherwise
    /// as for leases. Units may have been taken after [`LeaseError::Unknown`].
    async fn take(&self, key: &str, cost: u64, rate: Rate) -> Result<Taken, LeaseError>;
}

pub(crate) fn check_name(argument: &'static str, name: &str) -> Result<(), LeaseError> {
    if name.is_empty() || name.len() > MAX_NAME {
        let why = format!("{} bytes, allowed are 1 to {MAX_NAME}", name.len());
        return Err(LeaseError::invalid(argument, why));
    }
    Ok(())
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<(), LeaseError> {
    if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
        return Err(LeaseError::invalid(
            "ttl",
            format!("{ttl:?}, allowed are 1ms to {MAX_TTL:?}"),
        ));
    }
    Ok(())
}

/// A rate in whole microseconds, so that both stores count alike and neither needs fractions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// By how much a request moves the bucket's mark.
    pub(crate) advance_us: u64,
    /// How far the mark may be ahead of the present.
    pub(crate) window_us: u64,
    limit: u64,
}

impl Cost {
    pub(crate) fn new(cost: u64, rate: Rate) -> Result<Self, LeaseError> {
        let longest = Duration::from_secs(366 * 24 * 60 * 60);
        if rate.window < Duration::from_millis(1) || rate.window > longest {
            let why = format!("{:?}, allowed are 1ms to {longest:?}", rate.window);
            return Err(LeaseError::invalid("window", why));
        }
        if cost > rate.limit {
            let why = format!("{cost} is above the limit of {}", rate.limit);
            return Err(LeaseError::invalid("cost", why));
        }
        let window = rate.window.as_micros();
        // Rounded up: never more than the limit per window. A limit of zero allows a cost of zero.
        let advance = (u128::from(cost) * window).div_ceil(u128::from(rate.limit.max(1)));
        let fits =
            |number| u64::try_from(number).map_err(|_| LeaseError::invalid("window", "too long"));
        Ok(Self {
            advance_us: fits(advance)?,
            window_us: fits(window)?,
            limit: rate.limit,
        })
    }

    /// Units left when the mark is `ahead_us` ahead of the present.
    pub(crate) fn remaining(&self, ahead_us: u64) -> u64 {
        let free = u128::from(self.window_us.saturating_sub(ahead_us));
        let units = free * u128::from(self.limit) / u128::from(self.window_us.max(1));
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}
