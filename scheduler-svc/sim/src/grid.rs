//! Runs many experiments on several threads. A result depends on its policy, workload and seed
//! only, never on the threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::contender::Contender;
use crate::experiment::Workload;
use crate::queue::{self, LENGTH};
use crate::replay::{self, Illegal, Outcome};

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
                    let queued = queue::reorder(&workloads[workload], &experiment, LENGTH);
                    for (policy, contender) in policies.iter().enumerate() {
                        let experiment = if contender.is_queued() {
                            &queued
                        } else {
                            &experiment
                        };
                        let mut instance = contender.policy(&workloads[workload], experiment);
                        let outcome =
                            replay::run(&workloads[workload], experiment, instance.as_mut());
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
