//! What a grid came to, as tables.

use std::fmt::Write as _;

use crate::baseline::Baseline;
use crate::contender::Contender;
use crate::grid::Cell;
use crate::published::{self, Published};
use crate::replay::Outcome;

/// Mean and sample standard deviation of the seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The deviation; zero for one seed.
    pub deviation: f64,
}

impl Spread {
    /// Of some values.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few seeds")]
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let deviation = if values.len() > 1 {
            (squares / (count - 1.0)).sqrt()
        } else {
            0.0
        };
        Self { mean, deviation }
    }
}

/// The results of one workload.
#[derive(Debug, Clone)]
pub struct Row {
    /// What is known of it.
    pub known: &'static Published,
    /// For each policy GPU allocation in per cent at the end, and when 100 % had arrived.
    pub results: Vec<(Contender, Spread, Spread)>,
    /// For each policy moved tasks in per cent of those placed.
    pub moved: Vec<f64>,
}

impl Row {
    /// A policy's results.
    #[must_use]
    pub fn of(&self, policy: Contender) -> Option<(Spread, Spread)> {
        let found = self.results.iter().find(|(other, _, _)| *other == policy);
        found.map(|&(_, end, full)| (end, full))
    }

    /// The upper bound in per cent.
    #[must_use]
    pub fn bound(&self) -> f64 {
        f64::from(self.known.bound) / 100.0
    }
}

/// Sums up a grid, by workload.
#[must_use]
pub fn rows(cells: &[Cell], policies: &[Contender], workloads: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (workload, name) in workloads.iter().enumerate() {
        let Some(known) = published::of(name) else {
            continue;
        };
        let mut row = Row {
            known,
            results: Vec::new(),
            moved: Vec::new(),
        };
        for (policy, &contender) in policies.iter().enumerate() {
            let outcomes: Vec<Outcome> = cells
                .iter()
                .filter(|cell| cell.policy == policy && cell.workload == workload)
                .map(|cell| cell.outcome)
                .collect();
            let spread = |value: fn(&Outcome) -> f64| {
                Spread::of(&outcomes.iter().map(value).collect::<Vec<_>>())
            };
            row.results.push((
                contender,
                spread(Outcome::percent),
                spread(Outcome::percent_at_full),
            ));
            row.moved
                .push(spread(|o| f64::from(o.moved) * 100.0 / f64::from(o.placed.max(1))).mean);
        }
        rows.push(row);
    }
    rows
}

/// The tables, as markdown.
#[must_use]
pub fn markdown(rows: &[Row], seeds: &[u64]) -> String {
    let mut text = String::new();
    let range = match (seeds.first(), seeds.last()) {
        (Some(first), Some(last)) => format!("seeds {first} to {last}"),
        _ => "no seeds".to_owned(),
    };
    let _ = writeln!(
        text,
        "GPU allocation in per cent, mean of {range}, all arrivals in (130 % of the GPUs asked for). The bound is for\npolicies that move nothing and let nothing wait; for gpuspec it is indicative.\n"
    );
    let policies: Vec<Contender> = rows
        .first()
        .map(|row| row.results.iter().map(|r| r.0).collect())
        .unwrap_or_default();
    reproduction(&mut text, rows, &policies);
    for &policy in &policies {
        if !matches!(policy, Contender::Published(_)) {
            against_fgd(&mut text, rows, policy);
        }
    }
    text
}

