//! The node on which room for one task is cheapest.
//!
//! Nodes are looked at by rising bounds of what they cost, until a bound is above the best that
//! was found. The answer is the same in every order, but where the search of a node is cut off
//! after so many steps (see [`EXACT`]): that finds more, the less there is left to beat.

use std::{cmp::Reverse, collections::BinaryHeap};

use cnlab_model::Timestamp;

use crate::{
    cluster::{Cluster, NodeIx},
    plan::JobId,
};

use super::{
    EXACT, Loss, Newcomer, Runs,
    room::Room,
    victims::{Candidate, cheapest},
};

/// A bound of the lost GPU time, in blocks times microseconds, and for which node.
type Offer<B> = (B, NodeIx);

/// A search of one node was cut off, or could have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DependsOnOrder;

/// A search under way.
#[derive(Debug)]
pub(super) struct Search<'a> {
    runs: &'a Runs,
    cluster: &'a Cluster,
    newcomer: &'a Newcomer,
    now: Timestamp,
    /// The least loss so far, of equal ones on the lowest node.
    pub(super) best: Option<(Loss, NodeIx, Vec<JobId>)>,
}

impl<'a> Search<'a> {
    pub(super) const fn new(
        runs: &'a Runs,
        cluster: &'a Cluster,
        newcomer: &'a Newcomer,
        now: Timestamp,
    ) -> Self {
        Self {
            runs,
            cluster,
            newcomer,
            now,
            best: None,
        }
    }

    /// Looks at the nodes of the offers, whatever bounds those have; before each at a second
    /// bound of it.
    pub(super) fn in_any_order(
        &mut self,
        offers: Vec<Offer<u64>>,
        second: impl Fn(NodeIx) -> Option<u128>,
    ) -> Result<(), DependsOnOrder> {
        self.each(offers, |search, ix| {
            if second(ix).is_none_or(|bound| search.is_beaten_by(bound)) {
                return Ok(());
            }
            let candidates = search.candidates(ix);
            if search.may_be_cut_off(ix, &candidates) {
                return Err(DependsOnOrder);
            }
            search.improve(ix, &candidates);
            Ok(())
        })
    }

    /// Looks at the nodes in the order of these offers.
    pub(super) fn in_order(&mut self, offers: Vec<Offer<u128>>) {
        let Ok(()) = self.each(offers, |search, ix| {
            let candidates = search.candidates(ix);
            search.improve(ix, &candidates);
            Ok::<(), std::convert::Infallible>(())
        });
    }

    fn each<B: Copy + Ord + Into<u128>, E>(
        &mut self,
        mut offers: Vec<Offer<B>>,
        mut look: impl FnMut(&mut Self, NodeIx) -> Result<(), E>,
    ) -> Result<(), E> {
        // The most promising first, then the others that may lose less, in turn.
        let Some(first) = offers.iter().min().copied() else {
            return Ok(());
        };
        look(self, first.1)?;
        offers.retain(|offer| *offer != first && !self.is_beaten_by(offer.0.into()));
        let mut rest: BinaryHeap<_> = offers.into_iter().map(Reverse).collect();
        while let Some(Reverse((bound, ix))) = rest.pop() {
            if self.is_beaten_by(bound.into()) {
                break;
            }
            look(self, ix)?;
        }
        Ok(())
    }

    /// Whether nothing with such a bound can be better than the best so far.
    fn is_beaten_by(&self, bound: u128) -> bool {
        self.best
            .as_ref()
            .is_some_and(|(least, ..)| bound > least.gpu)
    }

    fn candidates(&self, ix: NodeIx) -> Vec<Candidate> {
        self.runs.candidates(ix, self.newcomer.class(), self.now)
    }

    /// Whether the search of a node may end before it has seen everything.
    fn may_be_cut_off(&self, ix: NodeIx, candidates: &[Candidate]) -> bool {
        let demand = &self.newcomer.job.ask.demand;
        candidates.len() > EXACT
            && self
                .cluster
                .node(ix)
                .is_some_and(|node| !Room::free(node).feeds(demand, 1))
    }

    /// Takes the cheapest victims of a node where they lose less than the best so far.
    fn improve(&mut self, ix: NodeIx, candidates: &[Candidate]) {
        let Some(node) = self.cluster.node(ix) else {
            return;
        };
        // Of equal losses the lower node wins, so there an equal one will do.
        let limit = self.best.as_ref().map(|(least, other, _)| {
            if ix < *other {
                least.just_above()
            } else {
                *least
            }
        });
        let demand = &self.newcomer.job.ask.demand;
        if let Some((loss, victims)) = cheapest(&Room::free(node), candidates, demand, 1, limit) {
            self.best = Some((loss, ix, victims));
        }
    }
}
