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
//! A demand that has no column costs the ranks of all nodes once. There is a limit of columns;
//! beyond it the one that was not asked for the longest is given away.

mod columns;
mod demands;

use crate::{
    cluster::{Cluster, Demand, MAX_GPUS, Node, NodeIx, Place, Refused},
    placement::{Choice, Rank, Rule},
};

use columns::Columns;
use demands::{Demands, Found};

/// The limit of columns unless another one is wanted. A change of a node takes a few
/// nanoseconds for each, and each takes a byte per node.
pub const COLUMNS: usize = 2_048;

/// A cluster and the ranks of its nodes.
#[derive(Debug, Clone)]
pub struct Index<R> {
    rule: R,
    cluster: Cluster,
    columns: Columns,
    demands: Demands,
    /// The nodes that changed since the last question.
    marked: Vec<NodeIx>,
    is_marked: Vec<bool>,
    /// Ranks of one node: for each class of demands, then for each column.
    of_classes: Vec<Rank>,
    ranks: Vec<Rank>,
}

impl<R: Rule> Index<R> {
    /// An index over a cluster, with at most [`COLUMNS`] columns.
    #[must_use]
    pub fn new(cluster: Cluster, rule: R) -> Self {
        Self::with_columns(cluster, rule, COLUMNS)
    }

    /// An index over a cluster with at most this many columns, but at least one.
    #[must_use]
    pub fn with_columns(cluster: Cluster, rule: R, limit: usize) -> Self {
        let mut columns = Columns::default();
        columns.grow(cluster.bound());
        Self {
            rule,
            columns,
            demands: Demands::new(limit),
            marked: Vec::new(),
            is_marked: vec![false; cluster.bound()],
            of_classes: Vec::new(),
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
        *self = Self::with_columns(cluster, rule, self.demands.limit());
    }

    /// How many demands have a column.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.demands.count()
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

    /// The column of a demand, with every rank as it is now.
    fn column(&mut self, demand: &Demand) -> usize {
        self.repair();
        let column = match self.demands.ask(demand) {
            Found::Known(column) => return column,
            Found::Added(column) => {
                self.columns.open();
                column
            }
            Found::Replaced(column) => column,
        };
        self.columns.fill(column, |ix| {
            node(&self.cluster, ix).map_or(0, |(_, node)| self.rule.rank(node, demand))
        });
        column
    }

    /// Ranks the marked nodes anew.
    fn repair(&mut self) {
        let classes = self.demands.classes();
        self.of_classes.resize(classes.len(), 0);
        for ix in self.marked.drain(..) {
            if let Some(marked) = self.is_marked.get_mut(ix.get()) {
                *marked = false;
            }
            let memory_free = match self.cluster.node(ix) {
                Some(node) => {
                    self.rule.ranks(node, classes, &mut self.of_classes);
                    node.memory_free()
                }
                None => {
                    self.of_classes.fill(0);
                    0
                }
            };
            self.demands
                .spread(memory_free, &self.of_classes, &mut self.ranks);
            self.columns.set(ix.get(), &self.ranks);
        }
    }
}

fn node(cluster: &Cluster, ix: usize) -> Option<(NodeIx, &Node)> {
    let ix = NodeIx(u32::try_from(ix).ok()?);
    Some((ix, cluster.node(ix)?))
}

#[cfg(test)]
mod tests;