fn reproduction(text: &mut String, rows: &[Row], policies: &[Contender]) {
    let known: Vec<(usize, Baseline)> = policies
        .iter()
        .filter_map(|policy| match policy {
            Contender::Published(baseline) => Some(*baseline),
            Contender::Planned(_)
            | Contender::Learning(_)
            | Contender::QueuedFgd
            | Contender::QueuedPlan(_) => None,
        })
        .filter_map(|baseline| {
            let at = Baseline::ALL.iter().position(|&b| b == baseline)?;
            Some((at, baseline))
        })
        .collect();
    if known.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "Published policies: mean (deviation of the seeds; difference to the published mean).\n"
    );
    let _ = write!(text, "| {:11} |", "workload");
    for (_, baseline) in &known {
        let _ = write!(text, " {:20} |", baseline.name());
    }
    let _ = write!(text, "\n|{}|", "-".repeat(13));
    for _ in &known {
        let _ = write!(text, "{}|", "-".repeat(22));
    }
    let _ = writeln!(text);
    for row in rows {
        let _ = write!(text, "| {:11} |", row.known.workload);
        for &(at, baseline) in &known {
            if let Some((end, _)) = row.of(Contender::Published(baseline)) {
                let wanted = row.known.means.get(at).copied().unwrap_or(0);
                let difference = end.mean - f64::from(wanted) / 100.0;
                let value = format!("{:.2} ({:.2}; {difference:+.2})", end.mean, end.deviation);
                let _ = write!(text, " {value:20} |");
            }
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(text);
}

fn against_fgd(text: &mut String, rows: &[Row], policy: Contender) {
    let _ = writeln!(
        text,
        "{}: {}.{}\n",
        policy.name(),
        policy.describe(),
        if policy.is_queued() {
            " FGD has the same queue; the bound does not hold."
        } else if policy.is_bounded() {
            ""
        } else {
            " The bound does not hold."
        }
    );
    let _ = writeln!(
        text,
        "| workload    | mean (dev.)    | gain on FGD | bound | gap closed | at 100 % | FGD at 100 % | moved % |\n\
         |-------------|----------------|-------------|-------|------------|----------|--------------|---------|"
    );
    // Behind a queue the same queue is given to FGD.
    let fgd = if policy.is_queued() {
        Contender::QueuedFgd
    } else {
        Contender::Published(Baseline::Fgd)
    };
    for row in rows {
        let Some((end, full)) = row.of(policy) else {
            continue;
        };
        let moved = row
            .results
            .iter()
            .zip(&row.moved)
            .find(|((other, _, _), _)| *other == policy)
            .map_or(0.0, |(_, &moved)| moved);
        let (gain, closed, fgd_full) = row.of(fgd).map_or_else(
            || (String::new(), String::new(), String::new()),
            |(base, base_full)| {
                let gain = end.mean - base.mean;
                (
                    format!("{gain:+.2}"),
                    if policy.is_bounded() {
                        format!("{:.0} %", 100.0 * gain / (row.bound() - base.mean))
                    } else {
                        "-".to_owned()
                    },
                    format!("{:.2}", base_full.mean),
                )
            },
        );
        let _ = writeln!(
            text,
            "| {:11} | {:14} | {gain:11} | {:5.2} | {closed:10} | {:8.2} | {fgd_full:12} | {moved:7.2} |",
            row.known.workload,
            format!("{:.2} ({:.2})", end.mean, end.deviation),
            row.bound(),
            full.mean,
        );
    }
    let _ = writeln!(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        let spread = Spread::of(&[1.0, 2.0, 3.0]);
        assert_eq!((spread.mean, spread.deviation), (2.0, 1.0));
        assert_eq!(Spread::of(&[4.0]).deviation, 0.0);
    }

    #[test]
    fn says_the_difference_to_what_was_published() {
        let outcome = Outcome {
            at_full: 90,
            at_end: 95,
            capacity: 100,
            placed: 10,
            moved: 1,
        };
        let cell = |policy| Cell {
            policy,
            workload: 0,
            seed: 42,
            outcome,
        };
        let policies = [Contender::Published(Baseline::Fgd), Contender::PLAN];
        let rows = rows(&[cell(0), cell(1)], &policies, &["default".to_owned()]);
        let text = markdown(&rows, &[42]);
        assert!(
            text.contains("| default     | 95.00 (0.00; -0.39)  |"),
            "{text}"
        );
        assert!(text.contains("|   10.00 |"), "{text}");
    }
}
