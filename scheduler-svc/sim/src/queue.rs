//! A waiting queue: tasks are decided on the largest first, among those that wait.
//!
//! Up to a number of tasks wait. When one more comes, the largest of them (most GPU, then most
//! processor time, then first come) is decided on: placed, or dropped when it fits nowhere.
//! When all have come, the rest is decided on in the same order. This is another experiment
//! than the published one: with a queue, order is free, and the bounds for arrivals in order do
//! not hold.

use std::collections::BTreeSet;

use crate::experiment::{Experiment, Workload};

/// How many tasks wait at most in the grid: somewhat more than half of those that come.
pub const LENGTH: usize = 6_000;

/// The experiment with its tasks in the order in which a queue for `length` lets them through.
#[must_use]
pub fn reorder(workload: &Workload, experiment: &Experiment, length: usize) -> Experiment {
    let mut waiting: BTreeSet<(u32, u32, std::cmp::Reverse<usize>)> = BTreeSet::new();
    let mut arrivals = Vec::with_capacity(experiment.arrivals.len());
    for (task, arrival) in experiment.arrivals.iter().enumerate() {
        let class = workload.classes[arrival.class].class;
        waiting.insert((class.total(), class.cpu, std::cmp::Reverse(task)));
        if waiting.len() > length
            && let Some((_, _, first)) = waiting.pop_last()
        {
            arrivals.push(experiment.arrivals[first.0]);
        }
    }
    while let Some((_, _, first)) = waiting.pop_last() {
        arrivals.push(experiment.arrivals[first.0]);
    }
    Experiment {
        arrivals,
        ..experiment.clone()
    }
}
