//! Lays out the tasks that are expected, as slots on nodes and GPUs.
//!
//! A plan is advice: it is made on a copy, and nobody waits for it. Counts are expectations,
//! rounded so that the sums of a group stay right.
//!
//! ```text
//! expected small shares ──▶ gaps of used GPUs
//!            │ left over
//!            ▼
//! big shares + small shares ──▶ bundles, one idle GPU each ─┐
//! entire GPUs, processors only ─────────────────────────────┴──▶ nodes, by processors per idle GPU
//! ```
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "inner loops over tables built with one size; sums of a cell's tasks stay far below 2^63"
)]

use std::collections::VecDeque;

use super::bundle::{self, Accept, Bundle};
use super::gaps::{Gaps, room_key};
use super::rounding::Rounding;
use super::{Class, Free, WHOLE, cutting};
use crate::cluster::GpuSet;

/// Processor time that is kept for a task that a move will bring, in thousandths of a core.
const GUEST: u32 = 11_000;

/// What a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Arrivals between two plans, at most.
    pub every: u32,
    /// Plans look ahead until the demand would be this much of what is free of GPUs, in
    /// thousandths.
    pub horizon: u32,
    /// The expected small shares that are planned into gaps, in thousandths.
    pub small: u32,
    /// Shares from this many blocks on are not planned into gaps.
    pub big: u8,
    /// Processor time to keep for each idle GPU of a node, in thousandths of a core.
    pub reserve: u32,
    /// Tasks that may be moved, in thousandths of those placed.
    pub moves: u32,
}

impl Settings {
    /// What the scheduler uses.
    pub const DEFAULT: Self = Self {
        every: 400,
        horizon: 1000,
        small: 1000,
        big: 80,
        moves: 0,
        reserve: 9_000,
    };
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A class of tasks that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The class.
    pub class: Class,
    /// Its mean memory, in MiB.
    pub memory: u32,
    /// How many of all had it.
    pub count: u32,
}

/// Where a planned task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The node.
    pub node: usize,
    /// Its GPUs.
    pub gpus: GpuSet,
}

/// Slots, and what they leave.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// For each expected class, in the order in which they are to be used.
    pub slots: Vec<VecDeque<Slot>>,
    /// What is left of each node when all slots are used.
    pub spare: Vec<Free>,
}

/// Something that goes to one node: a bundle, a task on entire GPUs or on none.
#[derive(Debug, Clone)]
struct Item {
    gpus: u8,
    cpu: u32,
    memory: u32,
    kinds: Accept,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Task(usize),
    Bundle(Vec<usize>),
}

/// Makes plans.
#[derive(Debug, Clone)]
pub struct Planner {
    settings: Settings,
    expected: Vec<Expected>,
    /// Indices of `expected`, by group, each the largest first.
    big: Vec<usize>,
    small: Vec<usize>,
    processors: Vec<usize>,
    accept: Vec<Accept>,
    all: u64,
}

impl Planner {
    /// A planner for what is expected.
    #[must_use]
    pub fn new(settings: Settings, expected: Vec<Expected>) -> Self {
        let mut order: Vec<usize> = (0..expected.len()).collect();
        order.sort_by(|&a, &b| {
            let key = |i: usize| (expected[i].class.total(), expected[i].class.cpu);
            key(b)
                .cmp(&key(a))
                .then(expected[a].class.kinds.cmp(&expected[b].class.kinds))
                .then(a.cmp(&b))
        });
        let group = |wanted: u8| -> Vec<usize> {
            let of = |class: &Class| match class.total() {
                0 => 0,
                total if total >= u32::from(settings.big) => 2,
                _ => 1,
            };
            let chosen = order.iter().copied();
            chosen
                .filter(|&i| of(&expected[i].class) == wanted)
                .collect()
        };
        Self {
            settings,
            big: group(2),
            small: group(1),
            processors: group(0),
            accept: expected.iter().map(|e| Accept::of(e.class.kinds)).collect(),
            all: expected.iter().map(|e| u64::from(e.count)).sum(),
            expected,
        }
    }

    /// How many arrivals there are until the demand is the horizon's part of `free` blocks.
    #[must_use]
    pub fn arrivals(&self, free: u64) -> u64 {
        let total = |e: &Expected| u64::from(e.class.total()) * u64::from(e.count);
        let blocks: u64 = self.expected.iter().map(total).sum();
        let wanted = free * u64::from(self.settings.horizon) / 1000;
        (wanted * self.all).checked_div(blocks).unwrap_or(0)
    }

