//! Keeps leases and counters in Redis, each operation being one Lua script on one connection.
//!
//! All keys of a key space carry its name as hash tag, so that it also lives on a cluster. Redis
//! need not keep anything on disk: what a loss of its data means is told by the epoch.

mod link;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Script;
use async_trait::async_trait;

use crate::LeaseError;
use crate::ports::{
    Acquired, Claim, Cost, Counter, Cursor, EVENTS_KEPT, Epoch, FENCE_MEMORY, Lease, LeaseExpired,
    LeaseStore, Lost, MAX_BATCH, Rate, Renewal, SWEEP_BATCH, SWEEP_EVERY, Sweep, Taken, check_name,
    check_ttl,
};

use link::Link;
pub use link::RedisOptions;

macro_rules! script {
    ($name:ident, $($part:literal),+) => {
        static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", $part))),+)));
    };
}

script!(ACQUIRE, "prelude.lua", "acquire.lua");
script!(RENEW, "prelude.lua", "renew.lua");
script!(RELEASE, "prelude.lua", "release.lua");
script!(GET, "prelude.lua", "get.lua");
script!(SWEEP, "prelude.lua", "sweep.lua");
script!(TAKE, "take.lua");

/// One key space of leases and counters in a Redis server.
///
/// Clones, and the spaces made by [`space`](Self::space), share one connection.
#[derive(Debug, Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    space: String,
}

impl RedisStore {
    /// Prepares a key space in the server at `url` (`redis://…`). It connects at the first request,
    /// and again whenever the connection was lost.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] for a URL or a space that cannot be used.
    pub fn new(url: &str, space: &str, options: RedisOptions) -> Result<Self, LeaseError> {
        let link = Arc::new(Link::new(url, options)?);
        Self {
            link,
            space: String::new(),
        }
        .space(space)
    }

    /// Another key space over the same connection.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] for an empty name or one with braces, which would break the hash
    /// tag.
    pub fn space(&self, space: &str) -> Result<Self, LeaseError> {
        check_name("space", space)?;
        if space.contains(['{', '}']) {
            return Err(LeaseError::invalid("space", "it contains a brace"));
        }
        Ok(Self {
            link: Arc::clone(&self.link),
            space: space.to_owned(),
        })
    }

    fn key(&self, part: &str) -> String {
        format!("{{{}}}:{part}", self.space)
    }

    fn lease_key(&self, name: &str) -> String {
        self.key(&format!("lease:{name}"))
    }

    async fn sweep_raw(&self, after: &Cursor, batch: usize) -> Result<RawSweep, LeaseError> {
        let (seen, at) = match &after.0 {
            Some((epoch, at)) => (epoch.as_str(), *at),
            None => ("", 0),
        };
        let mut call = SWEEP.prepare_invoke();
        call.key(self.key("epoch"))
            .key(self.key("deadlines"))
            .key(self.key("events"))
            .arg(seen)
            .arg(at)
            .arg(batch)
            .arg(EVENTS_KEPT);
        self.link.run("sweep", &call).await
    }
}

type RawSweep = (String, u64, u8, u8, Vec<String>);

#[async_trait]
impl LeaseStore for RedisStore {
    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquired, LeaseError> {
        claim.check()?;
        check_ttl(ttl)?;
        let mut call = ACQUIRE.prepare_invoke();
        call.key(self.lease_key(&claim.key))
            .key(self.key("deadlines"))
            .key(self.key("events"))
            .arg(&claim.key)
            .arg(&claim.holder)
            .arg(digits(claim.fence))
            .arg(millis(ttl))
            .arg(millis(FENCE_MEMORY))
            .arg(EVENTS_KEPT);
        let (outcome, holder, fence, left): (String, String, String, u64) =
            self.link.run("acquire", &call).await?;
        let fence = parse_fence("acquire", &fence)?;
        match outcome.as_str() {
            "acquired" => Ok(Acquired::Acquired),
            "held" => Ok(Acquired::Held {
                holder,
                fence,
                ttl_left: Duration::from_millis(left),
            }),
            "stale" => Ok(Acquired::StaleFence { highest: fence }),
            other => Err(unexpected("acquire", other)),
        }
    }

