//! Short memory of answers that may change: fresh for a while, then refreshed beside the
//! request that notices, then forgotten.
//!
//! **Invariant**: no answer is used longer than `valid` after it was asked for, and there
//! are never more than `capacity` of them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// What is remembered.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<V> {
    /// Use it.
    Fresh(V),
    /// Use it, and ask again beside: nobody else was told to.
    Aging(V),
    /// Ask.
    Nothing,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    asked_at: Instant,
    refreshing: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Cache<K, V> {
    entries: Mutex<HashMap<K, Entry<V>>>,
    fresh: Duration,
    valid: Duration,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// Answers are fresh for `fresh` and used for `valid` at most.
    #[must_use]
    pub fn new(fresh: Duration, valid: Duration, capacity: usize) -> Self {
        Self {
            entries: Mutex::default(),
            fresh,
            valid,
            capacity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Entry<V>>> {
        // No code panics under this lock; entries are whole in any case.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered for this key.
    pub fn get(&self, key: &K, now: Instant) -> Lookup<V> {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(key) else {
            return Lookup::Nothing;
        };
        let age = now.saturating_duration_since(entry.asked_at);
        if age < self.fresh {
            return Lookup::Fresh(entry.value.clone());
        }
        if age >= self.valid {
            entries.remove(key);
            return Lookup::Nothing;
        }
        if std::mem::replace(&mut entry.refreshing, true) {
            Lookup::Fresh(entry.value.clone())
        } else {
            Lookup::Aging(entry.value.clone())
        }
    }

    /// Remembers an answer to a question that was asked at this time.
    pub fn put(&self, key: K, value: V, asked_at: Instant) {
        let mut entries = self.lock();
        if entries.len() >= self.capacity && !entries.contains_key(&key) {
            let valid = self.valid;
            entries.retain(|_, entry| asked_at.saturating_duration_since(entry.asked_at) < valid);
            // Still full: forget any one. It is asked for again when needed.
            if entries.len() >= self.capacity
                && let Some(any) = entries.keys().next().cloned()
            {
                entries.remove(&any);
            }
        }
        entries.insert(
            key,
            Entry {
                value,
                asked_at,
                refreshing: false,
            },
        );
    }

    /// The refresh that [`Lookup::Aging`] asked for came to nothing: somebody else may try.
    pub fn refresh_failed(&self, key: &K) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.refreshing = false;
        }
    }

    /// Forgets an answer.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(capacity: usize) -> Cache<u32, &'static str> {
        Cache::new(Duration::from_secs(2), Duration::from_secs(4), capacity)
    }

    #[test]
    fn answers_age_are_refreshed_once_and_end() {
        let cache = cache(10);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        cache.put(1, "a", start);
        assert_eq!(cache.get(&1, start), Lookup::Fresh("a"));
        assert_eq!(cache.get(&1, after(3)), Lookup::Aging("a"));
        assert_eq!(
            cache.get(&1, after(3)),
            Lookup::Fresh("a"),
            "one refresh at a time"
        );
        cache.refresh_failed(&1);
        assert_eq!(cache.get(&1, after(3)), Lookup::Aging("a"));
        assert_eq!(cache.get(&1, after(4)), Lookup::Nothing);
    }

    #[test]
    fn the_capacity_holds() {
        let cache = cache(3);
        let now = Instant::now();
        for key in 0..100 {
            cache.put(key, "x", now);
        }
        assert_eq!(cache.lock().len(), 3);
        assert_eq!(cache.get(&99, now), Lookup::Fresh("x"));
    }
}
