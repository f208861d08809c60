//! The best node for a demand without looking at every node.
//!
//! **Invariant**: an answer equals that of [`scan`](crate::placement::scan) with the same rule
//! on the same cluster.
//!
//! Tasks come in many copies of few demands, and an operation changes one node. So the index
//! keeps the rank of every node for every demand that was asked lately: a column. A change of a
//! node costs its rank in each column, for which a rule can share work between the demands; a
//! question costs a walk down a tree of maxima.
//!
//! ```text
//! take, give, add, … ─▶ Cluster, node is marked
//! place(demand) ─▶ marked nodes: Rule::ranks ─▶ columns ─▶ maximum of the demand's column
//! ```
//!
//! A demand that was not asked before costs the ranks of all nodes once. A column that nobody
//! asks for is dropped when keeping it has cost about as much as that, so that at no time more
//! than about twice the least possible work was done for it.

mod columns;

use std::collections::BTreeMap;

use crate::{
    cluster::{Cluster, Demand, MAX_GPUS, Node, NodeIx, Place, Refused},
    placement::{Choice, Rank, Rule},
};

use columns::Columns;

/// A column is kept for this many changes per node without a question. The ranks of one node
/// cost about this many times as much for a single demand as among many.
const PATIENCE: u64 = 4;

/// How many changes pass between two searches for columns to drop.
const SWEEP: u64 = 1_024;

/// A cluster and the ranks of its nodes.
#[derive(Debug, Clone)]
pub struct Index<R> {
    rule: R,
    cluster: Cluster,
    columns: Columns,
    known: BTreeMap<Demand, usize>,
    /// The demands with a column, the number of the column, and when it was asked last. An
    /// entry of `known` is a position in these.
    demands: Vec<Demand>,
    numbers: Vec<usize>,
    asked: Vec<u64>,
    marked: Vec<NodeIx>,
    is_marked: Vec<bool>,
    changes: u64,
    swept: u64,
    ranks: Vec<Rank>,
}

impl<R: Rule> Index<R> {
    /// An index over a cluster.
    #[must_use]
    pub fn new(cluster: Cluster, rule: R) -> Self {
        let mut columns = Columns::default();
        columns.grow(cluster.bound());
        Self {
            rule,
            columns,
            known: BTreeMap::new(),
            demands: Vec::new(),
            numbers: Vec::new(),
            asked: Vec::new(),
            marked: Vec::new(),
            is_marked: vec![false; cluster.bound()],
            changes: 0,
            swept: 0,
            ranks: Vec::new(),
            cluster,
        }
    }

    /// The cluster as it is now.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The rule that ranks.
    #[must_use]
    pub const fn rule(&self) -> &R {
        &self.rule
    }

    /// Ranks by another rule from now on. Every rank is forgotten.
    pub fn set_rule(&mut self, rule: R) {
        let cluster = std::mem::take(&mut self.cluster);
        *self = Self::new(cluster, rule);
    }

