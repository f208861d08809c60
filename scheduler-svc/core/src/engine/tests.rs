use std::collections::BTreeMap;

use cnlab_model::id::Ulid;
use proptest::prelude::*;

use super::*;
use crate::{
    cluster::GpuSet,
    placement::BestFit,
    plan::{Deadline, Priority},
    timeline::Ask,
};

mod quota;

const GPUS: u8 = 4;

fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn kind() -> Kind {
    Kind::new(0).unwrap()
}

fn node() -> Node {
    Node::new(kind(), 64_000, 512_000, GPUS).unwrap()
}

fn cell(nodes: usize) -> Engine<BestFit> {
    let mut cluster = Cluster::new();
    for _ in 0..nodes {
        cluster.add(node()).unwrap();
    }
    let vram = BTreeMap::from([(kind(), 80_000)]);
    Engine::new(cluster, BestFit, vram, Settings::default(), at(0))
}

fn team(number: u128) -> TeamId {
    TeamId::from_ulid(Ulid(number))
}

fn share(blocks: u8) -> Demand {
    Demand::share(1_000, 4_000, blocks).unwrap()
}

fn whole(gpus: u8) -> Demand {
    Demand::whole(1_000, 4_000, gpus).unwrap()
}

fn work(id: u64, demand: Demand, length: u64) -> Work {
    Work {
        job: Job {
            id: JobId(id),
            team: TeamIx(0),
            ask: Ask::one(demand),
            length: seconds(length),
            priority: Priority::Normal,
            deadline: None,
            submitted: at(0),
        },
        team: team(1),
        kind: WorkKind::Training,
        environment: Environment::Development,
        fixed: false,
    }
}

fn starts(effects: &[Effect]) -> Vec<(u64, Vec<Place>)> {
    let start = |effect: &Effect| match effect {
        Effect::Start { job, places } => Some((job.0, places.clone())),
        Effect::Stop { .. } | Effect::Overran { .. } | Effect::DeadlineLost { .. } => None,
    };
    effects.iter().filter_map(start).collect()
}

fn stops(effects: &[Effect]) -> Vec<(u64, u64)> {
    let stop = |effect: &Effect| match effect {
        Effect::Stop { victim, newcomer } => Some((victim.job.0, newcomer.0)),
        Effect::Start { .. } | Effect::Overran { .. } | Effect::DeadlineLost { .. } => None,
    };
    effects.iter().filter_map(stop).collect()
}

/// The books say the same as a cluster on which everything that runs is taken anew.
fn check(engine: &Engine<BestFit>) {
    let mut again = Cluster::new();
    for (_, node) in engine.cluster().nodes() {
        let mut empty = Node::new(node.kind(), 64_000, 512_000, node.gpus()).unwrap();
        if !node.is_eligible() {
            let ix = again.add(empty).unwrap();
            again.set_eligible(ix, false).unwrap();
            continue;
        }
        empty = Node::new(node.kind(), 64_000, 512_000, node.gpus()).unwrap();
        again.add(empty).unwrap();
    }
    for (id, work) in &engine.works {
        let standing = engine.plan.standing(*id);
        match engine.runs.get(*id) {
            Some(running) => {
                assert!(matches!(standing, Some(Standing::Running { .. })), "{id:?}");
                for place in &running.places {
                    again.take(*place, &work.job.ask.demand).unwrap();
                }
            }
            None => assert_eq!(
                matches!(standing, Some(Standing::Running { .. })),
                engine.is_expected(*id),
                "{id:?} {standing:?}"
            ),
        }
    }
    assert_eq!(
        engine.runs.len(),
        engine
            .works
            .keys()
            .filter(|id| engine.runs.get(**id).is_some())
            .count()
    );
    assert_eq!(&again, engine.cluster());
}

#[test]
fn work_starts_where_the_rule_wants_it() {
    let mut engine = cell(3);
    engine.submit(work(1, share(60), 100), at(0));
    let first = starts(&engine.turn(at(0)));
    assert_eq!(first.len(), 1);
    let place = first[0].1[0];
    // Best fit: the rest of the same GPU, and then again.
    engine.submit(work(2, share(30), 100), at(1));
    engine.submit(work(3, share(20), 100), at(1));
    let more = starts(&engine.turn(at(1)));
    assert_eq!(more[0].1[0], place);
    assert_ne!(more[1].1[0], place, "ten blocks are left there");
    assert_eq!(more[1].1[0].node, place.node);
    check(&engine);
}