    /// Whether shares are to open idle GPUs before they fill gaps: where few ask for entire
    /// GPUs, and always where moves can bring shares together. The sooner no GPU has room for a
    /// big share, the fewer are admitted, each of which strands what is beside it.
    #[must_use]
    pub fn opens_first(&self) -> bool {
        let blocks = |e: &Expected| u64::from(e.class.total()) * u64::from(e.count);
        let all: u64 = self.expected.iter().map(blocks).sum();
        let entire = self
            .expected
            .iter()
            .filter(|e| e.class.total() >= u32::from(WHOLE));
        self.settings.moves > 0 || entire.map(blocks).sum::<u64>() * 4 <= all
    }

    /// Lays out the next `arrivals` on nodes as they are now. Small shares that `apart` moves
    /// can bring together later are laid out on GPUs of their own.
    #[must_use]
    pub fn plan(&self, nodes: &[Free], arrivals: u64, apart: u64) -> Plan {
        let mut plan = Plan {
            slots: vec![VecDeque::new(); self.expected.len()],
            spare: nodes.to_vec(),
        };
        let arrivals = arrivals * 1000;
        let mut gaps = Gaps::new(&plan.spare);
        let mut left = self.small(arrivals);
        let hidden = gaps.hide(2 * apart);
        let cut = self.cut(&mut plan, &mut gaps, &mut left);
        let pairs = apart.saturating_sub(hidden.len() as u64 / 2);
        let cut = bundle::split(cut, pairs, GUEST, &self.expected, &self.accept);
        Self::keep_processors(&mut plan, &hidden);
        for (id, count) in &mut left {
            self.fill_gaps(&mut plan, &mut gaps, *id, count);
        }
        let bundles = bundle::fill(cut, &left, &self.expected, &self.accept);
        let idle: u64 = plan.spare.iter().map(|node| u64::from(node.idle())).sum();
        let until = self.until(bundles.len() as u64, arrivals, idle);
        let big = self.big_shares(until);
        let bundles = bundle::fill(bundles, &big, &self.expected, &self.accept);
        let items = self.items(bundles, until, arrivals);
        self.assign(&mut plan, items);
        plan
    }

    /// The small shares that are expected, the largest first.
    fn small(&self, arrivals: u64) -> Vec<(usize, u32)> {
        let small = arrivals * u64::from(self.settings.small) / 1000;
        let mut rounding = Rounding::new(self.all, small);
        self.small
            .iter()
            .map(|&id| (id, rounding.next(self.expected[id].count)))
            .collect()
    }

    /// Plans the shares that do not fit beside a big one so that the fewest idle GPUs are
    /// opened; what is planned is taken from `left`. Returns the bundles for idle GPUs.
    fn cut(&self, plan: &mut Plan, gaps: &mut Gaps, left: &mut [(usize, u32)]) -> Vec<Bundle> {
        let mut count = [0_u32; WHOLE as usize];
        let mut queue: Vec<Vec<usize>> = vec![Vec::new(); usize::from(WHOLE)];
        for (place, &(id, n)) in left.iter().enumerate() {
            let size = self.expected[id].class.blocks;
            if size > WHOLE - self.settings.big {
                count[usize::from(size)] += n;
                queue[usize::from(size)].push(place);
            }
        }
        let demand: Vec<(u8, u32)> = (1..WHOLE)
            .map(|size| (size, count[usize::from(size)]))
            .collect();
        let cuts = cutting::cut(&demand, &gaps.rooms());
        let mut bundles = Vec::new();
        for cut in cuts {
            for _ in 0..cut.times {
                if cut.room < WHOLE {
                    if !self.cut_gap(plan, gaps, left, &queue, &cut) {
                        break;
                    }
                } else if let Some(bundle) = self.cut_idle(left, &queue, &cut.sizes) {
                    bundles.push(bundle);
                }
            }
        }
        bundles
    }

    /// Keeps processor time on the nodes of gaps that moves will fill.
    fn keep_processors(plan: &mut Plan, gaps: &[usize]) {
        for &node in gaps {
            let cpu = &mut plan.spare[node].cpu;
            *cpu = cpu.saturating_sub(GUEST);
        }
    }

