mod oracle;
mod scan;
mod soak;

use std::time::Duration;

use cnlab_model::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    cluster::{Demand, GpuSet, Kind, KindSet, Node},
    plan::{Admission, Plan, Priority, Settings, TeamIx},
    timeline::Ask,
};

const MINUTE: i64 = 60_000_000;
const MIN_RUN: Duration = Duration::from_secs(600);

fn at(minutes: i64) -> Timestamp {
    Timestamp(minutes * MINUTE)
}

fn job(id: u64, demand: Demand, priority: Priority) -> Job {
    Job {
        id: JobId(id),
        team: TeamIx(0),
        ask: Ask::one(demand),
        length: Duration::from_secs(3_600),
        priority,
        deadline: None,
        submitted: at(0),
    }
}

fn training(job: Job, places: Vec<Place>, since: Timestamp) -> Running {
    Running {
        job,
        kind: WorkKind::Training,
        environment: Environment::Development,
        places,
        since,
        checkpoint: None,
        fixed: false,
    }
}

fn newcomer(job: Job) -> Newcomer {
    Newcomer {
        job,
        kind: WorkKind::Interactive,
        environment: Environment::Development,
    }
}

fn kind(number: u8) -> Kind {
    Kind::new(number).unwrap()
}

fn place(node: u32, gpus: &[usize]) -> Place {
    Place {
        node: NodeIx(node),
        gpus: gpus.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu)),
    }
}

/// One node with two GPUs, on which these run.
fn cell(running: &[Running]) -> (Cluster, Runs) {
    let mut cluster = Cluster::new();
    cluster
        .add(Node::new(kind(0), 16_000, 64_000, 2).unwrap())
        .unwrap();
    let mut runs = Runs::new(MIN_RUN);
    for running in running {
        for place in &running.places {
            cluster.take(*place, &running.job.ask.demand).unwrap();
        }
        runs.insert(running.clone());
    }
    (cluster, runs)
}

fn share(blocks: u8) -> Demand {
    Demand::share(1_000, 1_000, blocks).unwrap()
}

fn victims(reclaim: &Reclaim) -> Vec<u64> {
    reclaim.victims.iter().map(|victim| victim.job.0).collect()
}