#[test]
fn a_start_never_takes_what_is_reserved() {
    let mut engine = cell(1);
    // Three of four GPUs until 1000; a job for all four waits for that moment.
    engine.submit(work(1, whole(3), 1_000), at(0));
    assert_eq!(starts(&engine.turn(at(0))).len(), 1);
    engine.submit(work(2, whole(4), 100), at(1));
    assert_eq!(engine.turn(at(1)), []);
    // Short work fits before it, long work does not.
    engine.submit(work(3, share(50), 900), at(2));
    engine.submit(work(4, share(50), 2_000), at(2));
    let now: Vec<u64> = starts(&engine.turn(at(2)))
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(now, [3]);
    engine.ended(JobId(1), at(950));
    engine.ended(JobId(3), at(950));
    let now: Vec<u64> = starts(&engine.turn(at(950)))
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(now, [2], "who waited longest and needs most");
    check(&engine);
}

#[test]
fn development_gives_way_to_production_and_comes_back_to_its_place() {
    let mut engine = cell(1);
    for id in 1..=4 {
        engine.submit(work(id, whole(1), 10_000), at(0));
    }
    assert_eq!(starts(&engine.turn(at(0))).len(), 4);
    engine.saved(JobId(3), at(1_000));
    // Somebody else of the same class waits already.
    let waiting = Work {
        job: Job {
            submitted: at(500),
            ..work(9, whole(1), 100).job
        },
        ..work(9, whole(1), 100)
    };
    engine.submit(waiting, at(500));
    assert_eq!(stops(&engine.turn(at(500))), [], "equals do not give way");

    let urgent = Work {
        kind: WorkKind::Inference,
        environment: Environment::Production,
        job: Job {
            submitted: at(1_100),
            ..work(10, whole(1), 5_000).job
        },
        ..work(10, whole(1), 5_000)
    };
    engine.submit(urgent, at(1_100));
    let effects = engine.turn(at(1_100));
    assert_eq!(stops(&effects), [(3, 10)], "who saved last loses least");
    assert_eq!(starts(&effects), []);
    assert!(engine.is_expected(JobId(10)));
    check(&engine);
    // Nobody comes between, and nobody is stopped twice for the same.
    assert_eq!(engine.turn(at(1_101)), []);

    let place = engine.runs().get(JobId(3)).unwrap().places.clone();
    engine.gave_way(JobId(3), at(1_105));
    let effects = engine.turn(at(1_105));
    assert_eq!(starts(&effects), [(10, place)]);
    check(&engine);
    // It waits in front of the one that came after it, for what is left of it.
    assert_eq!(engine.plan().queue(), [JobId(3), JobId(9)]);
    assert_eq!(engine.work(JobId(3)).unwrap().job.length, seconds(9_000));
    engine.ended(JobId(1), at(1_200));
    assert_eq!(starts(&engine.turn(at(1_200)))[0].0, 3);
    check(&engine);
}

#[test]
fn nobody_gives_way_before_the_minimum_run_time_or_for_nothing() {
    let mut engine = cell(1);
    for id in 1..=4 {
        engine.submit(work(id, whole(1), 10_000), at(0));
    }
    engine.turn(at(0));
    let urgent = |id, gpus| Work {
        job: Job {
            priority: Priority::High,
            ..work(id, whole(gpus), 100).job
        },
        ..work(id, whole(gpus), 100)
    };
    engine.submit(urgent(10, 1), at(60));
    assert_eq!(stops(&engine.turn(at(60))), [], "they have just begun");
    // When they are old enough, the next arrival makes the engine look again.
    engine.submit(work(11, share(1), 10), at(700));
    let effects = engine.turn(at(700));
    assert_eq!(stops(&effects).len(), 1);
    check(&engine);

    // The newcomer is cancelled: the victim was told to stop all the same, and comes back.
    let (victim, _) = stops(&effects)[0];
    engine.ended(JobId(10), at(701));
    engine.gave_way(JobId(victim), at(705));
    let started = starts(&engine.turn(at(705)));
    assert!(started.iter().any(|(id, _)| *id == victim), "{started:?}");
    check(&engine);
}

#[test]
fn a_team_that_used_much_yields_to_one_that_used_nothing() {
    let mut engine = cell(1);
    let of = |number: u128, id, submitted| Work {
        team: team(number),
        job: Job {
            submitted: at(submitted),
            ..work(id, whole(4), 1_000).job
        },
        ..work(id, whole(4), 1_000)
    };
    engine.submit(of(1, 1, 0), at(0));
    engine.turn(at(0));
    engine.submit(of(1, 2, 10), at(10));
    engine.submit(of(2, 3, 20), at(20));
    engine.turn(at(900));
    engine.ended(JobId(1), at(1_000));
    assert_eq!(
        starts(&engine.turn(at(1_000)))[0].0,
        3,
        "team 2 is owed more"
    );
    check(&engine);
}

#[test]
fn work_that_runs_is_adopted_once_and_known_numbers_are_not_taken_in_again() {
    let mut engine = cell(1);
    let place = Place {
        node: NodeIx(0),
        gpus: GpuSet::one(2),
    };
    engine
        .adopt(work(1, share(70), 100), vec![place], at(-50), at(50), at(0))
        .unwrap();
    assert_eq!(
        engine.adopt(work(2, share(70), 100), vec![place], at(-50), at(50), at(0)),
        Err(Refused::Blocks)
    );
    assert!(engine.plan().job(JobId(2)).is_none());
    let again = engine.submit(work(1, whole(4), 7), at(1));
    assert_eq!(again, Admission::Queued { start: Some(at(1)) });
    assert_eq!(engine.work(JobId(1)).unwrap().job.ask.demand, share(70));
    check(&engine);
}

