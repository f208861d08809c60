//! Fragmentation gradient descent from tables, a few lookups per node and demand.
//!
//! What a type of task cannot use depends on a node only through whether the processors
//! suffice, the kind is admitted, and single GPUs:
//!
//! - a share that fits on no GPU finds every GPU too small, which is the sum that it has if
//!   it fits, so nothing has to be known about the other GPUs;
//! - a number of entire GPUs that does not fit loses, beyond that, the entirely free ones.
//!
//! So the fragmentation of a node is a sum over its GPUs, for each step `c` (how many of the
//! different needs of processors are satisfied):
//!
//! `F(c) = unusable(c) * free + sum of lost(free of a GPU, c) + stranded(idle GPUs, c)`
//!
//! A placement changes the step and one or more GPUs, hence a few terms.
//!
//! This is the one place where the gradient is computed. Who asks differs only in what is held
//! of a node: [`Rule`] asks for a [`Node`] of a cell, [`Fgd`](crate::packing::fgd::Fgd) for the
//! flat copies that a plan works on. Both make a [`View`] of it, which is all that counts.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the inner loop of every decision; blocks are at most 100, GPUs at most 16, steps \
              below STEPS and sums at most 1,600 * MAX_WEIGHT, which is below 2^31"
)]

use cnlab_model::BLOCKS_PER_GPU;

use crate::{
    cluster::{Demand, GpuSet, Kind, KindSet, MAX_GPUS, Node, Shape},
    placement::{Rank, Rule},
};

use super::{MAX_CPU_NEEDS, Popularity, level::Levels};

/// The most steps: no need satisfied up to all of them.
const STEPS: usize = MAX_CPU_NEEDS + 1;

/// Free blocks of an entirely free GPU.
const IDLE: usize = BLOCKS_PER_GPU as usize;

/// Fragmentation gradient descent, with the ranks of [`super::Definition`].
#[derive(Debug, Clone)]
pub struct Gradient {
    levels: Levels,
    needs: Needs,
    tables: Vec<Table>,
    /// The table of each kind; kinds that the same types admit share one.
    table_of: [u8; Kind::LIMIT as usize],
}

/// The terms of the fragmentation for nodes of some kinds, in blocks times weight. Rows are
/// `steps` long.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    steps: usize,
    /// Weight of the types for which every free block is a fragment.
    unusable: Vec<i32>,
    /// For each number of free blocks of a GPU, 0 to 100, what they are lost for.
    lost: Vec<i32>,
    /// For each number of idle GPUs, 0 to 16, what those are lost for because some types
    /// want more of them.
    stranded: Vec<i32>,
}

/// The different needs of processors, and how many of them an amount satisfies.
#[derive(Debug, Clone)]
struct Needs {
    sorted: Vec<u32>,
    /// For each bucket of amounts how many needs its least one satisfies.
    buckets: Vec<u8>,
    shift: u32,
}

/// What is looked at of a node.
#[derive(Debug)]
pub(crate) struct View<'a> {
    table: &'a Table,
    cpu_free: u32,
    step: usize,
    free: [u8; MAX_GPUS],
    /// A bit for each number of free blocks that some GPU has.
    present: u128,
    idle: usize,
    sum: i32,
}

impl Gradient {
    /// The rule for these types of tasks.
    #[must_use]
    pub fn new(popularity: &Popularity) -> Self {
        let needs = Needs::new(
            popularity
                .types()
                .iter()
                .map(|(demand, _)| demand.cpu_milli()),
        );
        let mut sets: Vec<KindSet> = popularity
            .types()
            .iter()
            .map(|(demand, _)| demand.kinds())
            .collect();
        sets.sort_unstable();
        sets.dedup();
        let mut tables: Vec<Table> = Vec::new();
        let mut known: Vec<Vec<bool>> = Vec::new();
        let table_of = std::array::from_fn(|number| {
            let Some(kind) = u8::try_from(number).ok().and_then(Kind::new) else {
                return 0;
            };
            let admitted: Vec<bool> = sets.iter().map(|set| set.admits(kind)).collect();
            let at = known.iter().position(|known| *known == admitted);
            let at = at.unwrap_or_else(|| {
                tables.push(Table::new(popularity, &needs, kind));
                known.push(admitted);
                tables.len() - 1
            });
            // At most one table for each of the 64 kinds.
            u8::try_from(at).unwrap_or(0)
        });
        Self {
            levels: Levels::new(popularity.total()),
            needs,
            tables,
            table_of,
        }
    }