    /// How many demands have a column.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.demands.len()
    }

    /// The best place for a demand. Nothing is taken.
    pub fn place(&mut self, demand: &Demand) -> Option<Choice> {
        let number = self.column(demand);
        let (ix, rank) = self.columns.best(number)?;
        self.choice(ix, rank, demand)
    }

    /// The best place for a demand among the nodes that a filter lets through.
    pub fn place_where(
        &mut self,
        demand: &Demand,
        admits: impl Fn(NodeIx, &Node) -> bool,
    ) -> Option<Choice> {
        let number = self.column(demand);
        let cluster = &self.cluster;
        let admits = |ix| node(cluster, ix).is_some_and(|(ix, node)| admits(ix, node));
        let (ix, rank) = self.columns.best_where(number, admits)?;
        self.choice(ix, rank, demand)
    }

    /// See [`Cluster::take`].
    ///
    /// # Errors
    /// As there.
    pub fn take(&mut self, place: Place, demand: &Demand) -> Result<(), Refused> {
        self.cluster.take(place, demand)?;
        self.mark(place.node);
        Ok(())
    }

    /// See [`Cluster::give`].
    ///
    /// # Errors
    /// As there.
    pub fn give(&mut self, place: Place, demand: &Demand) -> Result<(), Refused> {
        self.cluster.give(place, demand)?;
        self.mark(place.node);
        Ok(())
    }

    /// See [`Cluster::add`].
    ///
    /// # Errors
    /// As there.
    pub fn add(&mut self, node: Node) -> Result<NodeIx, Refused> {
        let ix = self.cluster.add(node)?;
        self.columns.grow(self.cluster.bound());
        self.is_marked.resize(self.cluster.bound(), false);
        self.mark(ix);
        Ok(ix)
    }

    /// See [`Cluster::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, ix: NodeIx) -> Result<Node, Refused> {
        let node = self.cluster.remove(ix)?;
        self.mark(ix);
        Ok(node)
    }

    /// See [`Cluster::set_eligible`].
    ///
    /// # Errors
    /// As there.
    pub fn set_eligible(&mut self, ix: NodeIx, eligible: bool) -> Result<(), Refused> {
        self.cluster.set_eligible(ix, eligible)?;
        self.mark(ix);
        Ok(())
    }

    /// See [`Cluster::set_total`].
    ///
    /// # Errors
    /// As there.
    pub fn set_total(
        &mut self,
        ix: NodeIx,
        cpu_milli: u32,
        memory_mib: u32,
        blocks: [u8; MAX_GPUS],
    ) -> Result<(), Refused> {
        self.cluster.set_total(ix, cpu_milli, memory_mib, blocks)?;
        self.mark(ix);
        Ok(())
    }

    fn choice(&self, ix: usize, rank: Rank, demand: &Demand) -> Option<Choice> {
        let (node, state) = node(&self.cluster, ix)?;
        let gpus = self.rule.gpus(state, demand)?;
        Some(Choice {
            place: Place { node, gpus },
            rank,
        })
    }

    fn mark(&mut self, ix: NodeIx) {
        if let Some(marked) = self.is_marked.get_mut(ix.get())
            && !std::mem::replace(marked, true)
        {
            self.marked.push(ix);
        }
    }

    /// The number of the column of a demand, with every rank as it is now.
    fn column(&mut self, demand: &Demand) -> usize {
        self.repair();
        if let Some(&at) = self.known.get(demand) {
            if let Some(asked) = self.asked.get_mut(at) {
                *asked = self.changes;
            }
            return self.numbers.get(at).copied().unwrap_or_default();
        }
        let number = self.columns.open();
        self.columns.fill(number, |ix| {
            node(&self.cluster, ix).map_or(0, |(_, node)| self.rule.rank(node, demand))
        });
        self.known.insert(*demand, self.demands.len());
        self.demands.push(*demand);
        self.numbers.push(number);
        self.asked.push(self.changes);
        number
    }

    /// Ranks the marked nodes anew.
    fn repair(&mut self) {
        for ix in self.marked.drain(..) {
            if let Some(marked) = self.is_marked.get_mut(ix.get()) {
                *marked = false;
            }
            self.ranks.clear();
            self.ranks.resize(self.demands.len(), 0);
            if let Some(node) = self.cluster.node(ix) {
                self.rule.ranks(node, &self.demands, &mut self.ranks);
            }
            for (number, rank) in self.numbers.iter().zip(&self.ranks) {
                self.columns.set(*number, ix.get(), *rank);
            }
            self.changes = self.changes.saturating_add(1);
        }
        if self.changes.saturating_sub(self.swept) >= SWEEP {
            self.swept = self.changes;
            self.sweep();
        }
    }

    /// Drops the columns that nobody asks for.
    fn sweep(&mut self) {
        let nodes = u64::try_from(self.cluster.bound()).unwrap_or(u64::MAX);
        let patience = nodes.saturating_mul(PATIENCE).max(SWEEP);
        let mut at = 0;
        while let (Some(demand), Some(asked)) = (self.demands.get(at), self.asked.get(at)) {
            if self.changes.saturating_sub(*asked) <= patience {
                at = at.saturating_add(1);
                continue;
            }
            self.known.remove(demand);
            self.demands.swap_remove(at);
            self.asked.swap_remove(at);
            self.columns.close(self.numbers.swap_remove(at));
            if let Some(moved) = self.demands.get(at) {
                self.known.insert(*moved, at);
            }
        }
    }
}

fn node(cluster: &Cluster, ix: usize) -> Option<(NodeIx, &Node)> {
    let ix = NodeIx(u32::try_from(ix).ok()?);
    Some((ix, cluster.node(ix)?))
}

#[cfg(test)]
mod tests;
