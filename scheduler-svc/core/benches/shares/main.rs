//! How well and how fast GPUs are cut, teams are accounted and victims are chosen.
//!
//! `cargo bench -p scheduler-core --bench shares`, with `-- --quick` for a first look and
//! `mig`, `fair` or `preempt` for a part. Seeds are fixed and everything runs on one thread;
//! answers are compared with references outside the measured time.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement stops where something is wrong"
)]

mod fair;
mod mig;
mod preempt;
#[path = "../../src/mig/tests/process.rs"]
mod process;

use std::time::Instant;

/// A part by its name.
type Part = (&'static str, fn(bool));

fn main() {
    let named = |name: &str| std::env::args().any(|argument| argument == name);
    let quick = named("--quick");
    let parts: [Part; 3] = [
        ("mig", mig::measure),
        ("fair", fair::measure),
        ("preempt", preempt::measure),
    ];
    let every = !parts.iter().any(|(name, _)| named(name));
    for (name, measure) in parts {
        if every || named(name) {
            measure(quick);
        }
    }
}

#[expect(clippy::print_stdout, reason = "the rows are what the bench is for")]
fn row(name: &str, value: f64, unit: &str, target: &str, anchor: &str) {
    println!("row\t{name}\t{value:.4}\t{unit}\t{target}\t{anchor}");
}

/// Nanoseconds that a piece of work takes.
#[expect(clippy::disallowed_methods, reason = "a bench measures the real time")]
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn nanos<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begun = Instant::now();
    let done = std::hint::black_box(work());
    (done, begun.elapsed().as_nanos() as f64)
}

/// The value below which this part of the sample lies.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of a sample"
)]
fn quantile(sample: &mut [f64], part: f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let last = sample.len().saturating_sub(1);
    sample
        .get((part * last as f64) as usize)
        .copied()
        .unwrap_or(0.0)
}
