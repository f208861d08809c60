//! Fragmentation gradient descent: place where the free GPUs lose least of their use.
//!
//! Weng et al., *Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
//! Gradient Descent*, USENIX ATC 2023. A free block of a node is a fragment for a type of task
//! that cannot use it: all free blocks, where a task of the type does not fit on the node or
//! wants no GPU; else those of the GPUs with fewer free blocks than it wants. The fragmentation
//! of a node is the mean over the types, weighted by how often each is asked for. A placement
//! is better the less it raises that. Memory decides where a task fits, but is no part of it.
//!
//! ```text
//! Popularity ─▶ amount(node)            F_n, exact, in blocks x weight
//!            └▶ Definition, Gradient    rules: by the definition, and from tables
//! Published                             the same in floating point, as first published
//!
//! Gradient ─▶ Rule ─▶ Index             one cell, every demand, as the engine asks
//!          └▶ packing::fgd::Fgd ─▶ Board    copies of nodes, class by class, as plans ask
//! ```

mod level;
mod published;
mod tables;

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    cluster::{Demand, GpuSet, Node, Shape},
    placement::{Rank, Rule, candidates},
};

use level::Levels;
pub use published::Published;
pub use tables::Gradient;
pub(crate) use tables::View;

/// The most different needs of processors among the types of a [`Popularity`].
pub const MAX_CPU_NEEDS: usize = 127;

/// The largest sum of weights.
pub const MAX_WEIGHT: u32 = 1 << 20;

/// Which types of tasks are asked for, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Popularity {
    types: Vec<(Demand, u32)>,
    total: u32,
}

impl Popularity {
    /// The types of these tasks, most popular first, until they cover 95 % of the tasks.
    ///
    /// Tasks that differ only in memory are of one type. At most [`MAX_CPU_NEEDS`] different
    /// needs of processors are kept; a type that would bring one more is left out.
    #[must_use]
    pub fn typical(tasks: impl IntoIterator<Item = Demand>) -> Self {
        let mut counts: BTreeMap<Demand, u64> = BTreeMap::new();
        for task in tasks {
            let count = counts.entry(task.without_memory()).or_default();
            *count = count.saturating_add(1);
        }
        let mut types: Vec<_> = counts.into_iter().collect();
        types.sort_by_key(|(demand, count)| (Reverse(*count), *demand));
        cover(&mut types, |(_, count)| *count);
        Self::weighted(types)
    }

    /// These types with these weights, in this order.
    ///
    /// Memory is dropped. Where the weights add up to more than [`MAX_WEIGHT`], all of them are
    /// halved until they do not.
    #[must_use]
    pub fn weighted(types: impl IntoIterator<Item = (Demand, u64)>) -> Self {
        let types: Vec<_> = types.into_iter().collect();
        let sum = |shift: u32| {
            types.iter().fold(0_u64, |sum, (_, weight)| {
                sum.saturating_add(weight >> shift)
            })
        };
        let shift = (0..u64::BITS)
            .find(|shift| sum(*shift) <= MAX_WEIGHT.into())
            .unwrap_or(0);
        let mut needs = Vec::new();
        let mut kept = Vec::new();
        let mut total = 0_u32;
        for (demand, weight) in types {
            let weight = u32::try_from(weight >> shift).unwrap_or(0);
            if weight == 0 {
                continue;
            }
            if !needs.contains(&demand.cpu_milli()) {
                if needs.len() == MAX_CPU_NEEDS {
                    continue;
                }
                needs.push(demand.cpu_milli());
            }
            kept.push((demand.without_memory(), weight));
            total = total.saturating_add(weight);
        }
        Self { types: kept, total }
    }

    /// The types and their weights.
    #[must_use]
    pub fn types(&self) -> &[(Demand, u32)] {
        &self.types
    }

    /// The sum of the weights.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// The fragmentation of a node in blocks, times [`Self::total`].
    #[must_use]
    pub fn amount(&self, node: &Node) -> u64 {
        self.types.iter().fold(0, |amount, (demand, weight)| {
            let fragments = u64::from(fragments(node, demand));
            amount.saturating_add(u64::from(*weight).saturating_mul(fragments))
        })
    }
}

/// Keeps the first types, in their order, that together are at least 95 % of all tasks.
pub(crate) fn cover<T>(types: &mut Vec<T>, count: impl Fn(&T) -> u64) {
    let all = types
        .iter()
        .fold(0_u64, |sum, kind| sum.saturating_add(count(kind)));
    let mut covered = 0_u64;
    types.retain(|kind| {
        let wanted = covered.saturating_mul(100) < all.saturating_mul(95);
        covered = covered.saturating_add(count(kind));
        wanted
    });
}

/// How many of the free blocks of a node a task of this type cannot use.
fn fragments(node: &Node, task: &Demand) -> u32 {
    let free = node.blocks_free();
    let too_few = |free: &u8| match task.shape() {
        Shape::CpuOnly => true,
        Shape::Share(_) | Shape::Whole(_) => *free < task.blocks(),
    };
    let has_room = task.kinds().admits(node.kind())
        && node.cpu_free() >= task.cpu_milli()
        && match task.shape() {
            Shape::CpuOnly => false,
            Shape::Share(_) => free.iter().any(|free| !too_few(free)),
            Shape::Whole(gpus) => node.idle_gpus() >= gpus,
        };
    free.iter()
        .filter(|free| !has_room || too_few(free))
        .fold(0, |sum, free| sum.saturating_add((*free).into()))
}

/// Fragmentation gradient descent word for word: every candidate is tried on a copy of the
/// node. Slow; it is what [`Gradient`] is measured against.
#[derive(Debug, Clone)]
pub struct Definition {
    popularity: Popularity,
    levels: Levels,
}

impl Definition {
    /// The rule for these types of tasks.
    #[must_use]
    pub fn new(popularity: Popularity) -> Self {
        Self {
            levels: Levels::new(popularity.total()),
            popularity,
        }
    }

    /// Each candidate with its rank.
    fn ranked(&self, node: &Node, demand: &Demand) -> impl Iterator<Item = (GpuSet, Rank)> {
        let before = self.popularity.amount(node);
        candidates(node, demand).filter_map(move |gpus| {
            let after = self.popularity.amount(&node.after(gpus, demand).ok()?);
            let level = self.levels.search(before.checked_signed_diff(after)?);
            Some((gpus, Rank::from(level).saturating_add(1)))
        })
    }
}

impl Rule for Definition {
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        self.ranked(node, demand)
            .map(|(_, rank)| rank)
            .max()
            .unwrap_or(0)
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        let best = self.rank(node, demand);
        let mut ranked = self.ranked(node, demand);
        ranked.find(|(_, rank)| *rank == best).map(|(gpus, _)| gpus)
    }
}

#[cfg(test)]
mod tests;
