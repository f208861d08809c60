//! Fragmentation gradient descent: the node whose fragmentation a task makes grow least.
//!
//! With the typical classes m of popularity p (those that make up 95 % of all tasks), the
//! fragmentation of a node is the sum over m of p(m) times the free GPU that m cannot use: all
//! of it when m asks for no GPU, does not accept the model or does not fit; else that of the
//! GPUs with less free than m asks of each. The score is floor(100 s((F - F')/1000)) with the
//! logistic function s, F and F' in thousandths of a GPU before and after. The rounding is part
//! of the policy: it makes ties, and those go to the first node.
//!
//! Source: Weng et al., USENIX ATC 2023, section 4, and the simulator published with it.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the innermost loop of every decision; tables are built with one size, sums stay below 2^50"
)]

use super::board::Score;
use super::{Class, Free, WHOLE};
use crate::cluster::{GpuSet, Kind, MAX_GPUS};

/// Where the score passes from k - 1 to k: 1000 ln(k / (100 - k)), in millionths, k in 1..=99.
#[rustfmt::skip]
const STEPS: [i64; 99] = [
    -4_595_119_850, -3_891_820_298, -3_476_098_690, -3_178_053_830, -2_944_438_979, -2_751_535_313, -2_586_689_344, -2_442_347_035,
    -2_313_634_929, -2_197_224_577, -2_090_741_097, -1_992_430_165, -1_900_958_761, -1_815_289_967, -1_734_601_055, -1_658_228_077,
    -1_585_627_264, -1_516_347_489, -1_450_010_176, -1_386_294_361, -1_324_925_415, -1_265_666_373, -1_208_311_206, -1_152_679_510,
    -1_098_612_289, -1_045_968_555, -994_622_575, -944_461_609, -895_384_047, -847_297_860, -800_119_300, -753_771_802,
    -708_185_058, -663_294_217, -619_039_208, -575_364_145, -532_216_814, -489_548_225, -447_312_218, -405_465_108,
    -363_965_377, -322_773_392, -281_851_152, -241_162_057, -200_670_695, -160_342_650, -120_144_312, -80_042_708,
    -40_005_335, 0, 40_005_335, 80_042_708, 120_144_312, 160_342_650, 200_670_695, 241_162_057,
    281_851_152, 322_773_392, 363_965_377, 405_465_108, 447_312_218, 489_548_225, 532_216_814, 575_364_145,
    619_039_208, 663_294_217, 708_185_058, 753_771_802, 800_119_300, 847_297_860, 895_384_047, 944_461_609,
    994_622_575, 1_045_968_555, 1_098_612_289, 1_152_679_510, 1_208_311_206, 1_265_666_373, 1_324_925_415, 1_386_294_361,
    1_450_010_176, 1_516_347_489, 1_585_627_264, 1_658_228_077, 1_734_601_055, 1_815_289_967, 1_900_958_761, 1_992_430_165,
    2_090_741_097, 2_197_224_577, 2_313_634_929, 2_442_347_035, 2_586_689_344, 2_751_535_313, 2_944_438_979, 3_178_053_830,
    3_476_098_690, 3_891_820_298, 4_595_119_850,
];

/// A class and how many tasks had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Popular {
    /// The class.
    pub class: Class,
    /// How many tasks had it.
    pub count: u32,
}

/// The most popular classes, together at least 95 % of all tasks; of equals the larger first.
#[must_use]
pub fn typical(popularity: &[Popular]) -> Vec<Popular> {
    let mut sorted: Vec<Popular> = popularity.to_vec();
    sorted.sort_by(|a, b| {
        let key = |p: &Popular| {
            (
                p.count,
                p.class.cpu,
                p.class.blocks,
                p.class.gpus,
                p.class.kinds,
            )
        };
        key(b).cmp(&key(a))
    });
    let all: u64 = sorted.iter().map(|p| u64::from(p.count)).sum();
    let mut sum = 0;
    let mut kept = 0;
    while kept < sorted.len() && sum * 100 < all * 95 {
        sum += u64::from(sorted[kept].count);
        kept += 1;
    }
    sorted.truncate(kept);
    sorted
}

/// The fragmentation of nodes under one popularity, as tables.
#[derive(Debug, Clone)]
pub struct Fgd {
    /// The sum of all counts.
    weight: i64,
    /// [`STEPS`] times the weight.
    steps: Vec<i64>,
    /// The processor requests, rising: the tables have one line for each, and one before.
    cpus: Vec<u32>,
    /// For what is free on a GPU the column of the tables.
    column: Vec<u8>,
    columns: usize,
    tables: Vec<Table>,
}

/// For one kind of nodes: the weight of the classes that can use something.
#[derive(Debug, Clone)]
struct Table {
    /// By processor line and column of what is free on a GPU: classes with one GPU.
    single: Vec<i64>,
    /// By processor line and idle GPUs: classes with several GPUs.
    multi: Vec<i64>,
}

