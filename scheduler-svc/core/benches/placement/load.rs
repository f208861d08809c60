//! The cell and the tasks that come to it, from a fixed seed.

use scheduler_core::cluster::{Cluster, Demand, Kind, Node};

/// Nodes of four sorts in a fixed pattern, eight GPUs each.
pub(crate) fn cell(nodes: u32) -> Cluster {
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
pub(crate) struct Demands {
    pub(crate) different: Vec<(Demand, u32)>,
    total: u32,
}

impl Demands {
    pub(crate) fn read() -> Self {
        let rows = include_str!("../openb_default.csv").lines().skip(1);
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
    pub(crate) fn varied(&self, variants: u32) -> Self {
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

    pub(crate) fn list(&self) -> impl Iterator<Item = Demand> {
        let each = |(demand, count): &(Demand, u32)| std::iter::repeat_n(*demand, *count as usize);
        self.different.iter().flat_map(each)
    }

    pub(crate) fn draw(&self, mix: &mut Mix) -> Demand {
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
pub(crate) struct Mix(pub(crate) u64);

impl Mix {
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        (((word >> 32) * u64::from(bound)) >> 32) as u32
    }
}
