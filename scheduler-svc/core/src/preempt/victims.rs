//! The cheapest set of candidates of one node whose room suffices.

use std::cmp::Reverse;

use crate::{
    cluster::{Demand, MAX_GPUS, Shape},
    plan::JobId,
};

use super::{Loss, room::Room};

/// Up to so many candidates on a node the cheapest set is exact in every case.
pub const EXACT: usize = 16;

/// Steps of the search beyond that many candidates.
const STEPS: u32 = 20_000;

/// Somebody who may give way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) id: JobId,
    pub(super) loss: Loss,
    /// What it holds on the node.
    pub(super) part: Room,
}

/// The set of candidates with the least loss whose giving way makes room for so many tasks,
/// if it loses less than the limit. Nobody in it could stay.
pub(super) fn cheapest(
    room: &Room,
    candidates: &[Candidate],
    demand: &Demand,
    tasks: u32,
    limit: Option<Loss>,
) -> Option<(Loss, Vec<JobId>)> {
    if room.tasks(demand) >= tasks {
        return limit
            .is_none_or(|limit| limit > Loss::default())
            .then(|| (Loss::default(), Vec::new()));
    }
    let all = candidates.iter().fold(*room, |all, c| all.plus(&c.part));
    if all.tasks(demand) < tasks {
        return None;
    }
    let chosen = if tasks == 1 && room.feeds(demand, 1) {
        // Only GPUs are short, so each GPU, or each set of them, is a question of its own.
        match demand.shape() {
            Shape::Share(blocks) => share(room, candidates, blocks),
            Shape::Whole(gpus) => whole(room, candidates, gpus),
            // Without GPUs there would be room already.
            Shape::CpuOnly => None,
        }
    } else {
        let mut search = Search::new(candidates, demand, tasks, limit);
        search.descend(0, *room, all, Loss::default());
        search.best
    };
    let (loss, victims) = chosen?;
    limit.is_none_or(|limit| loss < limit).then(|| {
        let ids = victims
            .into_iter()
            .filter_map(|index| candidates.get(index))
            .map(|candidate| candidate.id);
        (loss, ids.collect())
    })
}

type Chosen = (Loss, Vec<usize>);

/// One GPU with so many free blocks: for each GPU a knapsack to be covered, of at most a
/// hundred units.
fn share(room: &Room, candidates: &[Candidate], blocks: u8) -> Option<Chosen> {
    (0..MAX_GPUS)
        .filter_map(|gpu| {
            let free = room.blocks.get(gpu)?;
            let short = blocks.saturating_sub(*free);
            cover(candidates, gpu, short)
        })
        .min()
}

/// The cheapest candidates that free so many blocks of one GPU.
fn cover(candidates: &[Candidate], gpu: usize, short: u8) -> Option<Chosen> {
    let short = usize::from(short);
    // best[n]: the cheapest way to free at least n blocks.
    let mut best: Vec<Option<Chosen>> = vec![None; short.saturating_add(1)];
    *best.first_mut()? = Some((Loss::default(), Vec::new()));
    for (index, candidate) in candidates.iter().enumerate() {
        let frees = usize::from(*candidate.part.blocks.get(gpu)?);
        if frees == 0 {
            continue;
        }
        for want in (1..=short).rev() {
            let Some(Some((loss, before))) = best.get(want.saturating_sub(frees)) else {
                continue;
            };
            let loss = loss.plus(candidate.loss);
            if best
                .get(want)
                .is_some_and(|own| own.as_ref().is_none_or(|(own, _)| loss < *own))
            {
                let mut with = before.clone();
                with.push(index);
                if let Some(slot) = best.get_mut(want) {
                    *slot = Some((loss, with));
                }
            }
        }
    }
    best.pop().flatten()
}

/// So many entirely free GPUs: every set of that many is tried, with all who are on it.
fn whole(room: &Room, candidates: &[Candidate], gpus: u8) -> Option<Chosen> {
    let all = candidates.iter().fold(*room, |all, c| all.plus(&c.part));
    let clearable: Vec<usize> = all
        .blocks
        .iter()
        .enumerate()
        .filter(|(_, free)| **free == cnlab_model::BLOCKS_PER_GPU)
        .map(|(gpu, _)| gpu)
        .collect();
    let mut best: Option<Chosen> = None;
    let mut sets = vec![(0_usize, 0_u16, Loss::default(), Vec::new())];
    // A depth-first walk: clear the next GPU or leave it.
    while let Some((next, cleared, loss, victims)) = sets.pop() {
        if best.as_ref().is_some_and(|(least, _)| loss >= *least) {
            continue;
        }
        if cleared == u16::from(gpus) {
            best = Some((loss, victims));
            continue;
        }
        let Some(gpu) = clearable.get(next) else {
            continue;
        };
        let after = next.saturating_add(1);
        let left = clearable.len().saturating_sub(after);
        let missing = usize::from(u16::from(gpus).saturating_sub(cleared));
        if left >= missing {
            sets.push((after, cleared, loss, victims.clone()));
        }
        let mut with = victims;
        let mut more = loss;
        for (index, candidate) in candidates.iter().enumerate() {
            let there = candidate
                .part
                .blocks
                .get(*gpu)
                .is_some_and(|held| *held > 0);
            if there && !with.contains(&index) {
                more = more.plus(candidate.loss);
                with.push(index);
            }
        }
        sets.push((after, cleared.saturating_add(1), more, with));
    }
    best
}

/// Branch and bound over who stays and who gives way, the dearest decided first.
struct Search<'a> {
    demand: &'a Demand,
    tasks: u32,
    /// Dearest first, with their indexes.
    order: Vec<(usize, &'a Candidate)>,
    /// Who gives way on the current branch.
    going: Vec<usize>,
    limit: Option<Loss>,
    best: Option<Chosen>,
    steps: u32,
}

impl<'a> Search<'a> {
    fn new(
        candidates: &'a [Candidate],
        demand: &'a Demand,
        tasks: u32,
        limit: Option<Loss>,
    ) -> Self {
        let mut order: Vec<(usize, &Candidate)> = candidates.iter().enumerate().collect();
        order.sort_by_key(|(_, candidate)| Reverse(candidate.loss));
        Self {
            demand,
            tasks,
            steps: if order.len() > EXACT { STEPS } else { u32::MAX },
            order,
            going: Vec::new(),
            limit,
            best: None,
        }
    }

    /// `now` is the room with those who give way so far, `most` that with all who are not
    /// decided on as well.
    fn descend(&mut self, depth: usize, now: Room, most: Room, loss: Loss) {
        let bound = self.best.as_ref().map(|(least, _)| *least).or(self.limit);
        if bound.is_some_and(|bound| loss >= bound) || self.steps == 0 {
            return;
        }
        self.steps = self.steps.saturating_sub(1);
        if now.tasks(self.demand) >= self.tasks {
            self.best = Some((loss, self.going.clone()));
            return;
        }
        let Some((index, candidate)) = self.order.get(depth).copied() else {
            return;
        };
        let next = depth.saturating_add(1);
        let without = most.minus(&candidate.part);
        if without.tasks(self.demand) >= self.tasks {
            self.descend(next, now, without, loss);
        }
        self.going.push(index);
        self.descend(
            next,
            now.plus(&candidate.part),
            most,
            loss.plus(candidate.loss),
        );
        self.going.pop();
    }
}