impl Fgd {
    /// The tables for a popularity; `kinds` is how many kinds of nodes there are.
    #[must_use]
    pub fn new(popularity: &[Popular], kinds: u8) -> Self {
        let typical = typical(popularity);
        let mut cpus: Vec<u32> = typical.iter().map(|p| p.class.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let mut shares: Vec<u8> = typical
            .iter()
            .filter(|p| p.class.gpus == 1)
            .map(|p| p.class.blocks)
            .collect();
        shares.sort_unstable();
        shares.dedup();
        let column = (0..=WHOLE)
            .map(|free| u8::try_from(shares.partition_point(|&s| s <= free)).unwrap_or(u8::MAX))
            .collect();
        let columns = shares.len() + 1;
        let weight: i64 = typical.iter().map(|p| i64::from(p.count)).sum();
        let tables = (0..kinds)
            .filter_map(Kind::new)
            .map(|kind| Table::new(&typical, kind, &cpus, &shares))
            .collect();
        Self {
            weight,
            steps: STEPS.iter().map(|step| step * weight).collect(),
            cpus,
            column,
            columns,
            tables,
        }
    }

    fn line(&self, cpu: u32) -> usize {
        self.cpus.partition_point(|&c| c <= cpu)
    }

    /// The free GPU that is usable, in thousandths, times the weight.
    fn usable(&self, node: &Free, cpu: u32) -> i64 {
        let table = &self.tables[usize::from(node.kind.number())];
        let line = self.line(cpu);
        let single = &table.single[line * self.columns..(line + 1) * self.columns];
        let mut sum = 0;
        let mut idle = 0;
        for &free in node.gpus() {
            sum += i64::from(free) * single[usize::from(self.column[usize::from(free)])];
            idle += usize::from(free == WHOLE);
        }
        sum + idle_usable(table, line, idle)
    }

    /// The fragmentation of a node, in blocks times [`Fgd::weight`].
    #[must_use]
    pub fn fragmentation(&self, node: &Free) -> i64 {
        i64::from(node.total()) * self.weight - self.usable(node, node.cpu)
    }

    /// By what the fragmentation is scaled.
    #[must_use]
    pub fn weight(&self) -> i64 {
        self.weight
    }

    fn step(&self, decrease: i64) -> i16 {
        // A block is ten thousandths of a GPU.
        let decrease = decrease * 10 * 1_000_000;
        let step = self.steps.partition_point(|&step| step <= decrease);
        i16::try_from(step).unwrap_or(i16::MAX)
    }

    /// The score and the GPUs, or `None` when a task of the class does not fit.
    #[must_use]
    pub fn rate(&self, node: &Free, class: &Class) -> Option<(i16, GpuSet)> {
        if !node.fits(class) {
            return None;
        }
        let before = self.usable(node, node.cpu);
        let cpu = node.cpu - class.cpu;
        let taken = i64::from(class.total()) * self.weight;
        if !class.is_shared() {
            let set = node.first_idle(class.gpus)?;
            let mut after = *node;
            for gpu in set.iter() {
                after.gpus[gpu] = 0;
            }
            return Some((self.step(taken - before + self.usable(&after, cpu)), set));
        }
        let table = &self.tables[usize::from(node.kind.number())];
        let line = self.line(cpu);
        let single = &table.single[line * self.columns..(line + 1) * self.columns];
        let worth =
            |free: u8| i64::from(free) * single[usize::from(self.column[usize::from(free)])];
        let mut sum = 0;
        let mut idle = 0;
        for &free in node.gpus() {
            sum += worth(free);
            idle += usize::from(free == WHOLE);
        }
        let mut best: Option<(i64, i16, usize)> = None;
        let mut tried: u8 = 0;
        for (gpu, &free) in node.gpus().iter().enumerate() {
            // Of GPUs with the same room only the first can be chosen.
            if free < class.blocks || free == tried {
                continue;
            }
            tried = free;
            let opened = usize::from(free == WHOLE);
            let after = sum - worth(free)
                + worth(free - class.blocks)
                + idle_usable(table, line, idle - opened);
            if best.is_some_and(|(most, _, _)| after <= most) {
                continue;
            }
            let score = self.step(taken - before + after);
            if best.is_none_or(|(_, top, _)| score > top) {
                best = Some((after, score, gpu));
            }
        }
        best.map(|(_, score, gpu)| (score, GpuSet::one(gpu)))
    }
}

fn idle_usable(table: &Table, line: usize, idle: usize) -> i64 {
    let idle_weight = table.multi[line * (MAX_GPUS + 1) + idle];
    i64::try_from(idle).unwrap_or(0) * i64::from(WHOLE) * idle_weight
}

impl Table {
    fn new(typical: &[Popular], kind: Kind, cpus: &[u32], shares: &[u8]) -> Self {
        let columns = shares.len() + 1;
        let mut single = vec![0; (cpus.len() + 1) * columns];
        let mut multi = vec![0; (cpus.len() + 1) * (MAX_GPUS + 1)];
        for popular in typical {
            let class = popular.class;
            if class.gpus == 0 || !class.kinds.admits(kind) {
                continue;
            }
            let first = cpus.partition_point(|&c| c < class.cpu) + 1;
            for line in first..=cpus.len() {
                if class.gpus == 1 {
                    let from = shares.partition_point(|&s| s < class.blocks) + 1;
                    for cell in &mut single[line * columns + from..(line + 1) * columns] {
                        *cell += i64::from(popular.count);
                    }
                } else {
                    let row = line * (MAX_GPUS + 1);
                    for cell in &mut multi[row + usize::from(class.gpus)..=row + MAX_GPUS] {
                        *cell += i64::from(popular.count);
                    }
                }
            }
        }
        Self { single, multi }
    }
}

impl Score for Fgd {
    fn score(&self, _: usize, node: &Free, class: &Class) -> Option<i16> {
        self.rate(node, class).map(|(score, _)| score)
    }
}
