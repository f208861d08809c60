//! Places tasks one by one: by the plan where it has a slot, else by FGD beside it.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "classes and nodes are numbered by this policy; sums of a node stay far below 2^63"
)]

use std::collections::{BTreeMap, VecDeque};

use super::board::Board;
use super::fgd::{Fgd, Popular};
use super::moves::{Held, Relocation};
use super::plan::{Expected, Plan, Planner, Settings, Slot};
use super::popularity::Popularity;
use super::{Class, Free, moves};
use crate::cluster::Demand;

/// Plans while an empty cell fills, at least.
const PLANS: u64 = 12;

/// Placement guided by plans.
#[derive(Debug, Clone)]
pub struct Policy {
    settings: Settings,
    popularity: Popularity,
    /// What is free.
    now: Board<Fgd>,
    /// What is free beside the slots.
    spare: Board<Fgd>,
    expected: Vec<Expected>,
    ids: BTreeMap<Class, usize>,
    plan: Plan,
    opens_first: bool,
    /// Arrivals since the last plan, and until the next.
    since: u32,
    until: u32,
    held: Vec<Vec<Held>>,
    placed: u64,
    moved: u64,
}

/// What the policy does with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// A task that has to go elsewhere first.
    pub relocation: Option<Relocation>,
    /// Where the task goes.
    pub slot: Slot,
}

impl Policy {
    /// A policy for nodes, in the order that breaks ties.
    #[must_use]
    pub fn new(nodes: Vec<Free>, popularity: Popularity, settings: Settings) -> Self {
        let fgd = Fgd::new(&[]);
        let held = if settings.moves > 0 {
            vec![Vec::new(); nodes.len()]
        } else {
            Vec::new()
        };
        Self {
            settings,
            popularity,
            spare: Board::new(nodes.clone(), fgd.clone()),
            now: Board::new(nodes, fgd),
            expected: Vec::new(),
            ids: BTreeMap::new(),
            plan: Plan::default(),
            opens_first: false,
            since: 0,
            until: 0,
            held,
            placed: 0,
            moved: 0,
        }
    }

    /// What is free on each node.
    #[must_use]
    pub fn nodes(&self) -> &[Free] {
        self.now.nodes()
    }

    /// A task ended on a node, of which so much is free now.
    pub fn ended(&mut self, task: usize, node: usize, free: Free) {
        if let Some(held) = self.held.get_mut(node) {
            held.retain(|other| other.task != task);
        }
        self.set(node, free);
    }

    /// Says what is free on a node now, when that changed otherwise. Slots that have no room any
    /// more are passed over until the next plan.
    pub fn set(&mut self, node: usize, free: Free) {
        self.now.set(node, free);
        self.spare.set(node, free);
    }

    fn replan(&mut self) {
        self.since = 0;
        if let Some(expected) = self.popularity.expected() {
            self.expected = expected;
            self.ids = self
                .expected
                .iter()
                .enumerate()
                .map(|(id, expected)| (expected.class, id))
                .collect();
            let fgd = Fgd::new(&popular(&self.expected));
            self.now.rescore(fgd.clone());
            self.spare.rescore(fgd);
        }
        let planner = Planner::new(self.settings, self.expected.clone());
        let nodes = self.now.nodes();
        // A small cell fills in fewer arrivals.
        let all = nodes.iter().map(|node| u64::from(node.count)).sum::<u64>();
        let filling = planner.arrivals(all * u64::from(super::WHOLE)) / PLANS;
        let every = u32::try_from(filling).unwrap_or(u32::MAX);
        self.until = self.popularity.plan_every(every.min(self.settings.every));
        let free = nodes.iter().map(|node| u64::from(node.total())).sum();
        let arrivals = planner.arrivals(free);
        let apart = self.apart(arrivals);
        self.opens_first = planner.opens_first();
        self.plan = planner.plan(nodes, arrivals, apart);
        self.spare.replace(std::mem::take(&mut self.plan.spare));
    }