    /// What counts of a node of this kind with so many free thousandths of processors and free
    /// blocks of each of its GPUs, zero behind the last one.
    #[inline]
    pub(crate) fn view(
        &self,
        kind: Kind,
        cpu_free: u32,
        free: [u8; MAX_GPUS],
        gpus: u8,
    ) -> View<'_> {
        let mut view = View {
            table: &self.tables[usize::from(self.table_of[usize::from(kind.number())])],
            cpu_free,
            step: self.needs.step(cpu_free),
            free,
            present: 0,
            idle: 0,
            sum: 0,
        };
        for free in &free[..usize::from(gpus)] {
            view.present |= 1 << *free;
            view.idle += usize::from(*free == BLOCKS_PER_GPU);
            view.sum += i32::from(*free);
        }
        view
    }

    fn view_of(&self, node: &Node) -> View<'_> {
        let (cpu_free, free) = (node.cpu_free(), node.blocks_free());
        self.view(node.kind(), cpu_free, free, node.gpus())
    }

    /// The level of the best candidate on a node that has these thousandths of processors, the
    /// memory and the kind. `None` where the GPUs do not suffice.
    #[inline]
    pub(crate) fn level(&self, view: &View<'_>, cpu_milli: u32, shape: Shape) -> Option<u8> {
        let gain = self.best_gain(view, cpu_milli, shape, |step| view.gain(step))?;
        Some(self.levels.level(gain.into()))
    }

    /// The first of the GPUs that are best for a share of so many blocks, as for
    /// [`Self::level`].
    pub(crate) fn gpu(&self, view: &View<'_>, cpu_milli: u32, blocks: u8) -> Option<usize> {
        let step = self.needs.step(view.cpu_free - cpu_milli);
        let same = view.gain(step);
        let level = |free: u8| {
            let gain = same - view.share(step, blocks, free.into());
            self.levels.level(gain.into())
        };
        let best = self.level(view, cpu_milli, Shape::Share(blocks))?;
        (0..MAX_GPUS).find(|gpu| view.free[*gpu] >= blocks && level(view.free[*gpu]) == best)
    }

    /// The fragmentation of a node, in blocks times the sum of weights.
    pub(crate) fn amount(&self, view: &View<'_>) -> i32 {
        view.untouched(view.step)
    }

    fn rank_of(&self, gain: i32) -> Rank {
        Rank::from(self.levels.level(gain.into())) + 1
    }

    /// The fragmentation that the best candidate removes, as for [`Self::level`]. `gain` is
    /// what falling to a step removes if no GPU changes.
    #[inline(always)]
    fn best_gain(
        &self,
        view: &View<'_>,
        cpu_milli: u32,
        shape: Shape,
        gain: impl Fn(usize) -> i32,
    ) -> Option<i32> {
        let step = self.needs.step(view.cpu_free - cpu_milli);
        let after = match shape {
            Shape::CpuOnly => 0,
            Shape::Share(blocks) => view.cheapest_share(step, blocks)?,
            Shape::Whole(gpus) => view.whole(step, gpus)?,
        };
        Some(gain(step) - after)
    }
}

impl Rule for Gradient {
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        if !node.fits(demand) {
            return 0;
        }
        let view = self.view_of(node);
        self.level(&view, demand.cpu_milli(), demand.shape())
            .map_or(0, |level| Rank::from(level) + 1)
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        if !node.fits(demand) {
            return None;
        }
        match demand.shape() {
            Shape::CpuOnly => Some(GpuSet::EMPTY),
            Shape::Whole(gpus) => node.first_idle(gpus),
            Shape::Share(blocks) => self
                .gpu(&self.view_of(node), demand.cpu_milli(), blocks)
                .map(GpuSet::one),
        }
    }

    fn ranks(&self, node: &Node, demands: &[Demand], ranks: &mut [Rank]) {
        if !node.is_eligible() {
            ranks.fill(0);
            return;
        }
        let view = self.view_of(node);
        let mut row = [0; STEPS];
        view.untouched_row(&mut row);
        let before = row[view.step];
        let gain = |step: usize| before - row[step];
        for (rank, demand) in ranks.iter_mut().zip(demands) {
            *rank = 0;
            if node.has_room_beside_gpus(demand)
                && let Some(gain) = self.best_gain(&view, demand.cpu_milli(), demand.shape(), gain)
            {
                *rank = self.rank_of(gain);
            }
        }
    }
}

