//! Fragmentation and score in floating point, as the published baseline computes them.
//!
//! Sums are kept apart by why a block is a fragment and then added, as in the authors'
//! simulator, so that rounding errors agree where two scores are within one of a step.
#![expect(
    clippy::float_arithmetic,
    reason = "the published numbers were computed so; the product's own rules are integers"
)]

use crate::{
    cluster::{Demand, GpuSet, Node, Shape},
    placement::{Rank, Rule, candidates},
};

use super::Popularity;

/// Thousandths of a GPU in a block.
const MILLI_PER_BLOCK: u32 = 10;

/// The published rule.
#[derive(Debug, Clone)]
pub struct Published {
    types: Vec<(Demand, f64)>,
}

/// Why free blocks are fragments for a type of task.
#[derive(Debug, Clone, Copy)]
enum Cause {
    LacksBoth,
    LacksGpu,
    LacksCpu,
    NoGpuWanted,
    NeitherWantedNorEnoughCpu,
    OtherKind,
}

impl Published {
    /// The rule for these types of tasks.
    #[must_use]
    pub fn new(popularity: &Popularity) -> Self {
        let total = f64::from(popularity.total().max(1));
        let share = |(demand, weight): &(Demand, u32)| (*demand, f64::from(*weight) / total);
        Self {
            types: popularity.types().iter().map(share).collect(),
        }
    }

    /// The fragmentation of a node in thousandths of a GPU.
    #[must_use]
    pub fn amount(&self, node: &Node) -> f64 {
        let free = node.blocks_free();
        let milli = |below: u8| {
            let blocks = free
                .iter()
                .filter(|free| **free < below)
                .fold(0_u32, |sum, free| sum.saturating_add((*free).into()));
            f64::from(blocks.saturating_mul(MILLI_PER_BLOCK))
        };
        let mut causes = [0.0; 6];
        for (task, share) in &self.types {
            let enough_cpu = node.cpu_free() >= task.cpu_milli();
            let enough_gpu = match task.shape() {
                Shape::CpuOnly => false,
                Shape::Share(blocks) => free.iter().any(|free| *free >= blocks),
                Shape::Whole(gpus) => node.idle_gpus() >= gpus,
            };
            let (cause, amount) = if task.gpus() == 0 && enough_cpu {
                (Cause::NoGpuWanted, milli(u8::MAX))
            } else if task.gpus() == 0 {
                (Cause::NeitherWantedNorEnoughCpu, milli(u8::MAX))
            } else if !task.kinds().admits(node.kind()) {
                (Cause::OtherKind, milli(u8::MAX))
            } else {
                match (enough_cpu, enough_gpu) {
                    (true, true) => (Cause::LacksGpu, milli(task.blocks())),
                    (true, false) => (Cause::LacksGpu, milli(u8::MAX)),
                    (false, true) => (Cause::LacksCpu, milli(u8::MAX)),
                    (false, false) => (Cause::LacksBoth, milli(u8::MAX)),
                }
            };
            if let Some(sum) = causes.get_mut(cause as usize) {
                *sum += share * amount;
            }
        }
        causes.iter().sum()
    }

    /// The score of a node once a demand is on these GPUs of it, 0 to 99, from the
    /// fragmentation before and after.
    fn score(before: f64, after: f64) -> u8 {
        let sigmoid = 1.0 / (1.0 + (-(before - after) / 1_000.0).exp());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 100, and cut off as published"
        )]
        let score = (sigmoid * 100.0) as u8;
        score
    }

    fn ranked(&self, node: &Node, demand: &Demand) -> impl Iterator<Item = (GpuSet, Rank)> {
        let before = self.amount(node);
        candidates(node, demand).filter_map(move |gpus| {
            let after = self.amount(&node.after(gpus, demand).ok()?);
            Some((
                gpus,
                Rank::from(Self::score(before, after)).saturating_add(1),
            ))
        })
    }
}

impl Rule for Published {
    fn rank(&self, node: &Node, demand: &Demand) -> Rank {
        self.ranked(node, demand)
            .map(|(_, rank)| rank)
            .max()
            .unwrap_or(0)
    }

    fn gpus(&self, node: &Node, demand: &Demand) -> Option<GpuSet> {
        let best = self.rank(node, demand);
        let mut ranked = self.ranked(node, demand);
        ranked.find(|(_, rank)| *rank == best).map(|(gpus, _)| gpus)
    }
}