    /// Plans one pattern into one gap: of those that have room the node with most processors
    /// per idle GPU.
    fn cut_gap(
        &self,
        plan: &mut Plan,
        gaps: &mut Gaps,
        left: &mut [(usize, u32)],
        queue: &[Vec<usize>],
        cut: &cutting::Cut,
    ) -> bool {
        let mut best: Option<(u32, usize, Vec<usize>)> = None;
        for (at, &(index, _)) in gaps.by_room[usize::from(cut.room)].iter().enumerate() {
            let node = &plan.spare[index];
            let idle = u32::from(node.idle());
            // The processors of the first members say enough to pass over most nodes.
            if let Some((most, _, _)) = best
                && room_key(node.cpu, idle) <= most
            {
                continue;
            }
            let Some(members) = self.members(left, queue, &cut.sizes, Some(node)) else {
                continue;
            };
            let cpu: u32 = members
                .iter()
                .map(|&place| self.expected[left[place].0].class.cpu)
                .sum();
            let after = node.cpu - cpu;
            if after < self.settings.reserve * idle {
                continue;
            }
            let key = room_key(after, idle);
            if best.as_ref().is_none_or(|(most, _, _)| key > *most) {
                best = Some((key, at, members));
            }
        }
        let Some((_, at, members)) = best else {
            return false;
        };
        let (index, gpu) = gaps.by_room[usize::from(cut.room)].remove(at);
        for place in members {
            let (id, count) = &mut left[place];
            *count -= 1;
            let expected = self.expected[*id];
            let node = &mut plan.spare[index];
            node.cpu -= expected.class.cpu;
            node.memory -= expected.memory;
            node.gpus[gpu] -= expected.class.blocks;
            plan.slots[*id].push_back(Slot {
                node: index,
                gpus: GpuSet::one(gpu),
            });
        }
        gaps.put(index, gpu, plan.spare[index].gpus[gpu]);
        true
    }

    /// One share of each size, as places in `left`, that accept the node, or that accept a kind
    /// together.
    fn members(
        &self,
        left: &[(usize, u32)],
        queue: &[Vec<usize>],
        sizes: &[u8],
        node: Option<&Free>,
    ) -> Option<Vec<usize>> {
        let mut members: Vec<usize> = Vec::with_capacity(sizes.len());
        let (mut cpu, mut memory) = node.map_or((u32::MAX, u32::MAX), |n| (n.cpu, n.memory));
        let mut kinds = Accept::ALL;
        for &size in sizes {
            let found = queue[usize::from(size)].iter().copied().find(|&place| {
                let (id, count) = left[place];
                let taken = members.iter().filter(|&&other| other == place).count();
                let expected = self.expected[id];
                count as usize > taken
                    && expected.class.cpu <= cpu
                    && expected.memory <= memory
                    && node.map_or_else(
                        || kinds.and(self.accept[id]).0 != 0,
                        |node| self.accept[id].admits(node),
                    )
            })?;
            let id = left[found].0;
            cpu -= self.expected[id].class.cpu;
            memory -= self.expected[id].memory;
            kinds = kinds.and(self.accept[id]);
            members.push(found);
        }
        Some(members)
    }

    fn cut_idle(
        &self,
        left: &mut [(usize, u32)],
        queue: &[Vec<usize>],
        sizes: &[u8],
    ) -> Option<Bundle> {
        let members = self.members(left, queue, sizes, None)?;
        let mut bundle = Bundle::empty();
        for place in members {
            let (id, count) = &mut left[place];
            *count -= 1;
            bundle.add(*id, &self.expected[*id], self.accept[*id]);
        }
        Some(bundle)
    }

    /// Plans small shares of one class into used GPUs, best fit; `count` is how many are left.
    fn fill_gaps(&self, plan: &mut Plan, gaps: &mut Gaps, id: usize, count: &mut u32) {
        let expected = self.expected[id];
        let class = expected.class;
        let mut room = usize::from(class.blocks);
        while *count > 0 && room < gaps.by_room.len() {
            // Of gaps with the same room, the node with most processors per idle GPU.
            let mut best: Option<(u32, usize)> = None;
            for (place, &(index, _)) in gaps.by_room[room].iter().enumerate() {
                let node = &plan.spare[index];
                if node.cpu < class.cpu
                    || node.memory < expected.memory
                    || !self.accept[id].admits(node)
                {
                    continue;
                }
                let idle = u32::from(node.idle());
                let after = node.cpu - class.cpu;
                if after < self.settings.reserve * idle {
                    continue;
                }
                let key = room_key(after, idle);
                if best.is_none_or(|(most, _)| key > most) {
                    best = Some((key, place));
                }
            }
            let Some((_, place)) = best else {
                room += 1;
                continue;
            };
            let (index, gpu) = gaps.by_room[room].remove(place);
            let node = &mut plan.spare[index];
            node.cpu -= class.cpu;
            node.memory -= expected.memory;
            node.gpus[gpu] -= class.blocks;
            gaps.put(index, gpu, node.gpus[gpu]);
            plan.slots[id].push_back(Slot {
                node: index,
                gpus: GpuSet::one(gpu),
            });
            *count -= 1;
        }
    }