    /// How many moves will be allowed until the idle GPUs are used.
    fn apart(&self, arrivals: u64) -> u64 {
        let idle: u64 = self.nodes().iter().map(|n| u64::from(n.idle())).sum();
        let gpus: u64 = self.nodes().iter().map(|n| u64::from(n.count)).sum();
        if self.settings.moves == 0 || idle * 100 < gpus {
            return 0;
        }
        let whole = |e: &&Expected| e.class.total() >= u32::from(super::WHOLE);
        let count = |e: &Expected| u64::from(e.count);
        let wholes: u64 = self.expected.iter().filter(whole).map(count).sum();
        let all: u64 = self.expected.iter().map(count).sum();
        let wanted = (arrivals * wholes).checked_div(all).unwrap_or(0);
        ((self.placed + arrivals) * u64::from(self.settings.moves) / 1000)
            .saturating_sub(self.moved)
            .min(wanted * 2 / 3)
    }

    /// Where a task goes; it is taken there. `None` only when it fits nowhere.
    pub fn place(&mut self, task: usize, demand: &Demand) -> Option<Answer> {
        if self.since == self.until {
            self.replan();
        }
        self.since += 1;
        let class = Class::of(demand);
        let memory = demand.memory_mib();
        self.popularity.arrived(&class, memory);
        let id = self.number(class, memory);
        let slot = self
            .own_slot(id, memory)
            .or_else(|| self.like_slot(id, memory))
            .or_else(|| self.beside(id, memory))
            .or_else(|| self.anywhere(id, memory));
        let (relocation, slot) = match slot {
            Some(slot) => (None, slot),
            None => {
                let (relocation, slot) = self.make_room(&class, memory)?;
                (Some(relocation), slot)
            }
        };
        let left = self.now.nodes()[slot.node].take(&class, memory, slot.gpus)?;
        self.now.set(slot.node, left);
        self.placed += 1;
        if let Some(held) = self.held.get_mut(slot.node) {
            held.push(Held {
                task,
                class,
                memory,
                gpus: slot.gpus,
            });
        }
        Some(Answer { relocation, slot })
    }

    /// The number of a class; new ones are expected from the next plan on.
    fn number(&mut self, class: Class, memory: u32) -> usize {
        let next = self.expected.len();
        let id = *self.ids.entry(class).or_insert(next);
        if id == next {
            self.expected.push(Expected {
                class,
                memory,
                count: 0,
            });
            self.plan.slots.push(VecDeque::new());
        }
        id
    }

    fn make_room(&mut self, class: &Class, memory: u32) -> Option<(Relocation, Slot)> {
        let budget = self.placed * u64::from(self.settings.moves) / 1000;
        if self.moved >= budget || class.total() < u32::from(super::WHOLE) {
            return None;
        }
        let relocation = moves::find(self.now.nodes(), &self.held, class, memory)?;
        let held = self.held[relocation.from].remove(relocation.place);
        let free = self.now.nodes()[relocation.from].give(&held.class, held.memory, held.gpus);
        self.set(relocation.from, free);
        let to = relocation.to;
        let left = self.now.nodes()[to.node].take(&held.class, held.memory, to.gpus)?;
        self.set(to.node, left);
        self.held[to.node].push(Held {
            gpus: to.gpus,
            ..held
        });
        self.moved += 1;
        let gpus = self.now.nodes()[relocation.from].tightest(class)?;
        let slot = Slot {
            node: relocation.from,
            gpus,
        };
        Some((relocation, slot))
    }

    fn fits_now(&self, slot: Slot, class: &Class, memory: u32) -> bool {
        let node = &self.now.nodes()[slot.node];
        node.eligible
            && class.kinds.admits(node.kind)
            && node.take(class, memory, slot.gpus).is_some()
    }

