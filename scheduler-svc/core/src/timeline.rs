//! The future of every node: what is free, and from when until when.
//!
//! It is built from what runs, until its expected end, and from what is reserved. A change
//! costs what the changed nodes cost, never a rebuild of the others.
//!
//! **Invariants**: what is reserved never exceeds what a node has, at any moment (what was
//! *recorded* may: a node can lose a GPU under a run); the places of one claim begin and end
//! together; an answer depends on the claims, not on the order in which they were made.
//!
//! ```text
//! Ask, length ──▶ earliest ──▶ Slot ──▶ Claim ──▶ reserve … shorten | extend | release
//! ```

mod amount;
mod claim;
mod gang;
mod index;
mod lane;

use std::{collections::BTreeSet, time::Duration};

use cnlab_model::Timestamp;

use crate::cluster::{Cluster, Demand, Kind, KindSet, Node, NodeIx, Place, Refused};

pub(crate) use amount::Amount;
pub(crate) use claim::micros;
pub use claim::{Ask, Claim, Slot, Window};
use index::{Class, Index};
use lane::{Gap, Lane};

/// The future of every node.
#[derive(Debug, Clone)]
pub struct Timeline {
    lanes: Vec<Option<Lane>>,
    index: Index,
    now: i64,
}

impl Timeline {
    /// The nodes of a cluster, with nothing on them: what runs is told by [`Self::record`].
    #[must_use]
    pub fn new(cluster: &Cluster, now: Timestamp) -> Self {
        let mut timeline = Self {
            lanes: Vec::new(),
            index: Index::default(),
            now: now.0,
        };
        for (ix, node) in cluster.nodes() {
            timeline.set_node(ix, node);
        }
        timeline
    }

