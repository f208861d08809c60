//! How fast places are found in a cell of 10,000 nodes with eight GPUs each:
//! `cargo bench -p scheduler-core --bench placement`.
//!
//! Demands are drawn from the types of tasks of a published production trace (Alibaba,
//! cluster-trace-gpu-v2023, pod list `default`: `openb_default.csv` counts its different tasks).
//! Everything is drawn from a fixed seed and runs on one thread; answers are compared with the
//! search through all nodes outside the measured time.
//!
//! `--quick` takes a tenth of the cell, `--only` a part: `search`, `first`, `fill`, `steady` or
//! `many`. Each figure is a line of its own: `row`, name, value, unit, target, anchor, with tabs
//! between them. What preempts the bench counts as its own time, so it wants a processor alone.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measurement: it reads the clock, prints, and stops where something is wrong"
)]

mod load;

use std::time::{Duration, Instant};

use load::{Demands, Mix, cell};
use scheduler_core::{
    cluster::{Demand, Place},
    fragmentation::{Definition, Gradient, Popularity},
    index::Index,
    placement::{BestFit, Rule, scan},
};

const SEED: u64 = 42;

/// Decisions between two comparisons with the search through all nodes.
const COMPARED: usize = 997;

/// The rate of arrivals in the measurement of latency, per second.
const RATE: u32 = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = arguments
        .iter()
        .skip_while(|argument| *argument != "--only")
        .nth(1);
    let wanted = |part: &str| only.is_none_or(|only| only.split(',').any(|name| name == part));
    let demands = Demands::read();
    let popularity = Popularity::typical(demands.list());
    let gradient = Gradient::new(&popularity);
    let (nodes, tasks) = if quick {
        (1_000, 13_000)
    } else {
        (10_000, 130_000)
    };
    let bench = Bench {
        demands,
        nodes,
        tasks,
    };
    if wanted("search") {
        bench.search("gradient by definition", &Definition::new(popularity), 100);
        bench.search("gradient", &gradient, 1_000);
        bench.search("best fit", &BestFit, 1_000);
    }
    if wanted("first") {
        bench.first("gradient", gradient.clone());
        bench.first("best fit", BestFit);
    }
    if wanted("fill") {
        bench.fill("gradient", gradient.clone());
        bench.fill("best fit", BestFit);
    }
    if wanted("steady") {
        bench.steady("gradient", gradient.clone(), true);
        bench.steady("best fit", BestFit, true);
    }
    if wanted("many") {
        let demands = bench.demands.varied(8);
        let many = Bench { demands, ..bench };
        many.steady("gradient", gradient, false);
    }
}

/// What is measured on.
struct Bench {
    demands: Demands,
    nodes: u32,
    tasks: usize,
}

impl Bench {
    fn row(&self, what: &str, value: f64, unit: &str, target: &str) {
        let demands = self.demands.different.len();
        let anchor = format!(
            "{} nodes x 8 GPUs, {demands} demands, one thread",
            self.nodes
        );
        println!("row\t{what}\t{value}\t{unit}\t{target}\t{anchor}");
    }

    /// A cell that best fit has filled to 90 %.
    fn loaded(&self, mix: &mut Mix) -> Index<BestFit> {
        let mut index = Index::new(cell(self.nodes), BestFit);
        fill_up(&mut index, &self.demands, mix);
        index
    }

    /// Searches through all nodes of a cell that is 90 % full.
    fn search<R: Rule>(&self, rule_name: &str, rule: &R, decisions: u32) {
        let mut mix = Mix(SEED);
        let index = self.loaded(&mut mix);
        let start = Instant::now();
        for _ in 0..decisions {
            std::hint::black_box(scan(rule, index.cluster(), &self.demands.draw(&mut mix)));
        }
        let each = micros(start.elapsed()) / f64::from(decisions);
        self.row(
            &format!("search through all nodes at 90 %, {rule_name}"),
            each,
            "us",
            "",
        );
    }

    /// Questions for demands without a column, in a cell that is 90 % full.
    fn first<R: Rule>(&self, rule_name: &str, rule: R) {
        let loaded = self.loaded(&mut Mix(SEED));
        let mut index = Index::with_columns(loaded.cluster().clone(), rule, 1);
        let start = Instant::now();
        for (demand, _) in &self.demands.different {
            std::hint::black_box(index.place(demand));
        }
        let each = micros(start.elapsed()) / self.demands.different.len() as f64;
        self.row(
            &format!("first question for a demand at 90 %, {rule_name}"),
            each,
            "us",
            "",
        );
    }

