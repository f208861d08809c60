//! What a plan costs, in whole and per change, with 1,000 queued jobs.

use std::{collections::BTreeSet, time::Duration};

use cnlab_model::Timestamp;
use scheduler_core::plan::{Deadline, Job, JobId, Outcome, Plan, Settings, Unmet};

use crate::{at, cell, dice::Dice, job, row, summary, timed};

const QUEUED: usize = 1000;

struct Cell {
    plan: Plan,
    dice: Dice,
    next: u64,
    ends: BTreeSet<(Timestamp, JobId)>,
    now: Timestamp,
}

impl Cell {
    fn new(nodes: u32) -> Self {
        Self {
            plan: Plan::new(&cell(nodes), Settings::default(), at(0)),
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

/// How long each call took, the calls of one kind in their order.
#[derive(Default)]
struct Times {
    filling: Vec<Duration>,
    plans: Vec<Duration>,
    asked: Vec<Duration>,
    ends: Vec<Duration>,
    arrivals: Vec<Duration>,
    promises: Vec<Duration>,
}

impl Times {
    /// The faster of two runs of the same calls: what is slower has waited for a processor.
    fn faster(self, other: Self) -> Self {
        let each = |mine: Vec<Duration>, others: Vec<Duration>| {
            let both = mine.into_iter().zip(others);
            both.map(|(mine, other)| mine.min(other)).collect()
        };
        Self {
            filling: each(self.filling, other.filling),
            plans: each(self.plans, other.plans),
            asked: each(self.asked, other.asked),
            ends: each(self.ends, other.ends),
            arrivals: each(self.arrivals, other.arrivals),
            promises: each(self.promises, other.promises),
        }
    }
}

pub(crate) fn measure(quick: bool) {
    measure_on(1000, quick);
    if !quick {
        measure_on(4000, quick);
    }
}

fn measure_on(nodes: u32, quick: bool) {
    let runs = if quick { 1 } else { 5 };
    let times = (1..runs).fold(run(nodes, quick), |times, _| {
        times.faster(run(nodes, quick))
    });
    let against =
        format!("{QUEUED} queued jobs, nodes of 8 GPUs; fastest of {runs} runs of the same calls");
    for (name, times) in [
        ("a job arrives, filling the cell", times.filling),
        ("a plan of everything that waits", times.plans),
        ("the expected wait of one profile", times.asked),
        ("a job ends, until who follows is known", times.ends),
        ("a job arrives", times.arrivals),
        ("a job with a deadline arrives", times.promises),
    ] {
        let against = format!("{against}; {} calls", times.len());
        let (mean, p99) = summary(times);
        let name = format!("{name}, {nodes} nodes");
        row(&format!("{name}, mean"), mean, "us", "", &against);
        row(&format!("{name}, p99"), p99, "us", "", &against);
    }
}

fn run(nodes: u32, quick: bool) -> Times {
    let mut cell = Cell::new(nodes);
    let mut times = Times::default();
    // Until so many wait.
    while cell.plan.queued() < QUEUED {
        for _ in 0..50 {
            let new = cell.any_job();
            let (_, took) = timed(|| cell.plan.submit(new, cell.now));
            times.filling.push(took);
        }
        let outcomes = cell.plan.turn(cell.now);
        cell.note(outcomes);
    }
    for _ in 0..if quick { 3 } else { 10 } {
        let (_, took) = timed(|| cell.plan.forecast());
        times.plans.push(took);
    }
    let forecast = cell.plan.forecast();
    for _ in 0..1000 {
        let (_, ask) = cell.dice.ask();
        let hour = Duration::from_secs(3600);
        let (_, took) = timed(|| cell.plan.available(&forecast, &ask, hour));
        times.asked.push(took);
    }
    changes(&mut cell, if quick { 300 } else { 5000 }, &mut times);
    times
}

/// The cell goes on: each end is a change, and whoever started is replaced in the queue.
fn changes(cell: &mut Cell, count: usize, times: &mut Times) {
    while times.ends.len() < count {
        let Some((end, id)) = cell.ends.pop_first() else {
            break;
        };
        cell.now = end;
        let (outcomes, took) = timed(|| {
            cell.plan.finish(id, end);
            cell.plan.turn(end)
        });
        times.ends.push(took);
        cell.note(outcomes);
        while cell.plan.queued() < QUEUED {
            let mut new = cell.any_job();
            let promised = cell.dice.roll(10) == 0;
            if promised {
                let slack = new.length.as_secs() * (110 + cell.dice.roll(291)) / 100;
                new.deadline = Some(Deadline {
                    at: new.submitted.plus(Duration::from_secs(slack)),
                    unmet: Unmet::AcceptLate,
                });
            }
            let now = cell.now;
            let (_, took) = timed(|| cell.plan.submit(new, now));
            if promised {
                times.promises.push(took);
            } else {
                times.arrivals.push(took);
            }
        }
    }
}
