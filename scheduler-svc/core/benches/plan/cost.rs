//! What a plan costs, in whole and per change, at 1,000 nodes and 1,000 queued jobs.

use std::collections::BTreeSet;

use cnlab_model::Timestamp;
use scheduler_core::{
    plan::{Deadline, Job, JobId, Outcome, Plan, Settings, Unmet},
    timeline::Ask,
};

use crate::{at, cell, dice::Dice, job, row, summary, timed};

const NODES: u32 = 1000;
const QUEUED: usize = 1000;

struct Cell {
    plan: Plan,
    dice: Dice,
    next: u64,
    ends: BTreeSet<(Timestamp, JobId)>,
    now: Timestamp,
}

impl Cell {
    fn new() -> Self {
        Self {
            plan: Plan::new(&cell(NODES), Settings::default(), at(0)),
            dice: Dice(1),
            next: 0,
            ends: BTreeSet::new(),
            now: at(0),
        }
    }

    fn any_job(&mut self) -> Job {
        let (_, ask) = self.dice.ask();
        let id = self.next;
        self.next += 1;
        let length = self.dice.length() + self.dice.roll(60);
        job(id, ask, length, self.now)
    }

    /// Jobs end when they were expected to, or somewhat before.
    fn note(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            if let Outcome::Start { job: id, .. } = outcome
                && let Some(job) = self.plan.job(id)
            {
                let share = 500 + self.dice.roll(500);
                let length = job.length.as_secs() * share / 1000 + 1;
                let end = self.now.since(at(0)).as_secs() + length;
                self.ends.insert((at(end), id));
            }
        }
    }
}

pub(crate) fn measure(quick: bool) {
    let mut cell = Cell::new();
    let against = format!("{NODES} nodes of 8 GPUs, {QUEUED} queued jobs");
    // Until so many wait.
    let mut filling = Vec::new();
    while cell.plan.queued() < QUEUED {
        for _ in 0..50 {
            let new = cell.any_job();
            let (_, took) = timed(|| cell.plan.submit(new, cell.now));
            filling.push(took);
        }
        let outcomes = cell.plan.turn(cell.now);
        cell.note(outcomes);
    }
    let (mean, p99) = summary(filling);
    row("submit, filling the cell, mean", mean, "us", "", &against);
    row("submit, filling the cell, p99", p99, "us", "", &against);

    let rounds = if quick { 3 } else { 20 };
    let plans: Vec<_> = (0..rounds)
        .map(|_| timed(|| cell.plan.forecast()))
        .collect();
    let (mean, _) = summary(plans.into_iter().map(|(_, took)| took).collect());
    row(
        "plan of everything that waits, mean",
        mean / 1000.0,
        "ms",
        "",
        &against,
    );
    let forecast = cell.plan.forecast();
    let asks: Vec<Ask> = (0..1000).map(|_| cell.dice.ask().1).collect();
    let wait = std::time::Duration::from_secs(3600);
    let asked = asks
        .iter()
        .map(|ask| timed(|| cell.plan.available(&forecast, ask, wait)).1)
        .collect();
    let (mean, p99) = summary(asked);
    row(
        "expected wait of one profile, mean",
        mean,
        "us",
        "",
        &against,
    );
    row("expected wait of one profile, p99", p99, "us", "", &against);

    changes(&mut cell, quick, &against);
}

/// The cell goes on: each end is a change, and whoever started is replaced in the queue.
fn changes(cell: &mut Cell, quick: bool, against: &str) {
    let count = if quick { 300 } else { 5000 };
    let (mut turns, mut submits, mut promises) = (Vec::new(), Vec::new(), Vec::new());
    let mut started = 0_usize;
    while turns.len() < count {
        let Some((end, id)) = cell.ends.pop_first() else {
            break;
        };
        cell.now = end;
        let (outcomes, took) = timed(|| {
            cell.plan.finish(id, end);
            cell.plan.turn(end)
        });
        turns.push(took);
        started += outcomes.len();
        cell.note(outcomes);
        while cell.plan.queued() < QUEUED {
            let mut new = cell.any_job();
            let promised = cell.dice.roll(10) == 0;
            if promised {
                let slack = new.length.as_secs() * (110 + cell.dice.roll(291)) / 100;
                new.deadline = Some(Deadline {
                    at: new.submitted.plus(std::time::Duration::from_secs(slack)),
                    unmet: Unmet::AcceptLate,
                });
            }
            let now = cell.now;
            let (_, took) = timed(|| cell.plan.submit(new, now));
            if promised {
                promises.push(took);
            } else {
                submits.push(took);
            }
        }
    }
    let changes = turns.len();
    let (mean, p99) = summary(turns);
    let what = format!("{against}; {changes} ends, {started} starts");
    row(
        "a job ends, until who follows is known, mean",
        mean,
        "us",
        "",
        &what,
    );
    row(
        "a job ends, until who follows is known, p99",
        p99,
        "us",
        "",
        &what,
    );
    let (mean, p99) = summary(submits);
    row("a job arrives, mean", mean, "us", "", against);
    row("a job arrives, p99", p99, "us", "", against);
    let (mean, p99) = summary(promises);
    row(
        "a job with a deadline arrives, mean",
        mean,
        "us",
        "",
        against,
    );
    row("a job with a deadline arrives, p99", p99, "us", "", against);
}