    async fn renew(&self, batch: &[Claim], ttl: Duration) -> Result<Vec<Renewal>, LeaseError> {
        check_ttl(ttl)?;
        for claim in batch {
            claim.check()?;
        }
        let mut answers = Vec::with_capacity(batch.len());
        for part in batch.chunks(MAX_BATCH) {
            let mut call = RENEW.prepare_invoke();
            call.key(self.key("deadlines"))
                .arg(millis(ttl))
                .arg(millis(FENCE_MEMORY));
            for claim in part {
                call.key(self.lease_key(&claim.key))
                    .arg(&claim.key)
                    .arg(&claim.holder)
                    .arg(digits(claim.fence));
            }
            let raw: Vec<(String, String, String)> = self.link.run("renew", &call).await?;
            if raw.len() != part.len() {
                let count = format!("{} answers for {} leases", raw.len(), part.len());
                return Err(unexpected("renew", &count));
            }
            for (outcome, holder, fence) in raw {
                answers.push(match outcome.as_str() {
                    "renewed" => Renewal::Renewed,
                    "absent" => Renewal::Lost(Lost::Absent),
                    "ended" => Renewal::Lost(Lost::Ended),
                    "superseded" => Renewal::Lost(Lost::Superseded {
                        holder,
                        fence: parse_fence("renew", &fence)?,
                    }),
                    other => return Err(unexpected("renew", other)),
                });
            }
        }
        Ok(answers)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, LeaseError> {
        claim.check()?;
        let mut call = RELEASE.prepare_invoke();
        call.key(self.lease_key(&claim.key))
            .key(self.key("deadlines"))
            .key(self.key("events"))
            .arg(&claim.key)
            .arg(&claim.holder)
            .arg(digits(claim.fence))
            .arg(millis(FENCE_MEMORY))
            .arg(EVENTS_KEPT);
        let held: u8 = self.link.run("release", &call).await?;
        Ok(held == 1)
    }

    async fn get(&self, key: &str) -> Result<Option<Lease>, LeaseError> {
        check_name("key", key)?;
        let mut call = GET.prepare_invoke();
        call.key(self.lease_key(key));
        let (holder, fence, left): (String, String, u64) = self.link.run("get", &call).await?;
        if left == 0 {
            return Ok(None);
        }
        Ok(Some(Lease {
            holder,
            fence: parse_fence("get", &fence)?,
            ttl_left: Duration::from_millis(left),
        }))
    }

    async fn sweep(&self, after: &Cursor) -> Result<Sweep, LeaseError> {
        let (epoch, at, missed, more, members) = self.sweep_raw(after, SWEEP_BATCH).await?;
        let mut expired = Vec::with_capacity(members.len());
        for member in members {
            let (fence, key) = member
                .split_once(' ')
                .ok_or_else(|| unexpected("sweep", &member))?;
            expired.push(LeaseExpired {
                key: key.to_owned(),
                fence: parse_fence("sweep", fence)?,
            });
        }
        let epoch = Epoch(epoch);
        Ok(Sweep {
            expired,
            missed: missed == 1,
            cursor: Cursor(Some((epoch.clone(), at))),
            epoch,
            next_in: if more == 1 {
                Duration::ZERO
            } else {
                SWEEP_EVERY
            },
        })
    }

    async fn epoch(&self) -> Result<Epoch, LeaseError> {
        let (epoch, ..) = self.sweep_raw(&Cursor::default(), 0).await?;
        Ok(Epoch(epoch))
    }
}

#[async_trait]
impl Counter for RedisStore {
    async fn take(&self, key: &str, cost: u64, rate: Rate) -> Result<Taken, LeaseError> {
        check_name("key", key)?;
        let cost = Cost::new(cost, rate)?;
        let mut call = TAKE.prepare_invoke();
        call.key(self.key(&format!("rate:{key}")))
            .arg(cost.advance_us)
            .arg(cost.window_us);
        let (allowed, micros): (u8, u64) = self.link.run("take", &call).await?;
        Ok(match allowed {
            1 => Taken::Allowed {
                remaining: cost.remaining(micros),
            },
            _ => Taken::Refused {
                retry_after: Duration::from_micros(micros),
            },
        })
    }
}

/// As many digits as the largest fence has, so that the scripts can compare fences as text.
fn digits(fence: u64) -> String {
    format!("{fence:020}")
}

fn parse_fence(operation: &'static str, text: &str) -> Result<u64, LeaseError> {
    text.parse().map_err(|_| unexpected(operation, text))
}

/// Whole milliseconds, rounded up: a lease may live a little longer, never shorter.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn unexpected(operation: &'static str, answer: &str) -> LeaseError {
    LeaseError::Fault {
        operation,
        cause: format!("unexpected answer {answer:?}").into(),
    }
}
