use std::{fs, path::Path};

use super::*;
use crate::{
    cluster::{Cluster, Kind, Node},
    explain::{Change, Names},
    plan::{Deadline, Job, Outcome, Settings, TeamIx, Unmet},
};

const H100: u8 = 0;
const A100: u8 = 1;

struct Called;

impl Names for Called {
    fn kind(&self, kind: Kind) -> String {
        ["H100", "A100"][usize::from(kind.number())].to_owned()
    }

    fn node(&self, node: NodeIx) -> String {
        format!("rack-{}", node.0)
    }

    fn job(&self, job: JobId) -> String {
        format!("run {}", job.0)
    }
}

fn at(minutes: u64) -> Timestamp {
    Timestamp(0).plus(Duration::from_secs(minutes * 60))
}

fn on(kind: u8, demand: Demand) -> Ask {
    Ask::one(demand.on(KindSet::ANY.with(Kind::new(kind).unwrap())))
}

fn whole(gpus: u8) -> Demand {
    Demand::whole(1000, 1000, gpus).unwrap()
}

fn job(id: u64, ask: Ask, minutes: u64) -> Job {
    Job {
        id: JobId(id),
        team: TeamIx(u32::try_from(id % 3).unwrap()),
        ask,
        length: Duration::from_secs(minutes * 60),
        priority: Priority::Normal,
        deadline: None,
        submitted: at(0),
    }
}

/// Two nodes with H100 and one with A100, full of work, and a queue.
fn busy() -> Plan {
    let mut cluster = Cluster::new();
    for (kind, gpus) in [(H100, 8), (H100, 8), (A100, 4)] {
        let kind = Kind::new(kind).unwrap();
        cluster
            .add(Node::new(kind, 64_000, 500_000, gpus).unwrap())
            .unwrap();
    }
    let settings = Settings {
        depth: 3,
        ..Settings::default()
    };
    let mut plan = Plan::new(&cluster, settings, at(0));
    plan.set_ranks([(TeamIx(0), 2), (TeamIx(1), 1), (TeamIx(2), 3)]);
    plan.submit(job(1, on(H100, whole(8)), 240), at(0));
    plan.submit(job(2, on(H100, whole(6)), 40), at(0));
    plan.submit(job(3, on(A100, whole(3)), 30), at(0));
    plan.turn(at(0));
    // It has both other GPUs of the second node when there is room for eight.
    plan.submit(job(4, on(H100, whole(8)), 60), at(0));
    plan.submit(job(5, on(H100, whole(2)), 90), at(0));
    let mut high = job(6, on(H100, whole(1)), 30);
    high.priority = Priority::High;
    plan.submit(high, at(0));
    let mut promised = job(7, on(A100, whole(2)), 20);
    promised.deadline = Some(Deadline {
        at: at(75),
        unmet: Unmet::Refuse,
    });
    plan.submit(promised, at(0));
    let mut late = job(8, on(H100, whole(4)), 60);
    late.deadline = Some(Deadline {
        at: at(70),
        unmet: Unmet::AcceptLate,
    });
    plan.submit(late, at(0));
    let mut pinned = job(9, Ask::one(whole(1)), 200);
    pinned.ask.only = Some(NodeIx(0));
    plan.submit(pinned, at(0));
    plan.submit(job(10, Ask::gang(whole(4), 3), 45), at(0));
    plan.submit(
        job(11, on(A100, Demand::share(1000, 1000, 60).unwrap()), 300),
        at(0),
    );
    plan.submit(job(12, Ask::one(Demand::cpu_only(60_000, 1)), 30), at(0));
    plan.turn(at(0));
    plan
}