    /// Arrivals into an empty cell: decide, take, until all have come.
    fn fill<R: Rule>(&self, rule_name: &str, rule: R) {
        let mut mix = Mix(SEED);
        let mut index = Index::new(cell(self.nodes), rule);
        let list: Vec<Demand> = (0..self.tasks)
            .map(|_| self.demands.draw(&mut mix))
            .collect();
        let mut spent = Duration::ZERO;
        for part in list.chunks(COMPARED) {
            let start = Instant::now();
            for demand in part {
                if let Some(choice) = index.place(demand) {
                    index
                        .take(choice.place, demand)
                        .expect("the place has room");
                }
            }
            spent += start.elapsed();
            compare(&mut index, &part[0]);
        }
        let name = |what: &str| format!("filling an empty cell, {rule_name}: {what}");
        let rate = self.tasks as f64 / spent.as_secs_f64();
        self.row(&name("decisions"), rate, "1/s", ">= 100000");
        let (held, total) = (
            index.cluster().held().blocks,
            index.cluster().total().blocks,
        );
        self.row(
            &name("blocks held"),
            100.0 * held as f64 / total as f64,
            "%",
            "",
        );
    }

    /// Arrivals and departures at 90 % load.
    ///
    /// The latency of an arrival counts from when it was due, at a fixed rate, on a clock that
    /// only the measured work moves forward: what waits behind a slow one is counted as slow,
    /// too. The work of an arrival includes ranking the nodes that departures changed.
    fn steady<R: Rule>(&self, rule_name: &str, rule: R, has_target: bool) {
        let mut mix = Mix(SEED);
        let mut index = Index::new(cell(self.nodes), rule);
        let mut held = fill_up(&mut index, &self.demands, &mut mix);
        let full = index.cluster().total().blocks * 9 / 10;
        let (mut work, mut latency) = (Vec::new(), Vec::new());
        let mut all = Duration::ZERO;
        let interval = Duration::from_secs(1) / RATE;
        let (mut clock, mut due) = (Duration::ZERO, Duration::ZERO);
        for arrival in 0..self.tasks {
            let demand = self.demands.draw(&mut mix);
            let start = Instant::now();
            let found = index.place(&demand);
            if let Some(choice) = found {
                index
                    .take(choice.place, &demand)
                    .expect("the place has room");
            }
            let spent = start.elapsed();
            held.extend(found.map(|choice| (choice.place, demand)));
            all += spent;
            work.push(spent);
            due += interval;
            clock = clock.max(due) + spent;
            latency.push(clock - due);
            while index.cluster().held().blocks > full {
                let (place, demand) = held.swap_remove(mix.below(held.len() as u32) as usize);
                let start = Instant::now();
                index.give(place, &demand).expect("it is held");
                let spent = start.elapsed();
                all += spent;
                clock += spent;
            }
            if arrival % COMPARED == 0 {
                compare(&mut index, &demand);
            }
        }
        let name = |what: &str| format!("arrivals and departures at 90 %, {rule_name}: {what}");
        let target = |target| if has_target { target } else { "" };
        let rate = self.tasks as f64 / all.as_secs_f64();
        self.row(&name("arrivals"), rate, "1/s", target(">= 100000"));
        work.sort_unstable();
        self.row(
            &name("work of an arrival, p50"),
            micros(at(&work, 0.5)),
            "us",
            "",
        );
        self.row(
            &name("work of an arrival, p99"),
            micros(at(&work, 0.99)),
            "us",
            target("<= 100"),
        );
        self.row(
            &name("work of an arrival, p99.9"),
            micros(at(&work, 0.999)),
            "us",
            target("<= 1000"),
        );
        if has_target {
            latency.sort_unstable();
            let name = |share: &str| name(&format!("latency at {RATE}/s, {share}"));
            self.row(&name("p99"), micros(at(&latency, 0.99)), "us", "<= 100");
            self.row(&name("p99.9"), micros(at(&latency, 0.999)), "us", "<= 1000");
        }
    }
}

/// Fills a cell to 90 % of its blocks and says who holds what.
fn fill_up<R: Rule>(
    index: &mut Index<R>,
    demands: &Demands,
    mix: &mut Mix,
) -> Vec<(Place, Demand)> {
    let full = index.cluster().total().blocks * 9 / 10;
    let mut held = Vec::new();
    let mut refused = 0;
    while index.cluster().held().blocks < full {
        let demand = demands.draw(mix);
        if let Some(choice) = index.place(&demand) {
            index
                .take(choice.place, &demand)
                .expect("the place has room");
            held.push((choice.place, demand));
        } else {
            refused += 1;
            assert!(refused < 100_000, "the cell cannot be filled to 90 %");
        }
    }
    held
}

fn compare<R: Rule>(index: &mut Index<R>, demand: &Demand) {
    let found = index.place(demand);
    let searched = scan(index.rule(), index.cluster(), demand);
    assert!(found == searched, "{demand}: {found:?} is not {searched:?}");
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The value that this share of the sorted ones does not exceed.
fn at(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}
