//! One file per question: `rules` what is promised, `simulation` whole days, `disorder` events
//! in any order, `oracle` small
//! instances of which everything is tried.

mod disorder;
mod oracle;
mod rules;
mod simulation;

use super::*;
use crate::{
    cluster::{Demand, Kind},
    timeline::Ask,
};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp(0).plus(secs(seconds))
}

fn gpus(count: u8) -> Ask {
    Ask::one(Demand::whole(1, 1, count).unwrap())
}

fn share(blocks: u8) -> Ask {
    Ask::one(Demand::share(1, 1, blocks).unwrap())
}

fn cell(nodes: &[u8]) -> Cluster {
    let mut cluster = Cluster::new();
    for gpus in nodes {
        let kind = Kind::new(0).unwrap();
        cluster
            .add(crate::cluster::Node::new(kind, 1000, 1000, *gpus).unwrap())
            .unwrap();
    }
    cluster
}

fn plan(nodes: &[u8]) -> Plan {
    Plan::new(&cell(nodes), Settings::default(), at(0))
}

fn job(id: u64, ask: Ask, length: u64) -> Job {
    Job {
        id: JobId(id),
        team: TeamIx(0),
        ask,
        length: secs(length),
        priority: Priority::Normal,
        deadline: None,
        submitted: at(0),
    }
}

fn due(id: u64, ask: Ask, length: u64, by: u64) -> Job {
    Job {
        deadline: Some(Deadline {
            at: at(by),
            unmet: Unmet::Refuse,
        }),
        ..job(id, ask, length)
    }
}

fn started(outcomes: &[Outcome]) -> Vec<u64> {
    let starts = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Start { job, .. } => Some(job.0),
        Outcome::Overran { .. } | Outcome::DeadlineLost { .. } => None,
    });
    starts.collect()
}

/// The start of a reserved job, in seconds.
fn start(plan: &Plan, id: u64) -> Option<u64> {
    match plan.standing(JobId(id)) {
        Some(Standing::Reserved { start, .. }) => Some(start.since(at(0)).as_secs()),
        Some(Standing::Waiting | Standing::Running { .. }) | None => None,
    }
}

/// Everything that must hold between two calls.
fn check(plan: &Plan) {
    let now = plan.timeline.now();
    let mut claims = Vec::new();
    for (id, entry) in &plan.jobs {
        let waits = plan.waiting.contains(&entry.turn);
        let soft = plan.soft.contains(&entry.turn);
        let by = entry.job.deadline.map(|deadline| deadline.at);
        let firm = by.is_some_and(|by| plan.firm.contains(&(by, *id)));
        let lists = (waits, soft, firm);
        match &entry.state {
            State::Waiting => assert_eq!(lists, (true, false, false), "{entry:?}"),
            State::Withheld => assert_eq!(lists, (false, false, false), "{entry:?}"),
            State::Reserved { claim, firm } => {
                assert_eq!(lists, (false, !firm, *firm), "{entry:?}");
                assert!(plan.alarms.contains(&(claim.from, *id)));
                assert_eq!(claim.places.len(), usize::from(entry.job.ask.tasks));
                if *firm {
                    assert!(Some(claim.until) <= by && entry.guaranteed, "{entry:?}");
                }
                claims.push(claim);
            }
            State::Running { claim, .. } => {
                assert_eq!(lists, (false, false, false), "{entry:?}");
                assert!(plan.alarms.contains(&(claim.until, *id)));
                claims.push(claim);
            }
        }
    }
    assert_eq!(plan.alarms.len(), claims.len());
    let lists = plan.waiting.len() + plan.soft.len() + plan.firm.len();
    assert!(lists <= plan.jobs.len());
    // The timeline holds what the jobs hold, and nothing else.
    let mut again = plan.timeline.clone();
    for claim in claims {
        again.release(claim).unwrap();
    }
    for lane in again.future() {
        assert!(lane.len() <= 1, "{lane:?} at {now}");
    }
}

/// A small generator, so that a failing round can be named by its seed.
struct Dice(u64);

impl Dice {
    /// Below `limit`.
    fn roll(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn rounds() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a soak lasts is its caller's choice"
    )]
    let soak = std::env::var("CNLAB_SOAK_ROUNDS");
    soak.ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(1)
}