#[test]
fn reports_read_like_this() {
    let plan = busy();
    let forecast = plan.forecast();
    let text: Vec<String> = (1..=12)
        .filter_map(|id| explain(&plan, &forecast, JobId(id)))
        .map(|report| report.text(&Called, at(0)))
        .collect();
    let text = text.join("\n");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/report/golden/busy.txt");
    #[expect(clippy::disallowed_methods, reason = "how golden files are accepted")]
    if std::env::var("REWRITE").is_ok() {
        fs::write(&golden, &text).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(text, expected, "look at it, then run with REWRITE=1");
}

#[test]
fn who_goes_before_is_counted_once() {
    let plan = busy();
    let forecast = plan.forecast();
    let queue = plan.queue();
    for (position, id) in queue.iter().copied().enumerate() {
        let report = explain(&plan, &forecast, id).unwrap();
        // Two that name different types of GPU are in different queues.
        let wants = |id: JobId| plan.job(id).unwrap().ask.demand.kinds();
        let only = |kind: u8| KindSet::ANY.with(Kind::new(kind).unwrap());
        let apart = |a: KindSet, b: KindSet| [(a, b), (b, a)].contains(&(only(H100), only(A100)));
        let same = |other: &&JobId| !apart(wants(id), wants(**other));
        let before = queue[..position].iter().filter(same).count();
        assert_eq!(report.ahead.total(), before, "{id:?}");
        assert_eq!(report.queued, queue.iter().filter(same).count());
        assert_eq!(report.start, forecast.start(id));
    }
    assert_eq!(explain(&plan, &forecast, JobId(99)), None);
}

#[test]
fn what_is_told_to_start_sooner_does() {
    let plan = busy();
    let forecast = plan.forecast();
    let mut told = 0;
    for id in plan.queue() {
        let report = explain(&plan, &forecast, id).unwrap();
        for sooner in &report.sooner {
            let mut changed = *plan.job(id).unwrap();
            let demand = changed.ask.demand;
            let (cpu, memory) = (demand.cpu_milli(), demand.memory_mib());
            match sooner.change {
                Change::Blocks(blocks) => {
                    let demand = Demand::share(cpu, memory, blocks).unwrap();
                    changed.ask.demand = demand.on(changed.ask.demand.kinds());
                }
                Change::Gpus(gpus) => {
                    let demand = Demand::whole(cpu, memory, gpus).unwrap();
                    changed.ask.demand = demand.on(changed.ask.demand.kinds());
                }
                Change::Tasks(tasks) => changed.ask.tasks = tasks,
                Change::Kind(kind) => changed.ask.demand = demand.on(KindSet::ANY.with(kind)),
                Change::Length(length) => changed.length = length,
                Change::AnyNode => changed.ask.only = None,
            }
            // Asked for instead, it has started by then when everybody runs as long as planned.
            let mut plan = plan.clone();
            changed.deadline = None;
            plan.finish(id, at(0));
            plan.submit(changed, at(0));
            let mut started = None;
            let mut now = at(0);
            while started.is_none() {
                let due: Vec<JobId> = (0..20)
                    .map(JobId)
                    .filter(|other| {
                        matches!(plan.standing(*other), Some(Standing::Running { until }) if until <= now)
                    })
                    .collect();
                for other in due {
                    plan.finish(other, now);
                }
                for outcome in plan.turn(now) {
                    if matches!(outcome, Outcome::Start { job, .. } if job == id) {
                        started = Some(now);
                    }
                }
                now = plan.wake_at().unwrap_or(now);
            }
            assert!(
                started <= Some(sooner.start),
                "{id:?} {sooner:?} {started:?}"
            );
            assert!(Some(sooner.start) < report.start || report.start.is_none());
            told += 1;
        }
    }
    assert!(told > 5, "{told}");
}

#[test]
fn blockers() {
    let mut plan = busy();
    let of = |plan: &Plan, id| blocker(plan, JobId(id));
    assert_eq!(of(&plan, 4), Some(Blocker::Busy { free: 100 }));
    assert_eq!(of(&plan, 1), None);
    plan.set_node(NodeIx(2), None, at(1));
    assert_eq!(of(&plan, 7), Some(Blocker::NoNode));
    plan.set_node(NodeIx(1), None, at(1));
    // Two tasks of four would fit, three do not.
    assert_eq!(of(&plan, 10), Some(Blocker::TooLarge));
}

#[test]
fn free_gpus_on_several_nodes_are_scattered() {
    let mut cluster = Cluster::new();
    let kind = Kind::new(H100).unwrap();
    for _ in 0..2 {
        cluster
            .add(Node::new(kind, 8000, 8000, 2).unwrap())
            .unwrap();
    }
    let mut plan = Plan::new(&cluster, Settings::default(), at(0));
    for (node, id) in [(0, 1), (1, 2)] {
        let mut filler = job(id, Ask::one(whole(1)), 60);
        filler.ask.only = Some(NodeIx(node));
        plan.submit(filler, at(0));
    }
    plan.submit(job(3, Ask::one(whole(2)), 60), at(0));
    plan.turn(at(0));
    let scattered = Blocker::Scattered { free: 200, most: 1 };
    assert_eq!(blocker(&plan, JobId(3)), Some(scattered));
    plan.submit(job(4, Ask::one(Demand::cpu_only(7500, 1)), 60), at(0));
    assert_eq!(blocker(&plan, JobId(4)), Some(Blocker::Processors));
    let report = explain(&plan, &plan.forecast(), JobId(3)).unwrap();
    let text = report.text(&Called, at(0));
    assert!(
        text.contains("2 GPUs free, but at most 1 entire on one node"),
        "{text}"
    );
}
