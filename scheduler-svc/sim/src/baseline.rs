//! The six published policies: score every node, place on the best, first of equals.
//!
//! Definitions (facts, not code) from `hkust-adsl/kubernetes-scheduler-simulator`: scores are
//! rounded down to integers in 0..=100, which makes ties; a shared task takes the fullest GPU
//! that has room (FGD: the GPU with the best score; Random: any), a whole one idle GPUs in order.

use scheduler_core::cluster::GpuSet;
use scheduler_core::packing::board::{Board, Score};
use scheduler_core::packing::fgd::Fgd;
use scheduler_core::packing::{Class, Free, WHOLE};

use crate::experiment::{Experiment, Workload};
use crate::prng::Prng;
use crate::replay::{Place, Policy, Step};

/// The most processor time of a node, in thousandths of a core.
const MOST_CPU: i64 = 128_000;
/// The most GPU of a node, in thousandths.
const MOST_GPU: i64 = 8_000;

/// A published policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Baseline {
    /// Any node, any GPU.
    Random,
    /// Tetris: the smallest dot product of what is asked and what is free.
    DotProd,
    /// Nodes whose tasks have the same number of GPUs.
    Clustering,
    /// Used GPUs before idle ones, used nodes before idle ones.
    Packing,
    /// The node that has least left.
    BestFit,
    /// The node whose fragmentation grows least.
    Fgd,
}

impl Baseline {
    /// All, in the order of the published table.
    pub const ALL: [Self; 6] = [
        Self::Random,
        Self::DotProd,
        Self::Clustering,
        Self::Packing,
        Self::BestFit,
        Self::Fgd,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "Random",
            Self::DotProd => "DotProd",
            Self::Clustering => "Clustering",
            Self::Packing => "Packing",
            Self::BestFit => "BestFit",
            Self::Fgd => "FGD",
        }
    }

    /// The policy, ready for a run.
    #[must_use]
    pub fn policy<'a>(self, workload: &'a Workload, run: &Experiment) -> Box<dyn Policy + 'a> {
        match self {
            Self::Random => Box::new(Random::new(workload, run)),
            Self::DotProd => Box::new(Greedy::new(workload, run, DotProd)),
            Self::Clustering => {
                let kinds = vec![0; run.nodes.len()];
                Box::new(Greedy::new(workload, run, Clustering { kinds }))
            }
            Self::Packing => Box::new(Greedy::new(workload, run, Packing)),
            Self::BestFit => Box::new(Greedy::new(workload, run, BestFit)),
            Self::Fgd => {
                let fgd = Fgd::new(&workload.classes);
                Box::new(Greedy::new(workload, run, fgd))
            }
        }
    }
}

/// A score, and what belongs to it.
trait Rule: Score {
    fn gpus(&self, node: &Free, class: &Class) -> Option<GpuSet> {
        node.tightest(class)
    }

    fn placed(&mut self, _node: usize, _class: &Class) {}
}

#[derive(Debug)]
struct Greedy<'a, S> {
    workload: &'a Workload,
    board: Board<S>,
}

impl<'a, S: Rule> Greedy<'a, S> {
    fn new(workload: &'a Workload, run: &Experiment, rule: S) -> Self {
        Self {
            workload,
            board: Board::new(run.nodes.clone(), rule),
        }
    }
}

impl<S: Rule> Policy for Greedy<'_, S> {
    fn place(&mut self, task: usize, id: usize, memory: u32) -> Step {
        let class = self.workload.classes[id].class;
        let place = self.board.best(id, &class, memory).and_then(|node| {
            let free = self.board.nodes()[node];
            let gpus = self.board.scorer().gpus(&free, &class)?;
            let left = free.take(&class, memory, gpus)?;
            self.board.scorer_mut().placed(node, &class);
            self.board.set(node, left);
            Some(Place { node, gpus })
        });
        Step {
            task,
            moved: None,
            place,
        }
    }
}

/// Blocks in thousandths of a GPU.
fn milli(blocks: u32) -> i64 {
    i64::from(blocks) * 10
}

/// Saturates: the published scores fit.
fn small(score: i64) -> i16 {
    i16::try_from(score).unwrap_or(i16::MAX)
}

#[derive(Debug)]
struct DotProd;

impl Score for DotProd {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        if !node.fits(class) {
            return None;
        }
        // 100 (1 - (c c' / C^2 + g g' / G^2) / 2), over the common denominator 2 C^2.
        let ratio = (MOST_CPU / MOST_GPU) * (MOST_CPU / MOST_GPU);
        let product = i64::from(node.cpu) * i64::from(class.cpu)
            + ratio * milli(node.total()) * milli(class.total());
        let whole = 2 * MOST_CPU * MOST_CPU;
        Some(small((100 * (whole - product)).div_euclid(whole).max(0)))
    }
}

