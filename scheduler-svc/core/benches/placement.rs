//! How fast places are found in a cell of 10,000 nodes with eight GPUs each.
//!
//! Demands are drawn from the types of tasks of a published production trace (Alibaba,
//! cluster-trace-gpu-v2023, pod list `default`: `openb_default.csv` counts its different tasks).
//! Everything is drawn from a fixed seed and runs on one thread; answers are compared with the
//! search through all nodes outside the measured time.
//!
//! `cargo bench -p scheduler-core --bench placement`, with `-- --quick` for a tenth of the cell
//! and `-- search fill steady` for some of the parts.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measurement: it reads the clock, prints, and stops where something is wrong"
)]

use std::time::{Duration, Instant};

use scheduler_core::{
    cluster::{Cluster, Demand, Kind, Node, Place},
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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let (nodes, tasks) = if quick {
        (1_000, 13_000)
    } else {
        (10_000, 130_000)
    };
    let demands = Demands::read();
    let popularity = Popularity::typical(demands.list());
    println!(
        "{nodes} nodes x 8 GPUs, {} different demands, {} of them typical, one thread, seed {SEED}",
        demands.different.len(),
        popularity.types().len(),
    );
    let gradient = Gradient::new(&popularity);
    let bench = Bench {
        only: arguments
            .into_iter()
            .filter(|argument| !argument.starts_with('-'))
            .collect(),
        demands,
        nodes,
        tasks,
    };
    bench.searched(
        "gradient by its definition",
        &Definition::new(popularity),
        100,
    );
    bench.searched("gradient", &gradient, 1_000);
    bench.searched("best fit", &BestFit, 1_000);
    bench.asked_first("best fit", BestFit);
    bench.asked_first("gradient", gradient.clone());
    bench.filled("best fit", BestFit);
    bench.filled("gradient", gradient.clone());
    bench.steady("best fit", BestFit);
    bench.steady("gradient", gradient.clone());
    // Many more demands than a cell usually sees.
    let demands = bench.demands.varied(8);
    Bench { demands, ..bench }.steady("gradient", gradient);
}

/// What is measured on.
struct Bench {
    /// Parts of the names of the rows that are wanted; empty for all.
    only: Vec<String>,
    demands: Demands,
    nodes: u32,
    tasks: usize,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Searches through all nodes of a cell that is 90 % full.
    fn searched<R: Rule>(&self, rule_name: &str, rule: &R, decisions: usize) {
        let name = format!("search, {rule_name}, at 90 %");
        if !self.wants(&name) {
            return;
        }
        let mut mix = Mix(SEED);
        let mut index = Index::new(cell(self.nodes), BestFit);
        load(&mut index, &self.demands, &mut mix);
        let start = Instant::now();
        for _ in 0..decisions {
            std::hint::black_box(scan(rule, index.cluster(), &self.demands.draw(&mut mix)));
        }
        row(&name, decisions, start.elapsed());
    }

    /// Questions for demands without a column, in a cell that is 90 % full.
    fn asked_first<R: Rule>(&self, rule_name: &str, rule: R) {
        let name = format!("index, {rule_name}, demands not asked before, at 90 %");
        if !self.wants(&name) {
            return;
        }
        let mut mix = Mix(SEED);
        let mut loaded = Index::new(cell(self.nodes), BestFit);
        load(&mut loaded, &self.demands, &mut mix);
        let mut index = Index::with_columns(loaded.cluster().clone(), rule, 1);
        let start = Instant::now();
        for (demand, _) in &self.demands.different {
            std::hint::black_box(index.place(demand));
        }
        row(&name, self.demands.different.len(), start.elapsed());
    }

    /// Arrivals into an empty cell: decide, take, until all have come.
    fn filled<R: Rule>(&self, rule_name: &str, rule: R) {
        let name = format!("index, {rule_name}, filling an empty cell");
        if !self.wants(&name) {
            return;
        }
        let mut mix = Mix(SEED);
        let mut index = Index::new(cell(self.nodes), rule);
        let list: Vec<Demand> = (0..self.tasks)
            .map(|_| self.demands.draw(&mut mix))
            .collect();
        let mut spent = Duration::ZERO;
        let mut placed = 0_usize;
        for part in list.chunks(COMPARED) {
            let start = Instant::now();
            for demand in part {
                if let Some(choice) = index.place(demand) {
                    index
                        .take(choice.place, demand)
                        .expect("the place has room");
                    placed += 1;
                }
            }
            spent += start.elapsed();
            compare(&mut index, &part[0]);
        }
        row(&name, self.tasks, spent);
        let (held, total) = (
            index.cluster().held().blocks,
            index.cluster().total().blocks,
        );
        println!(
            "    {placed} placed, {:.2} % of the blocks held",
            100.0 * held as f64 / total as f64
        );
    }

