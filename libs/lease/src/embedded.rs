//! Keeps leases and counters in this process's memory, with the semantics of the Redis store.
//!
//! For one process that holds everything (`cnlab up`) and for simulations: time is tokio's, so a
//! test with paused time decides when leases run out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::LeaseError;
use crate::ports::{
    Acquired, Claim, Cost, Counter, Cursor, EVENTS_KEPT, Epoch, FENCE_MEMORY, Lease, LeaseExpired,
    LeaseStore, Lost, Rate, Renewal, SWEEP_BATCH, SWEEP_EVERY, Sweep, Taken, check_name, check_ttl,
};

/// One key space of leases and counters in memory; clones share it.
#[derive(Debug, Clone)]
pub struct EmbeddedStore(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    epoch: Epoch,
    leases: BTreeMap<String, Record>,
    /// Leases that nobody has seen running out yet.
    deadlines: BTreeSet<(Instant, u64, String)>,
    /// When to look whether an ended lease can be forgotten.
    forgets: BTreeSet<(Instant, String)>,
    events: VecDeque<(u64, LeaseExpired)>,
    last_event: u64,
    /// Until when each bucket's refill is spoken for.
    marks: BTreeMap<String, Instant>,
    marks_by_time: BTreeSet<(Instant, String)>,
}

#[derive(Debug)]
struct Record {
    /// Empty after a release.
    holder: String,
    /// The highest that ever held the key.
    fence: u64,
    until: Instant,
    forget: Instant,
}

impl State {
    fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            leases: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            forgets: BTreeSet::new(),
            events: VecDeque::new(),
            last_event: 0,
            marks: BTreeMap::new(),
            marks_by_time: BTreeSet::new(),
        }
    }

    /// Writes a lease in place of what was there, with its deadline if it lives.
    fn write(&mut self, key: &str, holder: &str, fence: u64, until: Instant, now: Instant) {
        self.erase(key);
        let forget = until.max(now) + FENCE_MEMORY;
        if until > now {
            self.deadlines.insert((until, fence, key.to_owned()));
        }
        self.forgets.insert((forget, key.to_owned()));
        let record = Record {
            holder: holder.to_owned(),
            fence,
            until,
            forget,
        };
        self.leases.insert(key.to_owned(), record);
    }

    /// Returns the record and whether it was still among the deadlines.
    fn erase(&mut self, key: &str) -> Option<(Record, bool)> {
        let record = self.leases.remove(key)?;
        self.forgets.remove(&(record.forget, key.to_owned()));
        let due = self
            .deadlines
            .remove(&(record.until, record.fence, key.to_owned()));
        Some((record, due))
    }

    fn report(&mut self, key: String, fence: u64) {
        self.last_event += 1;
        self.events
            .push_back((self.last_event, LeaseExpired { key, fence }));
        while self.events.len() as u64 > EVENTS_KEPT {
            self.events.pop_front();
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((when, key)) = self.forgets.first().cloned()
            && when <= now
        {
            self.erase(&key);
        }
    }
}

impl EmbeddedStore {
    /// An empty store. `incarnation` must differ from that of every earlier process, so that
    /// callers notice that its leases are gone; take an id from the runtime.
    #[must_use]
    pub fn new(incarnation: impl Into<String>) -> Self {
        Self(Arc::new(Mutex::new(State::new(Epoch(incarnation.into())))))
    }

