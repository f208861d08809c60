//! Runs many experiments on several threads. A result depends on its policy, workload and seed
//! only, never on the threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use scheduler_core::packing::plan::Settings;

use crate::baseline::Baseline;
use crate::experiment::{Experiment, Workload};
use crate::planned::Planned;
use crate::replay::{self, Illegal, Outcome, Policy};

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A published one.
    Published(Baseline),
    /// The scheduler's own, guided by plans, which knows the popularity of the pod list.
    Planned(Settings),
}

impl Contender {
    /// The scheduler's own with its default settings.
    pub const PLAN: Self = Self::Planned(Settings::DEFAULT);

    /// All that the grid runs unless told otherwise.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let published = Baseline::ALL.into_iter().map(Self::Published);
        published.chain([Self::PLAN]).collect()
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Published(baseline) => baseline.name(),
            Self::Planned(_) => "PLAN",
        }
    }

    /// What it is, in a few words.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Published(_) => "as published",
            Self::Planned(_) => "guided by plans, popularity known, nothing moved",
        }
    }

    /// Whether the bound holds for it: it moves nothing and lets nothing wait.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        match self {
            Self::Published(_) | Self::Planned(_) => true,
        }
    }

    /// The policy, ready for a run.
    #[must_use]
    pub fn policy<'a>(self, workload: &'a Workload, run: &'a Experiment) -> Box<dyn Policy + 'a> {
        match self {
            Self::Published(baseline) => baseline.policy(workload, run),
            Self::Planned(settings) => Box::new(Planned::new(workload, run, settings)),
        }
    }
}

/// What a run came to: column, workload, seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The policy, an index of the list.
    pub policy: usize,
    /// The workload, an index of the list.
    pub workload: usize,
    /// The seed.
    pub seed: u64,
    /// The result.
    pub outcome: Outcome,
}

/// Runs every policy on every workload with every seed; cells in that order.
pub fn run(
    policies: &[Contender],
    workloads: &[Workload],
    seeds: &[u64],
    threads: usize,
) -> Result<Vec<Cell>, Illegal> {
    let pairs = workloads.len() * seeds.len();
    let next = AtomicUsize::new(0);
    let cells: Mutex<Vec<Result<Cell, Illegal>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= pairs {
                        break;
                    }
                    let (workload, seed) = (job / seeds.len(), seeds[job % seeds.len()]);
                    let experiment = workloads[workload].experiment(seed);
                    for (policy, contender) in policies.iter().enumerate() {
                        let mut instance = contender.policy(&workloads[workload], &experiment);
                        let outcome =
                            replay::run(&workloads[workload], &experiment, instance.as_mut());
                        let cell = outcome.map(|outcome| Cell {
                            policy,
                            workload,
                            seed,
                            outcome,
                        });
                        cells
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(cell);
                    }
                }
            });
        }
    });
    let cells = cells.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut cells: Vec<Cell> = cells.into_iter().collect::<Result<_, _>>()?;
    cells.sort_by_key(|cell| (cell.policy, cell.workload, cell.seed));
    Ok(cells)
}
