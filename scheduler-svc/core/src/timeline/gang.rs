//! Slots for several tasks that begin at one moment.

use std::cmp::Reverse;

use cnlab_model::Timestamp;

use crate::cluster::{NodeIx, Place};

use super::{Amount, Query, Slot, Timeline, lane::Lane};

impl Timeline {
    /// Adds up for how many tasks there is room on each node, over time. A node has room for
    /// more only when one of its claims ends, and for fewer once a run that starts would last
    /// into a new one; between those moments nothing changes.
    pub(super) fn gang(&self, query: &Query<'_>) -> Option<Slot> {
        let demand = &query.ask.demand;
        let wanted = u32::from(query.ask.tasks);
        let room = |lane: &Lane, at: i64| {
            let left = lane.during(at, at.saturating_add(query.length));
            left.copies(demand, wanted)
        };
        let mut total: u32 = 0;
        let mut turns: Vec<(i64, u32, u32)> = Vec::new();
        for (_, lane) in self.usable(query.ask) {
            if lane.total.copies(demand, wanted) == 0 {
                continue;
            }
            let mut last = room(lane, query.from);
            total = total.saturating_add(last);
            let mut moments: Vec<i64> = lane
                .changes(query.from)
                .flat_map(|change| {
                    let too_late = change.saturating_sub(query.length).saturating_add(1);
                    [change, too_late]
                })
                .filter(|moment| *moment > query.from && *moment <= query.latest)
                .collect();
            moments.sort_unstable();
            moments.dedup();
            for moment in moments {
                let now = room(lane, moment);
                if now != last {
                    turns.push((moment, last, now));
                    last = now;
                }
            }
        }
        if total >= wanted {
            return self.gather(query, query.from);
        }
        turns.sort_unstable();
        let mut turns = turns.into_iter().peekable();
        while let Some((at, before, after)) = turns.next() {
            total = total.saturating_sub(before).saturating_add(after);
            let complete = turns.peek().is_none_or(|(next, ..)| *next > at);
            if complete && total >= wanted {
                return self.gather(query, at);
            }
        }
        None
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
