//! Fragmentation gradient descent: the node whose fragmentation a task makes grow least.
//!
//! With the typical classes m of popularity p (those that make up 95 % of all tasks), the
//! fragmentation of a node is the sum over m of p(m) times the free GPU that m cannot use: all
//! of it when m asks for no GPU, does not accept the model or does not fit; else that of the
//! GPUs with less free than m asks of each. The score is floor(100 s((F - F')/1000)) with the
//! logistic function s, F and F' in thousandths of a GPU before and after. The rounding is part
//! of the policy: it makes ties, and those go to the first node.
//!
//! Source: Weng et al., USENIX ATC 2023, section 4, and the simulator published with it.
//!
//! The gradient itself is [`Gradient`]'s; this asks it about [`Free`] nodes, and knows which
//! classes the published simulator holds to be typical.

use super::board::Score;
use super::{Class, Free};
use crate::cluster::{GpuSet, Shape};
use crate::fragmentation::{Gradient, Popularity, View, cover};

/// A class and how many tasks had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Popular {
    /// The class.
    pub class: Class,
    /// How many tasks had it.
    pub count: u32,
}

/// The most popular classes, together at least 95 % of all tasks; of equals the larger first.
#[must_use]
pub fn typical(popularity: &[Popular]) -> Vec<Popular> {
    let mut sorted: Vec<Popular> = popularity.to_vec();
    sorted.sort_by(|a, b| {
        let key = |p: &Popular| {
            (
                p.count,
                p.class.cpu,
                p.class.blocks,
                p.class.gpus,
                p.class.kinds,
            )
        };
        key(b).cmp(&key(a))
    });
    cover(&mut sorted, |p| p.count.into());
    sorted
}

/// The gradient of fragmentation of nodes under one popularity.
#[derive(Debug, Clone)]
pub struct Fgd {
    gradient: Gradient,
    weight: u32,
}

impl Fgd {
    /// The gradient under a popularity.
    ///
    /// Its limits are those of [`Popularity::weighted`]; a class that no demand can have does
    /// not count.
    #[must_use]
    pub fn new(popularity: &[Popular]) -> Self {
        let typical = typical(popularity);
        let types = typical
            .iter()
            .filter_map(|popular| Some((popular.class.demand()?, popular.count.into())));
        let popularity = Popularity::weighted(types);
        Self {
            gradient: Gradient::new(&popularity),
            weight: popularity.total(),
        }
    }

    fn view(&self, node: &Free) -> View<'_> {
        self.gradient
            .view(node.kind, node.cpu, node.gpus, node.count)
    }

    /// The same of a node that is of the kind for a class and has the processors.
    fn suitable(&self, node: &Free, class: &Class) -> Option<View<'_>> {
        let suits = node.eligible && node.cpu >= class.cpu && class.kinds.admits(node.kind);
        suits.then(|| self.view(node))
    }

    /// The fragmentation of a node, in blocks times [`Fgd::weight`].
    #[must_use]
    pub fn fragmentation(&self, node: &Free) -> i64 {
        self.gradient.amount(&self.view(node)).into()
    }

    /// By what the fragmentation is scaled.
    #[must_use]
    pub fn weight(&self) -> i64 {
        self.weight.into()
    }

    /// The score and the GPUs, or `None` when a task of the class does not fit.
    #[must_use]
    pub fn rate(&self, node: &Free, class: &Class) -> Option<(i16, GpuSet)> {
        let view = self.suitable(node, class)?;
        let level = self.gradient.level(&view, class.cpu, class.shape())?;
        let gpus = match class.shape() {
            Shape::CpuOnly => GpuSet::EMPTY,
            Shape::Whole(gpus) => node.first_idle(gpus)?,
            Shape::Share(blocks) => GpuSet::one(self.gradient.gpu(&view, class.cpu, blocks)?),
        };
        Some((level.into(), gpus))
    }
}

impl Score for Fgd {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        let view = self.suitable(node, class)?;
        let level = self.gradient.level(&view, class.cpu, class.shape())?;
        Some(level.into())
    }
}
