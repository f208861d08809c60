//! Places tasks one by one: by the plan where it has a slot, else by FGD beside it.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "classes and nodes are numbered by this policy; sums of a node stay far below 2^63"
)]

use super::board::Board;
use super::fgd::{Fgd, Popular};
use super::plan::{Expected, Plan, Planner, Settings, Slot};
use super::{Class, Free};

/// Placement guided by plans.
#[derive(Debug, Clone)]
pub struct Policy {
    settings: Settings,
    expected: Vec<Expected>,
    planner: Planner,
    /// What is free.
    now: Board<Fgd>,
    /// What is free beside the slots.
    spare: Board<Fgd>,
    plan: Plan,
    arrived: u64,
    horizon: u64,
}

impl Policy {
    /// A policy for nodes, in the order that breaks ties, and classes of known popularity.
    #[must_use]
    pub fn new(nodes: Vec<Free>, kinds: u8, expected: Vec<Expected>, settings: Settings) -> Self {
        let fgd = Fgd::new(&popular(&expected), kinds);
        let planner = Planner::new(settings, expected.clone());
        let capacity = nodes.iter().map(|node| u64::from(node.total())).sum();
        let horizon = planner.arrivals(capacity);
        Self {
            settings,
            plan: Plan {
                slots: vec![std::collections::VecDeque::new(); expected.len()],
                spare: Vec::new(),
            },
            expected,
            planner,
            spare: Board::new(nodes.clone(), fgd.clone()),
            now: Board::new(nodes, fgd),
            arrived: 0,
            horizon,
        }
    }

    /// What is free on each node.
    #[must_use]
    pub fn nodes(&self) -> &[Free] {
        self.now.nodes()
    }

    fn replan(&mut self) {
        let left = self.horizon.saturating_sub(self.arrived);
        if left == 0 {
            self.plan
                .slots
                .iter_mut()
                .for_each(std::collections::VecDeque::clear);
            return;
        }
        self.plan = self.planner.plan(self.now.nodes(), left);
        self.spare.replace(std::mem::take(&mut self.plan.spare));
    }

    /// Where a task of a class goes; it is taken there. `None` only when it fits nowhere.
    pub fn place(&mut self, id: usize, memory: u32) -> Option<Slot> {
        if self.arrived.is_multiple_of(u64::from(self.settings.every)) {
            self.replan();
        }
        self.arrived += 1;
        let class = self.expected[id].class;
        let planned = self.arrived <= self.horizon;
        let slot = if planned {
            self.own_slot(id, memory)
                .or_else(|| self.like_slot(id, memory))
                .or_else(|| self.beside(id, memory))
        } else {
            None
        };
        let slot = slot.or_else(|| self.anywhere(id, memory))?;
        let left = self.now.nodes()[slot.node].take(&class, memory, slot.gpus)?;
        self.now.set(slot.node, left);
        Some(slot)
    }

    fn fits_now(&self, slot: Slot, class: &Class, memory: u32) -> bool {
        let node = &self.now.nodes()[slot.node];
        node.eligible
            && class.kinds.admits(node.kind)
            && node.take(class, memory, slot.gpus).is_some()
    }

    fn own_slot(&mut self, id: usize, memory: u32) -> Option<Slot> {
        let class = self.expected[id].class;
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