#[test]
fn a_cordoned_node_gets_nothing_new() {
    let mut engine = cell(1);
    engine.submit(work(1, share(10), 1_000), at(0));
    engine.turn(at(0));
    engine.set_eligible(NodeIx(0), false, at(1)).unwrap();
    assert_eq!(
        engine.submit(work(2, share(10), 10), at(2)),
        Admission::Impossible
    );
    engine.add_node(node(), at(3)).unwrap();
    engine.submit(work(3, share(10), 10), at(4));
    assert_eq!(starts(&engine.turn(at(4)))[0].1[0].node, NodeIx(1));
}

#[derive(Debug, Clone)]
enum Call {
    Submit {
        blocks: u8,
        length: u64,
        urgent: u8,
        deadline: Option<u64>,
        team: u128,
    },
    Pass(u64),
    End(usize),
    GiveWay(usize),
    Save(usize),
    Cordon(u8, bool),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (1_u8..=140, 1_u64..5_000, 0_u8..8, proptest::option::weighted(0.2, 10_u64..8_000), 0_u128..4)
            .prop_map(|(blocks, length, urgent, deadline, team)| Call::Submit { blocks, length, urgent, deadline, team }),
        4 => (1_u64..1_500).prop_map(Call::Pass),
        3 => any::<usize>().prop_map(Call::End),
        3 => any::<usize>().prop_map(Call::GiveWay),
        1 => any::<usize>().prop_map(Call::Save),
        1 => (0_u8..3, any::<bool>()).prop_map(|(node, on)| Call::Cordon(node, on)),
    ]
}

/// Runs the calls; answers everything that was said.
fn play(calls: &[Call]) -> Vec<Effect> {
    let mut engine = cell(3);
    let mut said = Vec::new();
    let (mut now, mut next) = (0, 0);
    let mut leaving: Vec<JobId> = Vec::new();
    for call in calls {
        let known: Vec<JobId> = engine.works.keys().copied().collect();
        let pick =
            |from: &[JobId], number: usize| from.get(number.checked_rem(from.len())?).copied();
        match call {
            Call::Submit {
                blocks,
                length,
                urgent,
                deadline,
                team: of,
            } => {
                next += 1;
                let demand = match blocks {
                    1..=100 => share(*blocks),
                    more => whole((more - 100) / 10 + 1),
                };
                if demand.gpus() > GPUS {
                    continue;
                }
                let mut new = work(next, demand, *length);
                new.team = team(*of);
                new.job.submitted = at(now);
                new.job.priority = match urgent {
                    0 => Priority::Critical,
                    1 => Priority::High,
                    2 => Priority::Low,
                    _ => Priority::Normal,
                };
                if *urgent == 3 {
                    (new.kind, new.environment) = (WorkKind::Inference, Environment::Production);
                }
                new.job.deadline = deadline.map(|after| Deadline {
                    at: at(now + i64::try_from(after).unwrap()),
                    unmet: if after % 2 == 0 {
                        Unmet::Refuse
                    } else {
                        Unmet::AcceptLate
                    },
                });
                engine.submit(new, at(now));
            }
            Call::Pass(more) => now += i64::try_from(*more).unwrap(),
            Call::End(number) => {
                if let Some(id) = pick(&known, *number) {
                    engine.ended(id, at(now));
                    leaving.retain(|other| *other != id);
                }
            }
            Call::GiveWay(number) => {
                if let Some(id) = pick(&leaving, *number) {
                    engine.gave_way(id, at(now));
                    leaving.retain(|other| *other != id);
                }
            }
            Call::Save(number) => {
                if let Some(id) = pick(&known, *number) {
                    engine.saved(id, at(now));
                }
            }
            Call::Cordon(node, on) => {
                engine
                    .set_eligible(NodeIx((*node).into()), *on, at(now))
                    .unwrap();
            }
        }
        let effects = engine.turn(at(now));
        for (victim, newcomer) in stops(&effects) {
            let running = engine.runs().get(JobId(victim)).unwrap();
            assert!(at(now) >= running.since.plus(Settings::default().min_run));
            assert!(engine.is_expected(JobId(newcomer)));
            leaving.push(JobId(victim));
        }
        check(&engine);
        said.extend(effects);
    }
    said
}

proptest! {
    #[test]
    fn the_books_agree_after_every_call_and_the_same_calls_say_the_same(
        calls in proptest::collection::vec(call(), 1..120)
    ) {
        prop_assert_eq!(play(&calls), play(&calls));
    }
}
