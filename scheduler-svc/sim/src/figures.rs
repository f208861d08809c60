//! The figures of the packing bench, a row a line, as `cargo xtask bench scheduler` reads them.

use std::io::Write;

use crate::baseline::Baseline;
use crate::contender::Contender;
use crate::experiment::{SEEDS, Workload};
use crate::published::PUBLISHED;
use crate::replay::Illegal;
use crate::report::Row;
use crate::{grid, report};

/// The published policies that the replay must reproduce.
const REPRODUCED: [Baseline; 4] = [
    Baseline::Random,
    Baseline::Packing,
    Baseline::BestFit,
    Baseline::Fgd,
];

/// How much is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All workloads and seeds.
    Full,
    /// One seed of two workloads, to see that it works.
    Quick,
}

/// Replays, and prints the rows.
///
/// # Errors
/// When the data cannot be read, a replay breaks its own rules, or nobody reads the rows.
pub fn run(extent: Extent, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let (names, seeds): (Vec<String>, Vec<u64>) = match extent {
        Extent::Full => (
            PUBLISHED.iter().map(|p| p.workload.to_owned()).collect(),
            SEEDS.collect(),
        ),
        Extent::Quick => (
            vec!["default".to_owned(), "cpu250".to_owned()],
            SEEDS.take(1).collect(),
        ),
    };
    let workloads: Vec<Workload> = names
        .iter()
        .map(|name| Workload::read(name))
        .collect::<Result<_, _>>()?;
    let published: Vec<Contender> = Baseline::ALL
        .into_iter()
        .map(Contender::Published)
        .collect();
    let (rows, took, runs) = replay(&published, &workloads, &names, &seeds)?;
    let mut row = |name: &str, value: f64, unit: &str, target: &str, anchor: &str| {
        writeln!(out, "row\t{name}\t{value}\t{unit}\t{target}\t{anchor}")
    };
    let each = format!("{} workloads x {} seeds", names.len(), seeds.len());
    row(
        "(G2) the published policies on all workloads",
        took,
        "s",
        "<= 60",
        &format!("{runs} runs, 2 threads"),
    )?;
    for (at, baseline) in Baseline::ALL.into_iter().enumerate() {
        if REPRODUCED.contains(&baseline) {
            let off = rows.iter().filter_map(|row| {
                let (end, _) = row.of(Contender::Published(baseline))?;
                let wanted = f64::from(*row.known.means.get(at)?) / 100.0;
                Some((end.mean - wanted).abs())
            });
            let worst = off.fold(0.0, f64::max);
            let name = format!(
                "(G1) {}, largest distance from the published mean",
                baseline.name()
            );
            row(&name, worst, "points", "<= 0.3", &each)?;
        }
    }
    let own = [
        Contender::PLAN,
        Contender::LEARNED,
        Contender::MOVES,
        Contender::QueuedFgd,
        Contender::QUEUED,
    ];
    let fgd = Contender::Published(Baseline::Fgd);
    let all: Vec<Contender> = [fgd].into_iter().chain(own).collect();
    let (rows, ..) = replay(&all, &workloads, &names, &seeds)?;
    let default = rows
        .iter()
        .find(|row| row.known.workload == "default")
        .ok_or("the workload `default` is not among them")?;
    let seeds = format!("default, {} seeds", seeds.len());
    for (policy, target) in [
        (fgd, ""),
        (Contender::PLAN, ">= 96.3"),
        (Contender::LEARNED, ""),
        (Contender::MOVES, ">= 96.5"),
        (Contender::QueuedFgd, ""),
        (Contender::QUEUED, ">= 98.0"),
    ] {
        if let Some((end, full)) = default.of(policy) {
            row(
                &format!("(G1) {}, allocation", policy.name()),
                end.mean,
                "%",
                target,
                &seeds,
            )?;
            row(
                &format!("(G1) {}, allocation when 100 % has arrived", policy.name()),
                full.mean,
                "%",
                "",
                &seeds,
            )?;
        }
    }
    row(
        "(G1) bound without moves",
        default.bound(),
        "%",
        "",
        "linear programme",
    )?;
    let moved = moved(default, Contender::MOVES).unwrap_or(0.0);
    row("(G1) MOVES, pods moved", moved, "%", "<= 5", &seeds)?;
    let least =
        |gain: fn(&Row) -> Option<f64>| rows.iter().filter_map(gain).fold(f64::INFINITY, f64::min);
    row(
        "(G1) PLAN over FGD, smallest gain of a workload",
        least(gain),
        "points",
        ">= 0.5",
        &each,
    )?;
    row(
        "(G1) PLAN over FGD when 100 % has arrived, smallest gain",
        least(gain_at_full),
        "points",
        ">= 0",
        &each,
    )?;
    Ok(())
}

type Replayed = (Vec<Row>, f64, usize);

fn replay(
    policies: &[Contender],
    workloads: &[Workload],
    names: &[String],
    seeds: &[u64],
) -> Result<Replayed, Illegal> {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the grid takes is a figure"
    )]
    let start = std::time::Instant::now();
    let cells = grid::run(policies, workloads, seeds, 2)?;
    let took = start.elapsed().as_secs_f64();
    Ok((report::rows(&cells, policies, names), took, cells.len()))
}

fn gain(row: &Row) -> Option<f64> {
    let (own, _) = row.of(Contender::PLAN)?;
    let (fgd, _) = row.of(Contender::Published(Baseline::Fgd))?;
    Some(own.mean - fgd.mean)
}

fn gain_at_full(row: &Row) -> Option<f64> {
    let (_, own) = row.of(Contender::PLAN)?;
    let (_, fgd) = row.of(Contender::Published(Baseline::Fgd))?;
    Some(own.mean - fgd.mean)
}

fn moved(row: &Row, policy: Contender) -> Option<f64> {
    let at = row
        .results
        .iter()
        .position(|(other, ..)| *other == policy)?;
    row.moved.get(at).copied()
}
