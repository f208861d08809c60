//! How good a plan is, and what it costs: `cargo bench -p scheduler-core --bench plan`.
//!
//! `--quick` measures less, `--only` a part: `deadlines`, `waits` or `cost`. Each figure is a line
//! of its own: `row`, name, value, unit, target, anchor, with tabs between them.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "figures of a bench are rounded, and its own numbers fit"
)]

mod cost;
mod deadlines;
mod dice;
mod flow;
mod waits;

use std::time::{Duration, Instant};

use cnlab_model::Timestamp;
use scheduler_core::{
    cluster::{Cluster, Kind, Node},
    plan::{Job, JobId, Priority, TeamIx},
    timeline::Ask,
};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = arguments
        .iter()
        .skip_while(|argument| *argument != "--only")
        .nth(1);
    let wanted = |part: &str| only.is_none_or(|only| only.split(',').any(|name| name == part));
    if wanted("deadlines") {
        deadlines::measure(quick);
    }
    if wanted("waits") {
        waits::measure(quick);
    }
    if wanted("cost") {
        cost::measure(quick);
    }
}

#[expect(clippy::print_stdout, reason = "the rows are what the bench is for")]
fn row(name: &str, value: f64, unit: &str, target: &str, anchor: &str) {
    println!("row\t{name}\t{value}\t{unit}\t{target}\t{anchor}");
}

#[expect(clippy::disallowed_methods, reason = "a bench measures the real time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = work();
    (done, begun.elapsed())
}

/// Mean and the quantile that 99 of 100 stay below, in microseconds.
fn summary(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let sum: Duration = times.iter().sum();
    let mean = sum.as_secs_f64() * 1e6 / times.len().max(1) as f64;
    let late = times.len() * 99 / 100;
    let p99 = times.get(late).copied().unwrap_or_default();
    (mean, p99.as_secs_f64() * 1e6)
}

/// Nodes of 8 GPUs of one kind.
fn cell(nodes: u32) -> Cluster {
    let mut cluster = Cluster::new();
    for _ in 0..nodes {
        let node = Kind::new(0).map(|kind| Node::new(kind, 96_000, 786_432, 8));
        if let Some(Ok(node)) = node {
            let _always_room = cluster.add(node);
        }
    }
    cluster
}

fn job(id: u64, ask: Ask, length: u64, submitted: Timestamp) -> Job {
    Job {
        id: JobId(id),
        team: TeamIx(0),
        ask,
        length: Duration::from_secs(length),
        priority: Priority::Normal,
        deadline: None,
        submitted,
    }
}

/// Whole seconds since the beginning.
fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH.plus(Duration::from_secs(seconds))
}
