//! The cheapest set of candidates of one node whose room suffices.

use std::cmp::Reverse;

use crate::{
    cluster::{Demand, Shape},
    plan::JobId,
};

use super::{Loss, room::Room};

/// Up to so many candidates on a node the cheapest set is exact in every case.
pub const EXACT: usize = 16;

/// On a GPU with up to so many candidates the GPU time of every set is computed before any set
/// is chosen.
const FEW: usize = 6;

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
    if room.hosts(demand, tasks) {
        return limit
            .is_none_or(|limit| limit > Loss::default())
            .then(|| (Loss::default(), Vec::new()));
    }
    let all = candidates.iter().fold(*room, |all, c| all.plus(&c.part));
    if !all.hosts(demand, tasks) {
        return None;
    }
    let chosen = if tasks == 1 && room.feeds(demand, 1) {
        // Only GPUs are short, so each GPU, or each set of them, is a question of its own.
        match demand.shape() {
            Shape::Share(blocks) => share(room, candidates, blocks, limit),
            Shape::Whole(gpus) => whole(room, candidates, gpus, limit),
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
fn share(room: &Room, candidates: &[Candidate], blocks: u8, limit: Option<Loss>) -> Option<Chosen> {
    let mut best: Option<Chosen> = None;
    for (gpu, free) in room.blocks.iter().enumerate() {
        let bound = best.as_ref().map(|(least, _)| *least).or(limit);
        let short = blocks.saturating_sub(*free);
        best = cover(candidates, gpu, short, bound).or(best);
    }
    best
}

/// The cheapest candidates that free so many blocks of one GPU, if they cost less than the
/// bound.
fn cover(candidates: &[Candidate], gpu: usize, short: u8, bound: Option<Loss>) -> Option<Chosen> {
    let here: Vec<(usize, u8, Loss)> = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let blocks = candidate.part.blocks.get(gpu).copied().unwrap_or(0);
            (index, blocks, candidate.loss)
        })
        .filter(|(_, blocks, _)| *blocks > 0)
        .collect();
    let sum = here.iter().fold(0_u32, |sum, (_, blocks, _)| {
        sum.saturating_add((*blocks).into())
    });
    let stays = sum.checked_sub(short.into())?;
    // Whoever stays saves no more per block than the dearest, so most GPUs end here.
    let all = here
        .iter()
        .fold(0_u128, |all, (.., loss)| all.saturating_add(loss.gpu));
    let saves = here
        .iter()
        .filter_map(|(_, blocks, loss)| {
            Some(loss.gpu.checked_div((*blocks).into())?.saturating_add(1))
        })
        .max()
        .unwrap_or(0);
    let least = all.saturating_sub(saves.saturating_mul(stays.into()));
    let too_much = |least: u128| bound.is_some_and(|bound| least > bound.gpu);
    if too_much(least) || (here.len() <= FEW && too_much(least_gpu(&here, short)?)) {
        return None;
    }
    // best[n]: the cheapest way to free at least n blocks, and who goes, one bit for each. At
    // most a hundred have a block of one GPU.
    let mut best: Vec<Option<(Loss, u128)>> = vec![None; usize::from(short).saturating_add(1)];
    *best.first_mut()? = Some((Loss::default(), 0));
    let mut bit = 1_u128;
    for (_, frees, loss) in &here {
        // From the top, so that nobody is counted twice.
        for want in (1..best.len()).rev() {
            let before = best.get(want.saturating_sub((*frees).into()));
            if let Some((least, going)) = before.copied().flatten()
                && let with = least.plus(*loss)
                && bound.is_none_or(|bound| with < bound)
                && let Some(slot) = best.get_mut(want)
                && slot.is_none_or(|(own, _)| with < own)
            {
                *slot = Some((with, going | bit));
            }
        }
        bit <<= 1;
    }
    let (loss, going) = best.pop().flatten()?;
    let victims = here
        .iter()
        .enumerate()
        .filter(|(bit, _)| going >> bit & 1 == 1)
        .map(|(_, (index, ..))| *index);
    Some((loss, victims.collect()))
}

/// The least GPU time that frees so many blocks, of all sets.
fn least_gpu(here: &[(usize, u8, Loss)], short: u8) -> Option<u128> {
    if short == 0 {
        return Some(0);
    }
    let ((_, frees, loss), rest) = here.split_first()?;
    let with = least_gpu(rest, short.saturating_sub(*frees));
    let with = with.map(|least| least.saturating_add(loss.gpu));
    with.into_iter().chain(least_gpu(rest, short)).min()
}

/// So many entirely free GPUs: every set of that many is tried, with all who are on it.
fn whole(room: &Room, candidates: &[Candidate], gpus: u8, limit: Option<Loss>) -> Option<Chosen> {
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
        let bound = best.as_ref().map(|(least, _)| *least).or(limit);
        if bound.is_some_and(|bound| loss >= bound) {
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
        if now.hosts(self.demand, self.tasks) {
            self.best = Some((loss, self.going.clone()));
            return;
        }
        let Some((index, candidate)) = self.order.get(depth).copied() else {
            return;
        };
        let next = depth.saturating_add(1);
        let without = most.minus(&candidate.part);
        if without.hosts(self.demand, self.tasks) {
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
