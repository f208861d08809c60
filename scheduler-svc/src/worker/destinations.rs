//! Who is being told something, and who did not answer in time.
//!
//! **Invariant**: one destination never has more calls than [`EACH`], and one that did not
//! answer in time has one at a time, after a rest that grows; so a frozen node or a hung
//! billing service holds up nobody else.

use std::{collections::BTreeMap, time::Duration};

use cnlab_db::outbox::Room;
use cnlab_model::Timestamp;

/// Most calls to one destination side by side.
pub(super) const EACH: u64 = 8;
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(10);

/// How a call ended, as far as that says something of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It answered, or could be seen to be away.
    Answered,
    /// It did not answer in time.
    TimedOut,
    /// It was not asked to the end.
    Unknown,
}

/// The destinations that something is known of.
#[derive(Debug, Default)]
pub(super) struct Destinations(BTreeMap<String, Destination>);

#[derive(Debug, Default)]
struct Destination {
    calls: u64,
    /// Rounds of calls that were not answered in time, one after the other.
    slow: u32,
    rests_until: Option<Timestamp>,
}

impl Destination {
    fn room(&self, now: Timestamp) -> u64 {
        if self.rests_until.is_some_and(|until| now < until) {
            return 0;
        }
        let most = if self.slow > 0 { 1 } else { EACH };
        most.saturating_sub(self.calls)
    }
}

impl Destinations {
    /// What may be handed out now, `free` at most.
    pub(super) fn room(&self, free: u64, now: Timestamp) -> Room {
        let of = self.0.iter();
        Room {
            all: free,
            each: EACH,
            of: of
                .map(|(name, destination)| (name.clone(), destination.room(now)))
                .collect(),
        }
    }

    /// A call begins.
    pub(super) fn begin(&mut self, name: &str) {
        let destination = self.0.entry(name.to_owned()).or_default();
        destination.calls = destination.calls.saturating_add(1);
    }

    /// A call ended.
    pub(super) fn end(&mut self, name: &str, ended: Ended, now: Timestamp) {
        let Some(destination) = self.0.get_mut(name) else {
            return;
        };
        destination.calls = destination.calls.saturating_sub(1);
        match ended {
            Ended::Answered => {
                destination.slow = 0;
                destination.rests_until = None;
            }
            // Of calls that went out together, one counts.
            Ended::TimedOut if destination.rests_until.is_none_or(|until| until <= now) => {
                let doubled = destination.slow.min(10);
                destination.slow = destination.slow.saturating_add(1);
                let rest = FIRST_REST.saturating_mul(1 << doubled).min(LONGEST_REST);
                destination.rests_until = Some(now.plus(rest));
            }
            Ended::TimedOut | Ended::Unknown => {}
        }
        if destination.calls == 0 && destination.slow == 0 {
            self.0.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(destinations: &Destinations, now: Timestamp) -> Option<u64> {
        destinations.room(32, now).of.get("a").copied()
    }

    #[test]
    fn one_destination_has_so_many_calls_and_no_more() {
        let now = Timestamp(0);
        let mut all = Destinations::default();
        assert_eq!((all.room(32, now).all, all.room(32, now).each), (32, EACH));
        for _ in 0..EACH {
            all.begin("a");
        }
        assert_eq!(room(&all, now), Some(0));
        all.end("a", Ended::Unknown, now);
        assert_eq!(room(&all, now), Some(1));
        for _ in 1..EACH {
            all.end("a", Ended::Answered, now);
        }
        assert_eq!(room(&all, now), None, "nothing is kept of who answers");
    }

    #[test]
    fn who_did_not_answer_rests_and_is_then_asked_once() {
        let mut now = Timestamp(0);
        let mut all = Destinations::default();
        for _ in 0..EACH {
            all.begin("a");
        }
        for _ in 0..EACH {
            all.end("a", Ended::TimedOut, now);
        }
        // As one: the first rest, not the eighth.
        assert_eq!(room(&all, now), Some(0));
        now = now.plus(FIRST_REST);
        for _ in 0..10 {
            assert_eq!(room(&all, now), Some(1));
            all.begin("a");
            assert_eq!(room(&all, now), Some(0));
            all.end("a", Ended::TimedOut, now);
            assert_eq!(room(&all, now), Some(0));
            now = now.plus(LONGEST_REST);
        }
        all.begin("a");
        all.end("a", Ended::Answered, now);
        assert_eq!(room(&all, now), None);
    }
}