    fn own_slot(&mut self, id: usize, memory: u32) -> Option<Slot> {
        let class = self.expected[id].class;
        if self.opens_first && class.is_shared() {
            let nodes = self.now.nodes();
            let idle = self.plan.slots[id].iter().position(|&slot| {
                let opened = slot
                    .gpus
                    .iter()
                    .all(|gpu| nodes[slot.node].gpus[gpu] == super::WHOLE);
                opened && self.fits_now(slot, &class, memory)
            });
            if let Some(at) = idle {
                return self.plan.slots[id].remove(at);
            }
        }
        let at = self.plan.slots[id]
            .iter()
            .position(|&slot| self.fits_now(slot, &class, memory))?;
        self.plan.slots[id].remove(at)
    }

    fn like_slot(&mut self, id: usize, memory: u32) -> Option<Slot> {
        let class = self.expected[id].class;
        let mut best: Option<(i64, usize)> = None;
        for (other, expected) in self.expected.iter().enumerate() {
            let theirs = expected.class;
            if other == id || theirs.gpus != class.gpus || theirs.blocks < class.blocks {
                continue;
            }
            let wider = theirs.blocks - class.blocks;
            if wider > 6 {
                continue;
            }
            let Some(&slot) = self.plan.slots[other].front() else {
                continue;
            };
            if !self.fits_now(slot, &class, memory) {
                continue;
            }
            let spare = &self.spare.nodes()[slot.node];
            let (cpu, theirs_cpu) = (i64::from(class.cpu), i64::from(theirs.cpu));
            let (memory, theirs_memory) = (i64::from(memory), i64::from(expected.memory));
            let lack_cpu = (cpu - theirs_cpu - i64::from(spare.cpu)).max(0);
            let lack_memory = (memory - theirs_memory - i64::from(spare.memory)).max(0);
            let cost = 1000 * i64::from(wider)
                + (cpu - theirs_cpu).abs()
                + 5 * (lack_cpu + lack_memory / 4);
            if cost < 20_000 && best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, other));
            }
        }
        let (_, other) = best?;
        let slot = self.plan.slots[other].pop_front()?;
        let theirs = self.expected[other];
        let mut spare = self.spare.nodes()[slot.node];
        spare.cpu = (spare.cpu + theirs.class.cpu).saturating_sub(class.cpu);
        spare.memory = (spare.memory + theirs.memory).saturating_sub(memory);
        for gpu in slot.gpus.iter() {
            spare.gpus[gpu] += theirs.class.blocks - class.blocks;
        }
        self.spare.set(slot.node, spare);
        Some(slot)
    }

    fn beside(&mut self, id: usize, memory: u32) -> Option<Slot> {
        let class = self.expected[id].class;
        let node = self.spare.best(id, &class, memory)?;
        let free = self.spare.nodes()[node];
        let (_, gpus) = self.spare.scorer().rate(&free, &class)?;
        let slot = Slot { node, gpus };
        if !self.fits_now(slot, &class, memory) {
            return None;
        }
        self.spare.set(node, free.take(&class, memory, gpus)?);
        Some(slot)
    }

    fn anywhere(&mut self, id: usize, memory: u32) -> Option<Slot> {
        let class = self.expected[id].class;
        let node = self.now.best(id, &class, memory)?;
        let (_, gpus) = self.now.scorer().rate(&self.now.nodes()[node], &class)?;
        let mut spare = self.spare.nodes()[node];
        spare.cpu = spare.cpu.saturating_sub(class.cpu);
        spare.memory = spare.memory.saturating_sub(memory);
        for gpu in gpus.iter() {
            spare.gpus[gpu] = spare.gpus[gpu].saturating_sub(class.blocks);
        }
        self.spare.set(node, spare);
        Some(Slot { node, gpus })
    }
}

fn popular(expected: &[Expected]) -> Vec<Popular> {
    expected
        .iter()
        .map(|e| Popular {
            class: e.class,
            count: e.count,
        })
        .collect()
}
