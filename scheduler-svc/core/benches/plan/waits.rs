//! How well an expected wait foretells the real one (P-03).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cnlab_model::Timestamp;
use scheduler_core::plan::{JobId, Outcome, Plan, Settings};

use crate::{
    at, cell,
    dice::{Dice, mean_length},
    job, row,
};

const NODES: u32 = 32;

pub(crate) fn measure(quick: bool) {
    let count = if quick { 1000 } else { 6000 };
    for (least, name) in [
        (100, "lengths known"),
        (25, "runs last 25 to 100 % of what was planned"),
    ] {
        let mut errors = errors(count, least);
        let waits: Vec<u64> = {
            let mut waits: Vec<u64> = errors.iter().map(|(wait, _)| *wait).collect();
            waits.sort_unstable();
            waits
        };
        errors.sort_by_key(|(_, error)| error.unsigned_abs());
        let middle = errors.len() / 2;
        let later = errors.iter().filter(|(_, error)| *error > 60).count();
        let against = format!("{} jobs that waited, {name}", errors.len());
        let minutes = |seconds: u64| seconds as f64 / 60.0;
        let error = errors
            .get(middle)
            .map_or(0, |(_, error)| error.unsigned_abs());
        let wait = waits.get(middle).copied().unwrap_or(0);
        row("wait, median", minutes(wait), "min", "", &against);
        row(
            "error of the expected wait, median",
            minutes(error),
            "min",
            "",
            &against,
        );
        row(
            "waits longer than expected by more than a minute",
            later as f64 / errors.len().max(1) as f64,
            "",
            "",
            &against,
        );
    }
}

/// What is likely of a run that lasts between `least` and 100 hundredths of its planned time,
/// all equally likely; what is left of one that has run for `age`.
fn likely(planned: Duration, age: Option<Duration>, least: u64) -> Duration {
    let shortest = planned * u32::try_from(least).unwrap_or(100) / 100;
    let age = age.unwrap_or_default();
    let middle = (shortest.max(age) + planned) / 2;
    middle.saturating_sub(age).max(Duration::from_secs(1))
}

/// Real waits and how much longer they were than expected, in seconds, of jobs that did not
/// start at once. Nobody has a deadline or a priority here: a queue by age.
fn errors(count: u64, least: u64) -> Vec<(u64, i64)> {
    let mut dice = Dice(99);
    let mut plan = Plan::new(&cell(NODES), Settings::default(), at(0));
    // Three tenths more than the cell can do, so that there is a queue.
    let real_length = mean_length() * (100 + least) as f64 / 200.0;
    let every = real_length * 2.95 / f64::from(NODES * 8) / 1.3;
    let mut clock = 0.0;
    let mut arrivals = Vec::new();
    for id in 0..count {
        clock += dice.wait(every);
        let (_, ask) = dice.ask();
        arrivals.push((clock as u64, job(id, ask, dice.length(), at(clock as u64))));
    }
    let mut expected: BTreeMap<JobId, Timestamp> = BTreeMap::new();
    let mut ends: BTreeSet<(Timestamp, JobId)> = BTreeSet::new();
    let mut errors = Vec::new();
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let arrival = arrivals.peek().map(|(clock, _)| at(*clock));
        let next = [arrival, ends.first().map(|end| end.0), plan.wake_at()];
        let Some(now) = next.into_iter().flatten().min() else {
            return errors;
        };
        while let Some((_, id)) = ends.first().copied().filter(|(end, _)| *end <= now) {
            ends.pop_first();
            plan.finish(id, now);
        }
        let mut arrived = Vec::new();
        while let Some((_, new)) = arrivals.next_if(|(clock, _)| at(*clock) <= now) {
            plan.submit(new, now);
            arrived.push(new.id);
        }
        for outcome in plan.turn(now) {
            if let Outcome::Start { job: id, .. } = outcome
                && let Some(job) = plan.job(id)
            {
                let planned = job.length.as_secs();
                let share = least + dice.roll(101 - least);
                let length = (planned * share / 100).max(1);
                ends.insert((at(now.since(at(0)).as_secs() + length), id));
                if let Some(told) = expected.remove(&id) {
                    let error = (now.0 - told.0) / 1_000_000;
                    errors.push((now.since(job.submitted).as_secs(), error));
                }
            }
        }
        if arrived.iter().any(|id| id.0 % 8 == 0) {
            let forecast = plan.expect(|job, age| likely(job.length, age, least));
            for id in arrived {
                if let Some(start) = forecast.start(id) {
                    expected.insert(id, start);
                }
            }
        }
    }
}