impl Rule for DotProd {}

#[derive(Debug)]
struct BestFit;

impl Score for BestFit {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        if !node.fits(class) {
            return None;
        }
        // 100 (1 - (c - c') / 2C - (g - g') / 2G), over the common denominator 2 C.
        let cpu = i64::from(node.cpu) - i64::from(class.cpu);
        let gpu = milli(node.total()) - milli(class.total());
        let whole = 2 * MOST_CPU;
        let left = cpu + MOST_CPU / MOST_GPU * gpu;
        Some(small((100 * (whole - left)).div_euclid(whole).max(0)))
    }
}

impl Rule for BestFit {}

#[derive(Debug)]
struct Packing;

impl Score for Packing {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        if !node.fits(class) {
            return None;
        }
        if class.gpus == 0 {
            return Some(0);
        }
        let idle = i64::from(node.idle());
        if idle == i64::from(node.count) {
            return Some(small((100 / 3 - idle).max(idle)));
        }
        let gpus = node.tightest(class)?;
        let opened = gpus.iter().filter(|&gpu| node.gpus[gpu] == WHOLE).count();
        if opened > 0 {
            return Some(small(
                (100 / 2 - i64::try_from(opened).unwrap_or(0)).max(100 / 3),
            ));
        }
        let left: i64 = gpus.iter().map(|gpu| i64::from(node.gpus[gpu])).sum();
        Some(small((100 - left / 10).max(100 / 2)))
    }
}

impl Rule for Packing {}

/// For each node, a bit for each kind of task (shared, one GPU, two, …) that it has.
#[derive(Debug)]
struct Clustering {
    kinds: Vec<u32>,
}

fn kind(class: &Class) -> u32 {
    if class.gpus == 0 {
        0
    } else if class.is_shared() {
        1
    } else {
        1 << class.gpus
    }
}

impl Score for Clustering {
    fn score(&self, index: usize, node: &Free, class: &Class) -> Option<i16> {
        if !node.fits(class) {
            return None;
        }
        if class.gpus == 0 {
            return Some(0);
        }
        let fullness = 100 / 4 * (MOST_GPU - milli(node.total())) / MOST_GPU;
        let kinds = self.kinds[index];
        let base = if kinds == kind(class) {
            75
        } else if kinds & kind(class) != 0 {
            50
        } else if kinds == 0 {
            25
        } else {
            0
        };
        Some(small(base + fullness))
    }
}

impl Rule for Clustering {
    fn placed(&mut self, node: usize, class: &Class) {
        self.kinds[node] |= kind(class);
    }
}

impl Rule for Fgd {
    fn gpus(&self, node: &Free, class: &Class) -> Option<GpuSet> {
        self.rate(node, class).map(|(_, gpus)| gpus)
    }
}

/// Whether it fits.
#[derive(Debug)]
struct Fits;

impl Score for Fits {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        node.fits(class).then_some(0)
    }
}

#[derive(Debug)]
struct Random<'a> {
    workload: &'a Workload,
    board: Board<Fits>,
    prng: Prng,
}

impl<'a> Random<'a> {
    fn new(workload: &'a Workload, run: &Experiment) -> Self {
        Self {
            workload,
            board: Board::new(run.nodes.clone(), Fits),
            prng: Prng::new(run.seed, &workload.name, "random"),
        }
    }

    fn gpus(&mut self, node: &Free, class: &Class) -> Option<GpuSet> {
        if !class.is_shared() {
            return node.first_idle(class.gpus);
        }
        let roomy = |&gpu: &usize| node.gpus[gpu] >= class.blocks;
        let count = (0..usize::from(node.count)).filter(roomy).count();
        let chosen = self.prng.below(count);
        (0..usize::from(node.count))
            .filter(roomy)
            .nth(chosen)
            .map(GpuSet::one)
    }
}

impl Policy for Random<'_> {
    fn place(&mut self, task: usize, id: usize, memory: u32) -> Step {
        let class = self.workload.classes[id].class;
        let count = self.board.fitting(id, &class, memory);
        let chosen = self.prng.below(count);
        let node = self.board.nth_fitting(id, &class, memory, chosen);
        let place = node.and_then(|node| {
            let free = self.board.nodes()[node];
            let gpus = self.gpus(&free, &class)?;
            self.board.set(node, free.take(&class, memory, gpus)?);
            Some(Place { node, gpus })
        });
        Step {
            task,
            moved: None,
            place,
        }
    }
}
