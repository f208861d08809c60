//! Small instances of which every possibility is tried.

use super::*;

/// Whether jobs (GPUs, length, deadline) can all end in time on so many GPUs of one node,
/// each without interruption: every order is tried, each job as early as may be. For jobs
/// that are all there at the start some order gives every schedule that can be.
fn feasible(gpus: u64, jobs: &[(u64, u64, u64)]) -> bool {
    fn place(used: &[u64], gpus: u64, rest: &mut Vec<(u64, u64, u64)>) -> bool {
        if rest.is_empty() {
            return true;
        }
        for index in 0..rest.len() {
            let (wanted, length, by) = rest.remove(index);
            let start = (0..).find(|start| {
                let window = *start..start + length;
                window.into_iter().all(|moment| {
                    let moment = usize::try_from(moment).unwrap();
                    used.get(moment).copied().unwrap_or(0) + wanted <= gpus
                })
            });
            let start = start.unwrap();
            let in_time = start + length <= by;
            let mut after = used.to_owned();
            let end = usize::try_from(start + length).unwrap();
            if after.len() < end {
                after.resize(end, 0);
            }
            for moment in start..start + length {
                after[usize::try_from(moment).unwrap()] += wanted;
            }
            let done = in_time && place(&after, gpus, rest);
            rest.insert(index, (wanted, length, by));
            if done {
                return true;
            }
        }
        false
    }
    place(&[], gpus, &mut jobs.to_vec())
}

/// Submits random jobs at once; returns how many were refused, and how many of them wrongly.
fn refusals(seed: u64, gpu_count: u8, gangs: bool, slack: u64) -> (u64, u64) {
    let mut dice = Dice(seed);
    let mut plan = plan(&[gpu_count]);
    let mut accepted: Vec<(u64, u64, u64)> = Vec::new();
    let (mut refused, mut wrongly) = (0, 0);
    for id in 0..6 {
        let wanted = if gangs {
            1 + dice.roll(u64::from(gpu_count))
        } else {
            1
        };
        let length = 1 + dice.roll(6);
        let by = length + dice.roll(slack);
        let ask = if gangs && dice.roll(2) == 0 && wanted > 1 {
            Ask::gang(
                Demand::whole(1, 1, 1).unwrap(),
                u16::try_from(wanted).unwrap(),
            )
        } else {
            super::gpus(u8::try_from(wanted).unwrap())
        };
        let mut with = accepted.clone();
        with.push((wanted, length, by));
        match plan.submit(due(id, ask, length, by), at(0)) {
            Admission::Accepted { .. } => {
                assert!(feasible(gpu_count.into(), &with), "seed {seed}: {with:?}");
                accepted = with;
            }
            Admission::Refused { .. } => {
                refused += 1;
                wrongly += u64::from(feasible(gpu_count.into(), &with));
            }
            Admission::Queued { .. } | Admission::AcceptedLate { .. } | Admission::Impossible => {
                panic!("neither accepted nor refused")
            }
        }
        check(&plan);
    }
    (refused, wrongly)
}

#[test]
fn on_one_gpu_nothing_is_refused_that_could_be_kept() {
    let mut all = 0;
    for seed in 0..200 * rounds() {
        let (refused, wrongly) = refusals(seed, 1, false, 10);
        assert_eq!(wrongly, 0, "seed {seed}");
        all += refused;
    }
    assert!(all > 200);
}

#[test]
fn on_several_gpus_and_for_gangs_hardly_anything_is() {
    for gangs in [false, true] {
        let (mut all, mut missed) = (0, 0);
        for seed in 0..150 * rounds() {
            let (refused, wrongly) = refusals(10_000 + seed, 3, gangs, if gangs { 8 } else { 4 });
            all += refused;
            missed += wrongly;
        }
        assert!(all > 100, "{all}");
        assert!(
            missed * 50 <= all,
            "{missed} of {all} refused wrongly, gangs: {gangs}"
        );
    }
}
