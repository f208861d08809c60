//! Whether every promise is kept, and how much is promised (BENCH-G6).

use std::collections::BTreeSet;

use cnlab_model::Timestamp;
use scheduler_core::{
    cluster::Demand,
    plan::{Admission, Deadline, JobId, Outcome, Plan, Settings, Unmet},
    timeline::Ask,
};

use crate::{
    at, cell,
    dice::{Dice, mean_length},
    flow::{self, Work},
    job, row,
};

/// What arrives where.
#[derive(Clone, Copy)]
struct Case {
    /// Of 8 GPUs each.
    nodes: u32,
    /// Whether some jobs want several GPUs, up to two entire nodes at once.
    gangs: bool,
    jobs: u64,
    seeds: u64,
}

impl Case {
    fn gpus(self) -> u64 {
        u64::from(self.nodes) * 8
    }

    fn name(self) -> String {
        let jobs = if self.gangs { "1 to 16 GPUs" } else { "1 GPU" };
        format!("{jobs} each, {} GPUs", self.gpus())
    }
}

struct Judged {
    accepted: u64,
    bound: u64,
    offered: u64,
    missed: u64,
    jobs: u64,
    taken: u64,
}

/// Jobs that arrive at random, each with a deadline of 1.1 to 4 times its length, so many that
/// `load` hundredths of the GPUs would be busy.
fn arrivals(seed: u64, case: Case, load: u64) -> Vec<(Work, Ask)> {
    let mut dice = Dice(seed);
    let one = Ask::one(Demand::whole(1000, 1024, 1).expect("one GPU"));
    let mean_gpus = if case.gangs { 2.95 } else { 1.0 };
    let every = mean_length() * mean_gpus / (case.gpus() as f64 * load as f64 / 100.0);
    let mut clock = 0.0;
    let mut jobs = Vec::new();
    for _ in 0..case.jobs {
        clock += dice.wait(every);
        let (gpus, ask) = if case.gangs { dice.ask() } else { (1, one) };
        let length = dice.length();
        let release = clock as u64;
        let slack = length * (110 + dice.roll(291)) / 100;
        let work = Work {
            gpus,
            length,
            release,
            deadline: release + slack,
        };
        jobs.push((work, ask));
    }
    jobs
}

fn judge(jobs: &[(Work, Ask)], case: Case) -> Judged {
    let works: Vec<Work> = jobs.iter().map(|(work, _)| *work).collect();
    let mut judged = Judged {
        accepted: 0,
        bound: flow::bound(&works, case.gpus()),
        offered: works.iter().map(|work| work.gpus * work.length).sum(),
        missed: 0,
        jobs: jobs.len() as u64,
        taken: 0,
    };
    let mut plan = Plan::new(&cell(case.nodes), Settings::default(), at(0));
    let mut arrivals = jobs.iter().enumerate().peekable();
    let mut ends: BTreeSet<(Timestamp, JobId)> = BTreeSet::new();
    let mut promised: BTreeSet<JobId> = BTreeSet::new();
    loop {
        let arrival = arrivals.peek().map(|(_, (work, _))| at(work.release));
        let next = [arrival, ends.first().map(|end| end.0), plan.wake_at()];
        let Some(now) = next.into_iter().flatten().min() else {
            break;
        };
        while let Some((end, id)) = ends.first().copied().filter(|(end, _)| *end <= now) {
            ends.pop_first();
            plan.finish(id, now);
            let (work, _) = jobs[id.0 as usize];
            promised.remove(&id);
            if end > at(work.deadline) {
                judged.missed += 1;
            }
        }
        while let Some((id, (work, ask))) =
            arrivals.next_if(|(_, (work, _))| at(work.release) <= now)
        {
            let mut new = job(id as u64, *ask, work.length, now);
            new.deadline = Some(Deadline {
                at: at(work.deadline),
                unmet: Unmet::Refuse,
            });
            if let Admission::Accepted { .. } = plan.submit(new, now) {
                judged.accepted += work.gpus * work.length;
                judged.taken += 1;
                promised.insert(new.id);
            }
        }
        for outcome in plan.turn(now) {
            match outcome {
                Outcome::Start { job, .. } => {
                    let (work, _) = jobs[job.0 as usize];
                    ends.insert((at(now.since(at(0)).as_secs() + work.length), job));
                }
                Outcome::DeadlineLost { .. } => judged.missed += 1,
                Outcome::Overran { .. } => {}
            }
        }
    }
    // Whoever was promised something and never ran was missed, too.
    judged.missed += promised.len() as u64;
    judged
}

pub(crate) fn measure(quick: bool) {
    let (small, large, seeds) = if quick {
        (300, 300, 1)
    } else {
        (3000, 8000, 3)
    };
    for (nodes, gangs, jobs) in [(8, false, large), (8, true, small), (32, true, large)] {
        let case = Case {
            nodes,
            gangs,
            jobs,
            seeds,
        };
        let mut missed = 0;
        for load in [70, 100, 150] {
            missed += value(case, load);
        }
        row(
            &format!("promised deadlines missed, {}", case.name()),
            missed as f64,
            "jobs",
            "== 0",
            "lengths known",
        );
    }
}

/// One row; how many promises were broken.
fn value(case: Case, load: u64) -> u64 {
    let (mut accepted, mut bound, mut offered) = (0, 0, 0);
    let (mut missed, mut jobs, mut taken) = (0, 0, 0);
    for seed in 0..case.seeds {
        let judged = judge(&arrivals(seed * 1000 + load, case, load), case);
        accepted += judged.accepted;
        bound += judged.bound;
        offered += judged.offered;
        missed += judged.missed;
        jobs += judged.jobs;
        taken += judged.taken;
    }
    let of_offered = |value: u64| value as f64 / offered as f64;
    row(
        &format!("accepted value, {}, load {load} %", case.name()),
        accepted as f64 / bound as f64,
        "",
        ">= 0.97",
        &format!(
            "flow bound with interruption; {taken} of {jobs} jobs; of what was offered: accepted {:.3}, bound {:.3}",
            of_offered(accepted),
            of_offered(bound)
        ),
    );
    missed
}
