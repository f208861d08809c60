//! Slots for several tasks that begin at one moment.

use std::cmp::Reverse;

use cnlab_model::Timestamp;

use crate::cluster::{NodeIx, Place};

use super::{Amount, Query, Slot, Timeline, index::Class, lane::Lane};

impl Timeline {
    pub(super) fn gang(&self, query: &Query<'_>) -> Option<Slot> {
        let demand = &query.ask.demand;
        let wanted = u32::from(query.ask.tasks);
        let mut lanes: Vec<Part<'_>> = Vec::new();
        let mut settled: Vec<i64> = Vec::new();
        for (ix, bounds) in self.index.bounds(Class::of(demand), demand.kinds()) {
            let other = query.ask.only.is_some_and(|only| only != ix);
            if other || bounds.ready > query.latest {
                continue;
            }
            let Some(lane) = self.open(ix, demand.kinds()) else {
                continue;
            };
            if lane.total.copies(demand, wanted) > 0 {
                settled.push(bounds.settled);
                lanes.push(Part {
                    lane,
                    ready: bounds.ready,
                });
            }
        }
        let room = |lane: &Lane, at: i64| {
            let left = lane.during(at, at.saturating_add(query.length));
            left.copies(demand, wanted)
        };
        let mut total: u32 = 0;
        for part in lanes.iter().filter(|part| part.ready <= query.from) {
            total = total.saturating_add(room(part.lane, query.from));
            if total >= wanted {
                return self.gather(query, query.from);
            }
        }
        if query.latest <= query.from {
            return None;
        }
        // As many nodes as there are tasks are free for ever from this moment on. It is a
        // guess only, since they may lack processors.
        let last = settled.len().min(query.ask.tasks.into()).saturating_sub(1);
        if settled.is_empty() {
            return None;
        }
        let (_, guess, _) = settled.select_nth_unstable(last);
        let guess = *guess;
        let at = (guess < query.latest)
            .then(|| first_room(query, &lanes, guess, room))
            .flatten()
            .or_else(|| first_room(query, &lanes, query.latest, room))?;
        self.gather(query, at)
    }

    /// Places for a gang at a moment at which there is room: nodes with the most room first,
    /// the tightest that suffices for the rest last.
    fn gather(&self, query: &Query<'_>, start: i64) -> Option<Slot> {
        let demand = &query.ask.demand;
        let mut wanted = u32::from(query.ask.tasks);
        let mut rooms: Vec<(u32, Amount, NodeIx)> = self
            .usable(query.ask)
            .filter_map(|(ix, lane)| {
                let left = lane.during(start, start.saturating_add(query.length));
                let copies = left.copies(demand, wanted);
                (copies > 0).then_some((copies, left, ix))
            })
            .collect();
        rooms.sort_by_key(|(copies, left, ix)| (Reverse(*copies), left.looseness(demand), *ix));
        let mut places = Vec::with_capacity(query.ask.tasks.into());
        while wanted > 0 {
            let most = rooms.first()?.0;
            let index = if most >= wanted {
                // Ordered by room, so that those that suffice come first.
                let suffice = rooms.iter().take_while(|(copies, ..)| *copies >= wanted);
                let tightest = suffice
                    .enumerate()
                    .min_by_key(|(_, (copies, left, ix))| (*copies, left.looseness(demand), *ix));
                tightest?.0
            } else {
                0
            };
            let (copies, mut left, node) = rooms.remove(index);
            for _ in 0..copies.min(wanted) {
                let gpus = left.pick(demand)?;
                left = left.minus(&Amount::of(demand, gpus))?;
                places.push(Place { node, gpus });
            }
            wanted = wanted.saturating_sub(copies);
        }
        Some(Slot {
            start: Timestamp(start),
            places,
        })
    }
}

struct Part<'a> {
    lane: &'a Lane,
    ready: i64,
}

/// The first moment until `latest` at which there is room for all tasks. A node has room for
/// more only when one of its claims ends, and for fewer once a run that starts would last
/// into a new one; between those moments nothing changes.
fn first_room(
    query: &Query<'_>,
    lanes: &[Part<'_>],
    latest: i64,
    room: impl Fn(&Lane, i64) -> u32,
) -> Option<i64> {
    let wanted = u32::from(query.ask.tasks);
    let mut total: u32 = 0;
    let mut turns: Vec<(i64, u32, u32)> = Vec::new();
    let mut moments: Vec<i64> = Vec::new();
    for Part { lane, ready } in lanes {
        if *ready > latest {
            continue;
        }
        let mut last = room(lane, query.from);
        total = total.saturating_add(last);
        moments.clear();
        let changes = lane.changes(query.from);
        moments.extend(changes.flat_map(|change| {
            let too_late = change.saturating_sub(query.length).saturating_add(1);
            [change, too_late]
        }));
        moments.retain(|moment| *moment > query.from && *moment >= *ready && *moment <= latest);
        moments.sort_unstable();
        moments.dedup();
        for moment in &moments {
            let now = room(lane, *moment);
            if now != last {
                turns.push((*moment, last, now));
                last = now;
            }
        }
    }
    turns.sort_unstable();
    let mut turns = turns.into_iter().peekable();
    while let Some((at, before, after)) = turns.next() {
        total = total.saturating_sub(before).saturating_add(after);
        let complete = turns.peek().is_none_or(|(next, ..)| *next > at);
        if complete && total >= wanted {
            return Some(at);
        }
    }
    None
}