impl View<'_> {
    /// The fragmentation at a step if no GPU changes.
    fn untouched(&self, step: usize) -> i32 {
        // A full GPU and an entirely free one lose nothing of their own.
        let partly = self
            .free
            .iter()
            .filter(|free| **free != 0 && **free != BLOCKS_PER_GPU);
        let lost: i32 = partly.map(|free| self.table.lost(*free, step)).sum();
        self.table.unusable[step] * self.sum + lost + self.table.stranded(self.idle, step)
    }

    /// What falling to a step removes if no GPU changes.
    fn gain(&self, step: usize) -> i32 {
        if step == self.step {
            0
        } else {
            self.untouched(self.step) - self.untouched(step)
        }
    }

    /// [`Self::untouched`] for every step at once.
    fn untouched_row(&self, row: &mut [i32; STEPS]) {
        let steps = self.table.steps;
        let row = &mut row[..steps];
        let stranded = &self.table.stranded[self.idle * steps..][..steps];
        let unusable = &self.table.unusable[..steps];
        for ((sum, unusable), stranded) in row.iter_mut().zip(unusable).zip(stranded) {
            *sum = unusable * self.sum + stranded;
        }
        for free in self.free {
            // A full GPU and an entirely free one lose nothing of their own.
            if free != 0 && free != BLOCKS_PER_GPU {
                let lost = &self.table.lost[usize::from(free) * steps..][..steps];
                for (sum, lost) in row.iter_mut().zip(lost) {
                    *sum += lost;
                }
            }
        }
    }

    /// What changes when a share is taken from a GPU with this many free blocks.
    fn share(&self, step: usize, blocks: u8, free: usize) -> i32 {
        let table = self.table;
        let left = free - usize::from(blocks);
        let steps = table.steps;
        let stranded = if free == IDLE {
            table.stranded(self.idle - 1, step) - table.stranded(self.idle, step)
        } else {
            0
        };
        table.lost[left * steps + step] - table.lost[free * steps + step] + stranded
            - table.unusable[step] * i32::from(blocks)
    }

    /// The least of that over the GPUs with room.
    fn cheapest_share(&self, step: usize, blocks: u8) -> Option<i32> {
        let mut present = self.present >> blocks;
        let mut least = None;
        while present != 0 {
            let free = present.trailing_zeros() as usize + usize::from(blocks);
            present &= present - 1;
            let cost = self.share(step, blocks, free);
            least = Some(least.map_or(cost, |least: i32| least.min(cost)));
        }
        least
    }

    /// What changes when entire GPUs are taken.
    fn whole(&self, step: usize, gpus: u8) -> Option<i32> {
        let left = self.idle.checked_sub(gpus.into())?;
        let table = self.table;
        Some(
            table.stranded(left, step)
                - table.stranded(self.idle, step)
                - table.unusable[step] * i32::from(BLOCKS_PER_GPU) * i32::from(gpus),
        )
    }
}

impl Table {
    fn new(popularity: &Popularity, needs: &Needs, kind: Kind) -> Self {
        let steps = needs.sorted.len() + 1;
        let mut table = Self {
            steps,
            unusable: vec![0; steps],
            lost: vec![0; (IDLE + 1) * steps],
            stranded: vec![0; (MAX_GPUS + 1) * steps],
        };
        // First what each step adds to the one before, then the sums of that.
        for (demand, weight) in popularity.types() {
            let weight = i32::try_from(*weight).unwrap_or(i32::MAX);
            table.unusable[0] += weight;
            if demand.gpus() == 0 || !demand.kinds().admits(kind) {
                continue;
            }
            let step = needs.step(demand.cpu_milli());
            table.unusable[step] -= weight;
            for (blocks, free) in (0..i32::from(demand.blocks())).enumerate() {
                table.lost[blocks * steps + step] += weight * free;
            }
            if let Shape::Whole(gpus) = demand.shape() {
                for (idle, blocks) in (0..usize::from(gpus)).zip((0..).step_by(IDLE)) {
                    let blocks: i32 = blocks;
                    table.stranded[idle * steps + step] += weight * blocks;
                }
            }
        }
        let rows = table.lost.chunks_mut(steps);
        let rows = rows.chain(table.stranded.chunks_mut(steps));
        for row in rows.chain([&mut table.unusable[..]]) {
            for step in 1..steps {
                row[step] += row[step - 1];
            }
        }
        table
    }

    fn lost(&self, free: u8, step: usize) -> i32 {
        self.lost[usize::from(free) * self.steps + step]
    }

    fn stranded(&self, idle: usize, step: usize) -> i32 {
        self.stranded[idle * self.steps + step]
    }
}

impl Needs {
    /// The amounts are at most [`MAX_CPU_NEEDS`] different ones.
    fn new(amounts: impl Iterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = amounts.collect();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.truncate(MAX_CPU_NEEDS);
        let most = sorted.last().copied().unwrap_or(0);
        // About a thousand buckets.
        let shift = (u32::BITS - most.leading_zeros()).saturating_sub(10);
        let satisfied = |amount: u32| sorted.partition_point(|need| *need <= amount);
        let buckets = (0..=most >> shift)
            .map(|bucket| u8::try_from(satisfied(bucket << shift)).unwrap_or(u8::MAX))
            .collect();
        Self {
            buckets,
            shift,
            sorted,
        }
    }

    /// How many of the needs an amount satisfies.
    #[inline]
    fn step(&self, amount: u32) -> usize {
        let Some(first) = self.buckets.get((amount >> self.shift) as usize) else {
            return self.sorted.len();
        };
        let mut step = usize::from(*first);
        while self.sorted.get(step).is_some_and(|need| *need <= amount) {
            step += 1;
        }
        step
    }
}
