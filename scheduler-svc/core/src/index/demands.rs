//! Which demand has which column.
//!
//! Demands that differ only in memory are of one class. Memory decides no rank, only whether
//! there is room, so a node is ranked once for a class and then compared once for each of its
//! demands.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "every change of a node runs through here; columns and classes index vectors that \
              only grow, and a class counts its columns"
)]

use std::collections::BTreeMap;

use crate::{cluster::Demand, placement::Rank};

/// The demands with a column, at most so many.
#[derive(Debug, Clone)]
pub(super) struct Demands {
    limit: usize,
    known: BTreeMap<Demand, usize>,
    columns: Vec<Column>,
    questions: u64,
    known_classes: BTreeMap<Demand, usize>,
    /// The classes, with no need of memory. One without columns waits to be given away.
    classes: Vec<Demand>,
    /// How many columns each class has.
    sizes: Vec<usize>,
    unused: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    demand: Demand,
    class: usize,
    /// How many questions there had been when it was asked last.
    asked: u64,
}

/// The column of a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It has one.
    Known(usize),
    /// It got a new one, after all others.
    Added(usize),
    /// It got the one of the demand that was not asked for the longest.
    Replaced(usize),
}

impl Demands {
    /// No demand yet, and at most this many, but at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            known: BTreeMap::new(),
            columns: Vec::new(),
            questions: 0,
            known_classes: BTreeMap::new(),
            classes: Vec::new(),
            sizes: Vec::new(),
            unused: Vec::new(),
        }
    }

    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// How many columns there are.
    pub(super) fn count(&self) -> usize {
        self.columns.len()
    }

    /// The demands to rank nodes for.
    pub(super) fn classes(&self) -> &[Demand] {
        &self.classes
    }

    /// Notes a question for a demand and says where its column is.
    pub(super) fn ask(&mut self, demand: &Demand) -> Found {
        self.questions += 1;
        if let Some(&column) = self.known.get(demand) {
            self.columns[column].asked = self.questions;
            return Found::Known(column);
        }
        let class = self.join(demand.without_memory());
        let new = Column {
            demand: *demand,
            class,
            asked: self.questions,
        };
        let found = if self.columns.len() < self.limit {
            self.columns.push(new);
            Found::Added(self.columns.len() - 1)
        } else {
            let columns = self.columns.iter().enumerate();
            let oldest = columns.min_by_key(|(_, column)| column.asked);
            let column = oldest.map_or(0, |(column, _)| column);
            let old = std::mem::replace(&mut self.columns[column], new);
            self.known.remove(&old.demand);
            self.leave(old.class);
            Found::Replaced(column)
        };
        let (Found::Known(column) | Found::Added(column) | Found::Replaced(column)) = found;
        self.known.insert(*demand, column);
        found
    }

    /// Writes the rank of a node in every column, given those of the classes.
    pub(super) fn spread(&self, memory_free: u32, of_classes: &[Rank], ranks: &mut Vec<Rank>) {
        ranks.clear();
        ranks.extend(self.columns.iter().map(|column| {
            if column.demand.memory_mib() <= memory_free {
                of_classes[column.class]
            } else {
                0
            }
        }));
    }

    fn join(&mut self, class: Demand) -> usize {
        let at = self.known_classes.get(&class).copied().unwrap_or_else(|| {
            let at = self.unused.pop().unwrap_or(self.classes.len());
            if at == self.classes.len() {
                self.classes.push(class);
                self.sizes.push(0);
            } else {
                self.classes[at] = class;
            }
            self.known_classes.insert(class, at);
            at
        });
        self.sizes[at] += 1;
        at
    }

    fn leave(&mut self, class: usize) {
        self.sizes[class] -= 1;
        if self.sizes[class] == 0 {
            self.known_classes.remove(&self.classes[class]);
            self.unused.push(class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demand_that_was_not_asked_for_the_longest_gives_its_column_away() {
        let demand = |cpu| Demand::cpu_only(cpu, 1);
        let mut demands = Demands::new(2);
        assert_eq!(demands.ask(&demand(0)), Found::Added(0));
        assert_eq!(demands.ask(&demand(1)), Found::Added(1));
        assert_eq!(demands.ask(&demand(0)), Found::Known(0));
        assert_eq!(demands.ask(&demand(2)), Found::Replaced(1));
        assert_eq!(demands.ask(&demand(0)), Found::Known(0));
        assert_eq!(demands.ask(&demand(1)), Found::Replaced(1));
    }

    #[test]
    fn a_class_is_ranked_once_and_given_away_with_its_last_column() {
        let demand = |cpu, memory| Demand::cpu_only(cpu, memory);
        let mut demands = Demands::new(3);
        demands.ask(&demand(0, 1));
        demands.ask(&demand(0, 2));
        demands.ask(&demand(0, 3));
        assert_eq!(demands.classes().len(), 1);
        let mut ranks = Vec::new();
        demands.spread(2, &[7], &mut ranks);
        assert_eq!(ranks, [7, 7, 0]);
        for cpu in 1..100 {
            demands.ask(&demand(cpu, 1));
        }
        // One of the old class may be left until the new one has joined.
        assert!(demands.classes().len() <= 4, "{}", demands.classes().len());
    }
}