    /// Arrivals and departures at 90 % load.
    ///
    /// The latency of an arrival counts from when it was due, at a fixed rate, on a clock that
    /// only the measured work moves forward: what waits behind a slow one is counted as slow,
    /// too. The work of an arrival includes ranking the nodes that departures changed.
    fn steady<R: Rule>(&self, rule_name: &str, rule: R) {
        let count = self.demands.different.len();
        let name = format!("index, {rule_name}, arrivals and departures at 90 %, {count} demands");
        if !self.wants(&name) {
            return;
        }
        let mut mix = Mix(SEED);
        let mut index = Index::new(cell(self.nodes), rule);
        let mut held = load(&mut index, &self.demands, &mut mix);
        let full = index.cluster().total().blocks * 9 / 10;
        let (mut work, mut gone, mut latency) = (Vec::new(), Vec::new(), Vec::new());
        let interval = Duration::from_secs(1) / RATE;
        let mut clock = Duration::ZERO;
        let mut due = Duration::ZERO;
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
            work.push(spent);
            due += interval;
            clock = clock.max(due) + spent;
            latency.push(clock - due);
            while index.cluster().held().blocks > full {
                let (place, demand) = held.swap_remove(mix.below(held.len() as u32) as usize);
                let start = Instant::now();
                index.give(place, &demand).expect("it is held");
                let spent = start.elapsed();
                gone.push(spent);
                clock += spent;
            }
            if arrival % COMPARED == 0 {
                compare(&mut index, &demand);
            }
        }
        row(&name, self.tasks, work.iter().chain(&gone).sum());
        println!("    {} departures, {} columns", gone.len(), index.columns());
        percentiles("work of an arrival", &mut work);
        percentiles(&format!("latency at {RATE}/s"), &mut latency);
    }
}

/// Fills a cell to 90 % of its blocks and says who holds what.
fn load<R: Rule>(index: &mut Index<R>, demands: &Demands, mix: &mut Mix) -> Vec<(Place, Demand)> {
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

fn row(what: &str, count: usize, spent: Duration) {
    let each = spent.as_nanos() as f64 / count as f64;
    println!(
        "{what}: {:.0}/s, {:.2} us each, {count} in {spent:.2?}",
        1e9 / each,
        each / 1e3
    );
}

fn percentiles(what: &str, values: &mut [Duration]) {
    values.sort_unstable();
    let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
    println!(
        "    {what}: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}, most {:.1?}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Nodes of four sorts in a fixed pattern, eight GPUs each.
fn cell(nodes: u32) -> Cluster {
    let mut cell = Cluster::new();
    for number in 0..nodes {
        let (kind, cpu, memory) = match number % 20 {
            0 | 1 => (1, 192_000, 1_048_576),
            2..5 => (2, 160_000, 786_432),
            5..8 => (3, 96_000, 393_216),
            _ => (0, 128_000, 524_288),
        };
        let kind = Kind::new(kind).expect("a small number");
        let node = Node::new(kind, cpu, memory, 8).expect("eight GPUs");
        cell.add(node).expect("room");
    }
    cell
}

/// The demands of the trace and how often each occurs.
struct Demands {
    different: Vec<(Demand, u32)>,
    total: u32,
}

impl Demands {
    fn read() -> Self {
        let rows = include_str!("openb_default.csv").lines().skip(1);
        let different: Vec<_> = rows
            .map(|row| {
                let fields: Vec<u32> = row
                    .split(',')
                    .map(|field| field.parse().expect("a number"))
                    .collect();
                let [cpu, memory, gpus, blocks, count] = fields[..] else {
                    panic!("five fields");
                };
                (demand_of(cpu, memory, gpus, blocks), count)
            })
            .collect();
        let total = different.iter().map(|(_, count)| count).sum();
        Self { different, total }
    }

    /// Each demand in some variants, which want a little more memory one than the other.
    fn varied(&self, variants: u32) -> Self {
        let each = |&(demand, count): &(Demand, u32)| {
            (0..variants).map(move |more| {
                let (cpu, memory) = (demand.cpu_milli(), demand.memory_mib() + more);
                (
                    demand_of(cpu, memory, demand.gpus().into(), demand.blocks().into()),
                    count,
                )
            })
        };
        Self {
            different: self.different.iter().flat_map(each).collect(),
            total: self.total * variants,
        }
    }

    fn list(&self) -> impl Iterator<Item = Demand> {
        let each = |(demand, count): &(Demand, u32)| std::iter::repeat_n(*demand, *count as usize);
        self.different.iter().flat_map(each)
    }

    fn draw(&self, mix: &mut Mix) -> Demand {
        let mut at = mix.below(self.total);
        for (demand, count) in &self.different {
            match at.checked_sub(*count) {
                Some(rest) => at = rest,
                None => return *demand,
            }
        }
        unreachable!("the counts add up to the total")
    }
}

fn demand_of(cpu_milli: u32, memory_mib: u32, gpus: u32, blocks: u32) -> Demand {
    match gpus {
        0 => Ok(Demand::cpu_only(cpu_milli, memory_mib)),
        1 => Demand::share(cpu_milli, memory_mib, blocks as u8),
        more => Demand::whole(cpu_milli, memory_mib, more as u8),
    }
    .expect("a demand")
}

/// SplitMix64.
struct Mix(u64);

impl Mix {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        (((word >> 32) * u64::from(bound)) >> 32) as u32
    }
}