    /// The moment before which everything is past.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        Timestamp(self.now)
    }

    /// Time has passed. It never goes back.
    pub fn pass(&mut self, now: Timestamp) {
        self.now = self.now.max(now.0);
    }

    /// Takes a node in, or what has changed about it. Claims on it stay.
    pub fn set_node(&mut self, ix: NodeIx, node: &Node) {
        if self.lanes.len() <= ix.get() {
            self.lanes.resize_with(ix.get().saturating_add(1), || None);
        }
        if let Some(slot) = self.lanes.get_mut(ix.get()) {
            let lane = slot.get_or_insert_with(|| Lane::new(node, self.now));
            lane.kind = node.kind();
            lane.eligible = node.is_eligible();
            lane.total = Amount::total(node);
        }
        self.touch(ix);
    }

    /// Forgets a node and whatever is claimed on it.
    pub fn remove_node(&mut self, ix: NodeIx) {
        if let Some(slot) = self.lanes.get_mut(ix.get()) {
            *slot = None;
        }
        self.touch(ix);
    }

    /// Whether the nodes that may get new work could hold an ask if they were empty.
    #[must_use]
    pub fn could_hold(&self, ask: &Ask) -> bool {
        let wanted = u32::from(ask.tasks);
        let mut copies: u32 = 0;
        self.usable(ask).any(|(_, lane)| {
            copies = copies.saturating_add(lane.total.copies(&ask.demand, wanted));
            copies >= wanted
        })
    }

    /// The earliest slot for an ask that runs for `length`; of equally early ones the
    /// one that breaks up least room for several GPUs, then the tightest, then the one with
    /// the lowest index. A gang gets the fewest nodes.
    #[must_use]
    pub fn earliest(&self, ask: &Ask, length: Duration, window: Window) -> Option<Slot> {
        self.earliest_among(ask, length, window, None)
    }

    /// The same, where only these nodes are looked at. A gang always needs all of them, and
    /// looks at all.
    #[must_use]
    pub fn earliest_among(
        &self,
        ask: &Ask,
        length: Duration,
        window: Window,
        among: Option<&[NodeIx]>,
    ) -> Option<Slot> {
        let query = Query {
            ask,
            length: micros(length).max(1),
            from: window.from.0.max(self.now),
            latest: window.latest.0,
        };
        if query.from > query.latest {
            return None;
        }
        if ask.tasks > 1 {
            return self.gang(&query);
        }
        let mut best: Option<Found> = None;
        match (ask.only, among) {
            (Some(only), Some(among)) if !among.contains(&only) => {}
            (Some(only), _) => self.improve(&query, only, &mut best),
            (None, Some(among)) => {
                let class = Class::of(&ask.demand);
                for ix in among {
                    let latest = best.as_ref().map_or(query.latest, |best| best.gap.start);
                    if self.index.ready(class, *ix) <= latest {
                        self.improve(&query, *ix, &mut best);
                    }
                }
            }
            (None, None) => {
                let class = Class::of(&ask.demand);
                let kinds = ask.demand.kinds();
                let nodes = self.index.bounds(class, kinds);
                // A good slot first leaves most of the others out.
                if let Some((ix, _)) = nodes.min_by_key(|(_, bounds)| bounds.settled) {
                    self.improve(&query, ix, &mut best);
                }
                for (ix, bounds) in self.index.bounds(class, kinds) {
                    if bounds.ready <= best.as_ref().map_or(query.latest, |best| best.gap.start) {
                        self.improve(&query, ix, &mut best);
                    }
                }
            }
        }
        let best = best?;
        Some(Slot {
            start: Timestamp(best.gap.start),
            places: vec![Place {
                node: best.node,
                gpus: best.gap.left.pick(&ask.demand)?,
            }],
        })
    }

    /// Replaces the best slot so far by one on this node, where that is better.
    fn improve(&self, query: &Query<'_>, node: NodeIx, best: &mut Option<Found>) {
        let demand = &query.ask.demand;
        let Some(lane) = self.open(node, demand.kinds()) else {
            return;
        };
        let latest = best.as_ref().map_or(query.latest, |best| best.gap.start);
        let Some(gap) = lane.earliest(demand, query.length, query.from, latest) else {
            return;
        };
        let found = Found {
            gap,
            breaks: lane.breaks(demand, &gap, query.length),
            node,
        };
        if best
            .as_ref()
            .is_none_or(|best| found.key(demand) < best.key(demand))
        {
            *best = Some(found);
        }
    }

    /// A lane that may get new work of these kinds.
    fn open(&self, node: NodeIx, kinds: KindSet) -> Option<&Lane> {
        let lane = self.lanes.get(node.get())?.as_ref()?;
        (lane.eligible && kinds.admits(lane.kind)).then_some(lane)
    }

    /// The lanes that an ask may use.
    fn usable(&self, ask: &Ask) -> impl Iterator<Item = (NodeIx, &Lane)> {
        let ask = *ask;
        (0_u32..)
            .map(NodeIx)
            .zip(&self.lanes)
            .filter(move |(ix, _)| ask.only.is_none_or(|only| only == *ix))
            .filter_map(move |(ix, lane)| {
                let lane = lane.as_ref()?;
                (lane.eligible && ask.demand.kinds().admits(lane.kind)).then_some((ix, lane))
            })
    }

    /// Holds a claim that fits.
    ///
    /// # Errors
    /// What is short at some moment, or [`Refused::NoNode`]; nothing is changed then.
    pub fn reserve(&mut self, claim: &Claim) -> Result<(), Refused> {
        self.alter_all(claim, |total, held, amount| {
            let held = held.plus(amount).ok_or(Refused::Blocks)?;
            match total.minus(&held) {
                Some(_) => Ok(held),
                None if total.cpu_milli < held.cpu_milli => Err(Refused::Cpu),
                None if total.memory_mib < held.memory_mib => Err(Refused::Memory),
                None => Err(Refused::Blocks),
            }
        })
    }

    /// Notes a claim as a fact, also where it exceeds what the node has.
    ///
    /// # Errors
    /// [`Refused::NoNode`], or [`Refused::Blocks`] where a count would wrap; nothing is
    /// changed then.
    pub fn record(&mut self, claim: &Claim) -> Result<(), Refused> {
        self.alter_all(claim, |_, held, amount| {
            held.plus(amount).ok_or(Refused::Blocks)
        })
    }

    /// Gives back what is left of a claim.
    ///
    /// # Errors
    /// [`Refused::NoNode`], or [`Refused::NotHeld`] for what is not claimed.
    pub fn release(&mut self, claim: &Claim) -> Result<(), Refused> {
        self.alter_all(claim, |_, held, amount| {
            held.minus(amount).ok_or(Refused::NotHeld)
        })
    }

    /// Lets a claim end earlier.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn shorten(&mut self, claim: &mut Claim, until: Timestamp) -> Result<(), Refused> {
        let until = until.max(claim.from);
        if until < claim.until {
            self.release(&Claim {
                from: until,
                ..claim.clone()
            })?;
            claim.until = until;
        }
        Ok(())
    }

    /// Lets a claim end later, as [`Self::reserve`] would.
    ///
    /// # Errors
    /// What is short; nothing is changed then.
    pub fn extend(&mut self, claim: &mut Claim, until: Timestamp) -> Result<(), Refused> {
        if until > claim.until {
            self.reserve(&Claim {
                from: claim.until,
                until,
                ..claim.clone()
            })?;
            claim.until = until;
        }
        Ok(())
    }

    fn alter_all(
        &mut self,
        claim: &Claim,
        change: impl Fn(&Amount, &Amount, &Amount) -> Result<Amount, Refused>,
    ) -> Result<(), Refused> {
        let mut before: Vec<(NodeIx, Lane)> = Vec::new();
        for place in &claim.places {
            let result = self.alter(claim, *place, &change);
            match result {
                Ok(lane) => before.extend(lane.map(|lane| (place.node, lane))),
                Err(refused) => {
                    for (ix, lane) in before.into_iter().rev() {
                        if let Some(slot) = self.lanes.get_mut(ix.get()) {
                            *slot = Some(lane);
                        }
                    }
                    return Err(refused);
                }
            }
        }
        for place in &claim.places {
            self.touch(place.node);
        }
        Ok(())
    }

    /// Changes one lane, and returns what it was before if others may have to follow it.
    fn alter(
        &mut self,
        claim: &Claim,
        place: Place,
        change: impl Fn(&Amount, &Amount, &Amount) -> Result<Amount, Refused>,
    ) -> Result<Option<Lane>, Refused> {
        let missing = Refused::NoNode(place.node);
        let slot = self.lanes.get_mut(place.node.get()).ok_or(missing)?;
        let lane = slot.as_mut().ok_or(missing)?;
        let before = (claim.places.len() > 1).then(|| lane.clone());
        let amount = Amount::of(&claim.demand, place.gpus);
        let total = lane.total;
        lane.alter(claim.from.0, claim.until.0, |held| {
            change(&total, held, &amount)
        })?;
        Ok(before)
    }

    /// What is left of the nodes that an ask may use, now and during all of a run that starts
    /// now.
    pub(crate) fn room(
        &self,
        ask: &Ask,
        length: Duration,
    ) -> impl Iterator<Item = (NodeIx, Amount, Amount)> {
        let end = self.now.saturating_add(micros(length).max(1));
        self.usable(ask).map(move |(ix, lane)| {
            let next = self.now.saturating_add(1);
            (ix, lane.during(self.now, next), lane.during(self.now, end))
        })
    }

    /// The kinds of the nodes that may get new work.
    pub(crate) fn kinds(&self) -> BTreeSet<Kind> {
        let lanes = self.lanes.iter().flatten();
        lanes
            .filter(|lane| lane.eligible)
            .map(|lane| lane.kind)
            .collect()
    }

    /// GPUs of the nodes that an ask may use, if they are of its kinds.
    pub(crate) fn gpus(&self, ask: &Ask) -> usize {
        let anywhere = Ask { only: None, ..*ask };
        let blocks = self.usable(&anywhere).map(|(_, lane)| lane.total.blocks);
        blocks.flatten().filter(|blocks| *blocks > 0).count()
    }

    /// What is left of each node from now on.
    #[cfg(test)]
    pub(crate) fn future(&self) -> Vec<Vec<(i64, Amount)>> {
        let clip = |lane: &Lane| {
            let mut steps: Vec<(i64, Amount)> = Vec::new();
            for (from, left) in lane.steps() {
                if from <= self.now {
                    steps.clear();
                }
                steps.push((from.max(self.now), left));
            }
            steps
        };
        let lanes = self.lanes.iter();
        lanes
            .map(|lane| lane.as_ref().map(clip).unwrap_or_default())
            .collect()
    }

    fn touch(&mut self, ix: NodeIx) {
        let lane = self.lanes.get_mut(ix.get()).and_then(Option::as_mut);
        if let Some(lane) = lane {
            lane.forget(self.now);
            self.index.set(ix, lane);
        } else {
            self.index.clear(ix);
        }
    }
}

struct Query<'a> {
    ask: &'a Ask,
    length: i64,
    from: i64,
    latest: i64,
}

struct Found {
    gap: Gap,
    breaks: u64,
    node: NodeIx,
}

impl Found {
    fn key(&self, demand: &Demand) -> (i64, u64, (u8, u32, u32), NodeIx) {
        let looseness = self.gap.left.looseness(demand);
        (self.gap.start, self.breaks, looseness, self.node)
    }
}

#[cfg(test)]
mod tests;