    /// How many arrivals' worth of big tasks take the idle GPUs that `bundles` leave.
    fn until(&self, bundles: u64, arrivals: u64, idle: u64) -> u64 {
        let (mut low, mut high) = (0, arrivals);
        while high - low > 100 {
            let at = low.midpoint(high) + 1;
            if self.units(at) + bundles <= idle {
                low = at;
            } else {
                high = at - 1;
            }
        }
        low
    }

    /// Idle GPUs that big tasks take: a big share, one.
    fn units(&self, until: u64) -> u64 {
        let mut rounding = Rounding::new(self.all, until);
        let mut units = 0;
        for &id in &self.big {
            let count = rounding.next(self.expected[id].count);
            units += u64::from(count) * u64::from(self.expected[id].class.gpus);
        }
        units
    }

    fn big_shares(&self, until: u64) -> Vec<(usize, u32)> {
        let mut rounding = Rounding::new(self.all, until);
        let mut shares = Vec::new();
        for &id in &self.big {
            let count = rounding.next(self.expected[id].count);
            if self.expected[id].class.is_shared() {
                shares.push((id, count));
            }
        }
        shares
    }

    fn items(&self, bundles: Vec<Bundle>, until: u64, arrivals: u64) -> Vec<Item> {
        let mut items = Vec::new();
        let task = |id: usize| Item {
            gpus: self.expected[id].class.gpus,
            cpu: self.expected[id].class.cpu,
            memory: self.expected[id].memory,
            kinds: self.accept[id],
            what: What::Task(id),
        };
        let mut rounding = Rounding::new(self.all, arrivals);
        for &id in &self.processors {
            for _ in 0..rounding.next(self.expected[id].count) {
                items.push(task(id));
            }
        }
        let mut rounding = Rounding::new(self.all, until);
        for &id in &self.big {
            let count = rounding.next(self.expected[id].count);
            if !self.expected[id].class.is_shared() {
                items.extend((0..count).map(|_| task(id)));
            }
        }
        items.extend(bundles.into_iter().map(|bundle| Item {
            gpus: 1,
            cpu: bundle.cpu,
            memory: bundle.memory,
            kinds: bundle.kinds,
            what: What::Bundle(bundle.members),
        }));
        items.sort_by_key(|item| {
            let several = if item.gpus > 1 { item.gpus } else { 0 };
            (
                std::cmp::Reverse(several),
                item.kinds == Accept::ALL,
                std::cmp::Reverse(item.cpu),
            )
        });
        items
    }

    fn assign(&self, plan: &mut Plan, items: Vec<Item>) {
        let mut idle: Vec<u8> = plan.spare.iter().map(Free::idle).collect();
        let reserve = self.settings.reserve;
        for item in items {
            let mut best: Option<(i64, usize)> = None;
            for (index, node) in plan.spare.iter().enumerate() {
                let free = idle[index];
                if node.cpu < item.cpu
                    || node.memory < item.memory
                    || free < item.gpus
                    || !item.kinds.admits(node)
                {
                    continue;
                }
                let after = node.cpu - item.cpu;
                let left = u32::from(free - item.gpus);
                if item.gpus == 0 && after < reserve * left {
                    continue;
                }
                let key = if item.gpus <= 1 {
                    i64::from(after * 10 / if left == 0 { 3 } else { left * 10 })
                } else {
                    -i64::from(after + 30_000 * left)
                };
                if best.is_none_or(|(most, _)| key > most) {
                    best = Some((key, index));
                }
            }
            let Some((_, index)) = best else { continue };
            let node = &mut plan.spare[index];
            let Some(set) = node.first_idle(item.gpus) else {
                continue;
            };
            node.cpu -= item.cpu;
            node.memory -= item.memory;
            idle[index] -= item.gpus;
            match item.what {
                What::Task(id) => {
                    for gpu in set.iter() {
                        node.gpus[gpu] = 0;
                    }
                    plan.slots[id].push_back(Slot {
                        node: index,
                        gpus: set,
                    });
                }
                What::Bundle(members) => {
                    for id in members {
                        for gpu in set.iter() {
                            node.gpus[gpu] -= self.expected[id].class.blocks;
                        }
                        plan.slots[id].push_back(Slot {
                            node: index,
                            gpus: set,
                        });
                    }
                }
            }
        }
    }
}