    /// Forgets everything, as a restart of the process would: to inject that fault.
    pub fn lose_everything(&self, incarnation: impl Into<String>) {
        *self.state() = State::new(Epoch(incarnation.into()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for EmbeddedStore {
    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquired, LeaseError> {
        claim.check()?;
        check_ttl(ttl)?;
        let now = Instant::now();
        let mut state = self.state();
        if let Some(last) = state.leases.get(&claim.key) {
            let live = last.until > now;
            let stale = Acquired::StaleFence {
                highest: last.fence,
            };
            if claim.fence < last.fence {
                return Ok(stale);
            }
            if last.holder != claim.holder {
                if live {
                    return Ok(Acquired::Held {
                        holder: last.holder.clone(),
                        fence: last.fence,
                        ttl_left: last.until - now,
                    });
                }
                // Equal after a release too, since that clears the holder.
                if claim.fence == last.fence {
                    return Ok(stale);
                }
            }
        }
        if let Some((last, unseen)) = state.erase(&claim.key)
            && unseen
            && last.until <= now
            && last.fence != claim.fence
        {
            state.report(claim.key.clone(), last.fence);
        }
        state.write(&claim.key, &claim.holder, claim.fence, now + ttl, now);
        Ok(Acquired::Acquired)
    }

    async fn renew(&self, batch: &[Claim], ttl: Duration) -> Result<Vec<Renewal>, LeaseError> {
        check_ttl(ttl)?;
        for claim in batch {
            claim.check()?;
        }
        let now = Instant::now();
        let mut state = self.state();
        let mut answers = Vec::with_capacity(batch.len());
        for claim in batch {
            let answer = match state.leases.get(&claim.key) {
                None => Renewal::Lost(Lost::Absent),
                Some(last) if last.fence < claim.fence => Renewal::Lost(Lost::Absent),
                Some(last)
                    if last.fence > claim.fence
                        || (last.holder != claim.holder && !last.holder.is_empty()) =>
                {
                    Renewal::Lost(Lost::Superseded {
                        holder: last.holder.clone(),
                        fence: last.fence,
                    })
                }
                Some(last) if last.holder.is_empty() || last.until <= now => {
                    Renewal::Lost(Lost::Ended)
                }
                Some(_) => {
                    state.write(&claim.key, &claim.holder, claim.fence, now + ttl, now);
                    Renewal::Renewed
                }
            };
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, LeaseError> {
        claim.check()?;
        let now = Instant::now();
        let mut state = self.state();
        let mut held = false;
        if let Some(last) = state.leases.get(&claim.key) {
            let live = last.until > now;
            let own = last.holder == claim.holder && last.fence == claim.fence;
            if !own && (live || last.fence >= claim.fence) {
                return Ok(false);
            }
            held = own && live;
            if let Some((last, true)) = state.erase(&claim.key)
                && !own
            {
                state.report(claim.key.clone(), last.fence);
            }
        }
        // The fence stays, the holder goes: nobody comes back under this fence.
        state.write(&claim.key, "", claim.fence, now, now);
        Ok(held)
    }

    async fn get(&self, key: &str) -> Result<Option<Lease>, LeaseError> {
        check_name("key", key)?;
        let now = Instant::now();
        let state = self.state();
        Ok(state
            .leases
            .get(key)
            .filter(|last| last.until > now)
            .map(|last| Lease {
                holder: last.holder.clone(),
                fence: last.fence,
                ttl_left: last.until - now,
            }))
    }

    async fn sweep(&self, after: &Cursor) -> Result<Sweep, LeaseError> {
        let now = Instant::now();
        let mut state = self.state();
        let (mut at, mut missed) = match &after.0 {
            None => (state.last_event, false),
            Some((epoch, at)) if *epoch == state.epoch => (*at, false),
            Some(_) => (0, true),
        };
        let mut swept = 0;
        while swept < SWEEP_BATCH
            && state
                .deadlines
                .first()
                .is_some_and(|(until, ..)| *until <= now)
            && let Some((_, fence, key)) = state.deadlines.pop_first()
        {
            state.report(key, fence);
            swept += 1;
        }
        state.forget_old(now);
        let mut expired = Vec::new();
        for (number, event) in state.events.iter().filter(|(number, _)| *number > at) {
            if expired.is_empty() && *number > at + 1 {
                missed = true;
            }
            if expired.len() == SWEEP_BATCH {
                break;
            }
            expired.push((*number, event.clone()));
        }
        if let Some((number, _)) = expired.last() {
            at = *number;
        }
        let next_in = if swept == SWEEP_BATCH || expired.len() == SWEEP_BATCH {
            Duration::ZERO
        } else {
            let due = state
                .deadlines
                .first()
                .map(|(until, ..)| until.duration_since(now));
            due.unwrap_or(SWEEP_EVERY).min(SWEEP_EVERY)
        };
        Ok(Sweep {
            expired: expired.into_iter().map(|(_, event)| event).collect(),
            missed,
            cursor: Cursor(Some((state.epoch.clone(), at))),
            epoch: state.epoch.clone(),
            next_in,
        })
    }

    async fn epoch(&self) -> Result<Epoch, LeaseError> {
        Ok(self.state().epoch.clone())
    }
}

#[async_trait]
impl Counter for EmbeddedStore {
    async fn take(&self, key: &str, cost: u64, rate: Rate) -> Result<Taken, LeaseError> {
        check_name("key", key)?;
        let cost = Cost::new(cost, rate)?;
        let now = Instant::now();
        let mut state = self.state();
        // A mark that has passed is the same as none.
        while let Some((when, old)) = state.marks_by_time.first().cloned()
            && when <= now
        {
            state.marks_by_time.pop_first();
            state.marks.remove(&old);
        }
        let window = Duration::from_micros(cost.window_us);
        let before = state.marks.get(key).copied();
        let mark = before.unwrap_or(now).min(now + window) + Duration::from_micros(cost.advance_us);
        let ahead = mark - now;
        if ahead > window {
            return Ok(Taken::Refused {
                retry_after: ahead - window,
            });
        }
        if cost.advance_us > 0 {
            if let Some(before) = before {
                state.marks_by_time.remove(&(before, key.to_owned()));
            }
            state.marks.insert(key.to_owned(), mark);
            state.marks_by_time.insert((mark, key.to_owned()));
        }
        let ahead_us = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
        Ok(Taken::Allowed {
            remaining: cost.remaining(ahead_us),
        })
    }
}
