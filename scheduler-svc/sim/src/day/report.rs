//! Days behind every policy, as a table and a drawing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cnlab_model::Timestamp;
use scheduler_core::engine::{Engine, Settings};
use scheduler_core::fragmentation::{Gradient, Popularity};
use scheduler_core::index::Index;
use scheduler_core::placement::BestFit;

use super::policy::Queue;
use super::{Day, Outcome, run};
use crate::openb;
use crate::trace::TraceError;

/// Nodes of the cell.
const NODES: usize = 100;
/// GPU time asked for, in per cent of what there is.
pub const LOADS: [u32; 3] = [70, 100, 130];
/// The policies, as the table calls them.
pub const POLICIES: [&str; 5] = ["FIFO", "best fit", "FGD", "engine", "engine, FGD"];
const COLOURS: [&str; 5] = ["#9e9e9e", "#ffbb78", "#1f77b4", "#d62728", "#9467bd"];

/// One day of a load, behind every policy in the order of [`POLICIES`].
#[derive(Debug, Clone)]
pub struct Compared {
    /// The load in per cent.
    pub load: u32,
    /// How many jobs arrived.
    pub jobs: usize,
    /// What it came to.
    pub outcomes: Vec<Outcome>,
}

/// Lets the days of a seed pass, with so many nodes of the trace.
///
/// # Errors
/// When the trace cannot be read.
pub fn compare(
    seed: u64,
    loads: &[u32],
    nodes: Option<usize>,
) -> Result<Vec<Compared>, TraceError> {
    let hosts = openb::hosts()?;
    let pods = openb::pods("default", &hosts)?;
    let popularity = Popularity::typical(pods.iter().map(|pod| pod.demand));
    let mut all = Vec::new();
    for &load in loads {
        let day = Day::new(&hosts, &pods, nodes.unwrap_or(NODES), load, seed)?;
        let best_fit = || Index::new(day.cluster.clone(), BestFit);
        let cluster = || day.cluster.clone();
        let gradient = || Gradient::new(&popularity);
        let (vram, settings, midnight) = (BTreeMap::new(), Settings::default(), Timestamp(0));
        let outcomes = vec![
            run(&day, &mut Queue::new(best_fit(), false)),
            run(&day, &mut Queue::new(best_fit(), true)),
            run(
                &day,
                &mut Queue::new(Index::new(cluster(), gradient()), true),
            ),
            run(
                &day,
                &mut Engine::new(cluster(), BestFit, vram.clone(), settings, midnight),
            ),
            run(
                &day,
                &mut Engine::new(cluster(), gradient(), vram, settings, midnight),
            ),
        ];
        all.push(Compared {
            load,
            jobs: day.jobs.len(),
            outcomes,
        });
    }
    Ok(all)
}

/// The value that this share of sorted values does not exceed, in minutes.
#[must_use]
pub fn minutes(sorted: &[f64], permille: usize) -> f64 {
    let at = (sorted.len() * permille).div_ceil(1_000).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(0.0) / 60.0
}

/// The tables, as markdown.
#[must_use]
pub fn markdown(days: &[Compared]) -> String {
    let mut text = String::new();
    for day in days {
        let _ = writeln!(
            text,
            "Load {} %, {} jobs:\n\n\
             | policy | allocation % | wait p50, min | wait p95, min | urgent p95, min | slowdown | fairness | missed deadlines | refused | gave way |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            day.load, day.jobs
        );
        for (name, outcome) in POLICIES.iter().zip(&day.outcomes) {
            let (missed, of) = outcome.missed;
            let _ = writeln!(
                text,
                "| {name} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.3} | {missed} of {of} | {} | {} |",
                outcome.allocation,
                minutes(&outcome.waits, 500),
                minutes(&outcome.waits, 950),
                minutes(&outcome.urgent_waits, 950),
                outcome.slowdown,
                outcome.fairness,
                outcome.refused,
                outcome.gave_way,
            );
        }
        text.push('\n');
    }
    text
}

/// Use over the day, and waits, one panel of each per load.
#[must_use]
pub fn svg(days: &[Compared]) -> String {
    const WIDTH: f64 = 420.0;
    const HEIGHT: f64 = 160.0;
    const GAP: f64 = 60.0;
    let mut body = String::new();
    let mut at = 60.0;
    for (name, colour) in POLICIES.iter().zip(COLOURS) {
        let _ = writeln!(
            body,
            "<rect x=\"{at}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"20\">{name}</text>",
            at + 18.0
        );
        at += 110.0;
    }
    let mut top = 60.0;
    for day in days {
        let _ = writeln!(
            body,
            "<text x=\"60\" y=\"{}\">GPU blocks in use over 24 hours, load {} %</text>\
             <text x=\"{}\" y=\"{}\">wait, share of jobs that start within 1 min … 24 h</text>",
            top - 8.0,
            day.load,
            60.0 + WIDTH + GAP,
            top - 8.0
        );
        for left in [60.0, 60.0 + WIDTH + GAP] {
            let _ = writeln!(
                body,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>\
                 <text x=\"{}\" y=\"{}\">100 %</text><text x=\"{}\" y=\"{}\">0</text>",
                left - 45.0,
                top + 10.0,
                left - 20.0,
                top + HEIGHT
            );
        }
        for (outcome, colour) in day.outcomes.iter().zip(COLOURS) {
            let curve = points(&outcome.curve, 60.0, WIDTH, top, HEIGHT);
            let waits = points(
                &starts(&outcome.waits),
                60.0 + WIDTH + GAP,
                WIDTH,
                top,
                HEIGHT,
            );
            for line in [curve, waits] {
                let _ = writeln!(
                    body,
                    "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
                );
            }
        }
        top += HEIGHT + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{top}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n",
        60.0 + 2.0 * WIDTH + GAP + 20.0
    )
}

/// The share of jobs that started within 1, 1.2, … 1,440 minutes, in per cent.
fn starts(sorted: &[f64]) -> Vec<f64> {
    let mut within = Vec::new();
    let mut limit = 60.0;
    while limit <= 24.0 * 3_600.0 {
        let count = sorted.partition_point(|wait| *wait <= limit);
        within.push(percent(count, sorted.len()));
        limit *= 1.2;
    }
    within
}

#[expect(clippy::cast_precision_loss, reason = "jobs of a day")]
fn percent(part: usize, all: usize) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "points of a drawing")]
fn points(values: &[f64], left: f64, width: f64, top: f64, height: f64) -> String {
    let last = values.len().saturating_sub(1).max(1) as f64;
    let mut text = String::new();
    for (at, value) in values.iter().enumerate() {
        let (x, y) = (
            left + width * at as f64 / last,
            top + height * (1.0 - value.clamp(0.0, 100.0) / 100.0),
        );
        let _ = write!(text, "{x:.1},{y:.1} ");
    }
    text.trim_end().to_owned()
}