#[test]
fn the_classes_are_four_and_strictly_ordered() {
    let all: Vec<Class> = [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Critical,
    ]
    .into_iter()
    .flat_map(|priority| {
        ["interactive", "training", "inference", "evaluation"]
            .into_iter()
            .flat_map(move |kind| {
                ["development", "production"]
                    .into_iter()
                    .map(move |environment| Class {
                        priority,
                        kind: kind.parse().unwrap(),
                        environment: environment.parse().unwrap(),
                    })
            })
    })
    .collect();
    for a in &all {
        assert_eq!(a.goes_before(*a), None);
        for b in &all {
            if a.goes_before(*b).is_some() {
                assert_eq!(b.goes_before(*a), None, "{a:?} {b:?}");
                for c in all.iter().filter(|c| b.goes_before(**c).is_some()) {
                    assert!(a.goes_before(*c).is_some(), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }
    let names: Vec<String> = all.iter().map(|class| class.priority.to_string()).collect();
    assert_eq!(
        [&names[0], &names[8], &names[16], &names[24]],
        ["low", "normal", "high", "critical"]
    );
    assert_eq!(
        "batch".parse::<WorkKind>().unwrap_err().to_string(),
        "\"batch\" is none of interactive, training, inference, evaluation"
    );
}

#[test]
fn production_inference_goes_before_development_training() {
    // H-08.
    let class = |priority, kind, environment| Class {
        priority,
        kind,
        environment,
    };
    let serving = |priority| class(priority, WorkKind::Inference, Environment::Production);
    let learning = |priority| class(priority, WorkKind::Training, Environment::Development);
    for (newcomer, other, ground) in [
        (
            serving(Priority::Normal),
            learning(Priority::Normal),
            Some(Ground::ProductionInference),
        ),
        (
            serving(Priority::Normal),
            learning(Priority::Low),
            Some(Ground::Priority),
        ),
        (serving(Priority::Normal), learning(Priority::High), None),
        (serving(Priority::Normal), serving(Priority::Normal), None),
        (
            serving(Priority::Normal),
            class(
                Priority::Normal,
                WorkKind::Training,
                Environment::Production,
            ),
            None,
        ),
        (
            class(
                Priority::Normal,
                WorkKind::Inference,
                Environment::Development,
            ),
            learning(Priority::Normal),
            None,
        ),
        (learning(Priority::Normal), serving(Priority::Normal), None),
        (
            learning(Priority::Critical),
            serving(Priority::High),
            Some(Ground::Priority),
        ),
    ] {
        assert_eq!(
            newcomer.goes_before(other),
            ground,
            "{newcomer:?} {other:?}"
        );
    }
}

#[test]
fn who_lost_least_since_the_last_checkpoint_gives_way() {
    let mut old = training(
        job(1, share(60), Priority::Low),
        vec![place(0, &[0])],
        at(0),
    );
    old.checkpoint = Some(at(119));
    let young = training(
        job(2, share(60), Priority::Low),
        vec![place(0, &[1])],
        at(100),
    );
    let (cluster, mut runs) = cell(&[old, young]);
    let urgent = newcomer(job(3, share(50), Priority::High));
    let reclaim = runs.reclaim(&cluster, &urgent, at(120)).unwrap();
    assert_eq!(
        reclaim.victims,
        [Victim {
            job: JobId(1),
            ground: Ground::Priority,
            unsaved: Duration::from_secs(60),
        }]
    );
    assert_eq!(reclaim.places, [place(0, &[0])]);
    assert_eq!(reclaim.loss.gpu, 60 * 60_000_000);
    runs.saved(JobId(2), at(120));
    let reclaim = runs.reclaim(&cluster, &urgent, at(120)).unwrap();
    assert_eq!(victims(&reclaim), [2]);
    // An older checkpoint is no news.
    runs.saved(JobId(2), at(110));
    assert_eq!(runs.get(JobId(2)).unwrap().unsaved(at(120)), Duration::ZERO);
}

#[test]
fn nobody_gives_way_within_the_minimum_run_time_or_when_fixed() {
    let young = training(
        job(1, share(60), Priority::Low),
        vec![place(0, &[0])],
        at(0),
    );
    let mut fixed = training(
        job(2, share(60), Priority::Low),
        vec![place(0, &[1])],
        at(0),
    );
    fixed.fixed = true;
    let (cluster, mut runs) = cell(&[young, fixed]);
    let urgent = newcomer(job(3, share(50), Priority::Critical));
    let just_before = Timestamp(at(10).0 - 1);
    assert_eq!(runs.reclaim(&cluster, &urgent, just_before), None);
    let reclaim = runs.reclaim(&cluster, &urgent, at(10)).unwrap();
    assert_eq!(victims(&reclaim), [1]);
    // A clock that was set back protects.
    assert_eq!(runs.reclaim(&cluster, &urgent, at(-5)), None);
    let equal = newcomer(job(4, share(50), Priority::Low));
    assert_eq!(runs.reclaim(&cluster, &equal, at(60)), None);
}

#[test]
fn nobody_gives_way_where_the_newcomer_could_not_start() {
    let one = training(
        job(1, share(60), Priority::Low),
        vec![place(0, &[0])],
        at(0),
    );
    let other = training(
        job(2, share(60), Priority::Critical),
        vec![place(0, &[1])],
        at(0),
    );
    let (mut cluster, mut runs) = cell(&[one, other]);
    let two = Demand::whole(1_000, 1_000, 2).unwrap();
    let urgent = |demand| newcomer(job(3, demand, Priority::High));
    assert_eq!(runs.reclaim(&cluster, &urgent(two), at(60)), None);
    let greedy = Demand::share(15_500, 1_000, 50).unwrap();
    assert_eq!(runs.reclaim(&cluster, &urgent(greedy), at(60)), None);
    let elsewhere = share(50).on(KindSet::ANY.with(kind(1)));
    assert_eq!(runs.reclaim(&cluster, &urgent(elsewhere), at(60)), None);
    let mut nowhere = urgent(share(50));
    nowhere.job.ask.only = Some(NodeIx(1));
    assert_eq!(runs.reclaim(&cluster, &nowhere, at(60)), None);
    // Where there is room, nobody gives way.
    let small = runs.reclaim(&cluster, &urgent(share(40)), at(60)).unwrap();
    assert_eq!((victims(&small), small.loss), (vec![], Loss::default()));
    assert!(runs.reclaim(&cluster, &urgent(share(50)), at(60)).is_some());
    cluster.set_eligible(NodeIx(0), false).unwrap();
    assert_eq!(runs.reclaim(&cluster, &urgent(share(50)), at(60)), None);
}

#[test]
fn of_equal_losses_the_lower_priority_and_then_fewer_processors_go() {
    let saved = |id, gpu, priority, cpu| {
        let demand = Demand::share(cpu, 1_000, 60).unwrap();
        let mut running = training(job(id, demand, priority), vec![place(0, &[gpu])], at(0));
        running.checkpoint = Some(at(60));
        running
    };
    let (cluster, mut runs) = cell(&[
        saved(1, 0, Priority::Normal, 100),
        saved(2, 1, Priority::Low, 4_000),
    ]);
    let urgent = newcomer(job(3, share(50), Priority::High));
    let reclaim = runs.reclaim(&cluster, &urgent, at(60)).unwrap();
    assert_eq!(victims(&reclaim), [2]);
    let (cluster, mut runs) = cell(&[
        saved(1, 0, Priority::Low, 4_000),
        saved(2, 1, Priority::Low, 100),
    ]);
    let reclaim = runs.reclaim(&cluster, &urgent, at(61)).unwrap();
    assert_eq!(victims(&reclaim), [2]);
}

#[test]
fn of_equal_nodes_the_lowest_is_taken() {
    let mut cluster = Cluster::new();
    let mut runs = Runs::new(MIN_RUN);
    for node in 0..3 {
        cluster
            .add(Node::new(kind(0), 16_000, 64_000, 1).unwrap())
            .unwrap();
        let mut running = training(
            job(10 - u64::from(node), share(60), Priority::Low),
            vec![place(node, &[0])],
            at(0),
        );
        // The first node looks worst from afar: something small was saved long ago there.
        if node > 0 {
            let mut small = running.clone();
            small.job = job(20 + u64::from(node), share(1), Priority::Low);
            small.checkpoint = Some(at(59));
            cluster.take(small.places[0], &share(1)).unwrap();
            runs.insert(small);
        }
        running.checkpoint = Some(at(30));
        cluster.take(running.places[0], &share(60)).unwrap();
        runs.insert(running);
    }
    let urgent = newcomer(job(3, share(50), Priority::High));
    let reclaim = runs.reclaim(&cluster, &urgent, at(60)).unwrap();
    assert_eq!(
        (victims(&reclaim), reclaim.places),
        (vec![10], vec![place(0, &[0])])
    );
}

#[test]
fn who_gave_way_keeps_the_place_in_the_queue() {
    let mut cluster = Cluster::new();
    cluster
        .add(Node::new(kind(0), 16_000, 64_000, 1).unwrap())
        .unwrap();
    let whole = Demand::whole(1_000, 1_000, 1).unwrap();
    let first = job(1, whole, Priority::Low);
    let mut plan = Plan::new(&cluster, Settings::default(), at(0));
    let mut runs = Runs::new(MIN_RUN);
    assert!(!matches!(plan.submit(first, at(0)), Admission::Impossible));
    plan.turn(at(0));
    let running = training(first, vec![place(0, &[0])], at(0));
    cluster.take(running.places[0], &whole).unwrap();
    runs.insert(running);
    // Somebody else comes and waits behind it.
    let second = Job {
        submitted: at(1),
        ..job(2, whole, Priority::Low)
    };
    plan.submit(second, at(1));
    let urgent = Job {
        submitted: at(20),
        ..job(3, whole, Priority::High)
    };
    let reclaim = runs.reclaim(&cluster, &newcomer(urgent), at(20)).unwrap();
    assert_eq!(victims(&reclaim), [1]);
    let stopped = runs.remove(JobId(1)).unwrap();
    plan.finish(JobId(1), at(20));
    plan.submit(urgent, at(20));
    plan.submit(stopped.job, at(20));
    assert_eq!(plan.queue(), [JobId(3), JobId(1), JobId(2)]);
}
