use super::*;
use crate::quota::{Exceeded, Limits, Need, Pool};

fn limit(blocks: u64) -> Limits {
    Limits {
        blocks: Some(blocks),
        of_pool: BTreeMap::new(),
    }
}

/// A cell in which the first team may hold so many blocks.
fn limited(nodes: usize, blocks: u64) -> Engine<BestFit> {
    let mut engine = cell(nodes);
    let special = BTreeMap::from([(team(1), limit(blocks))]);
    engine.set_quotas(Quotas::new(Limits::default(), special));
    engine
}

fn of(number: u128, work: Work) -> Work {
    Work {
        team: team(number),
        ..work
    }
}

fn class(priority: Priority, mut work: Work) -> Work {
    work.job.priority = priority;
    work
}

fn due(seconds: i64, unmet: Unmet, mut work: Work) -> Work {
    work.job.deadline = Some(Deadline {
        at: at(seconds),
        unmet,
    });
    work
}

fn started(effects: &[Effect]) -> Vec<u64> {
    starts(effects).into_iter().map(|(id, _)| id).collect()
}

fn held(engine: &Engine<BestFit>) -> u64 {
    engine.quotas().used(team(1), None).held
}

#[test]
fn a_batch_fills_the_quota_to_the_block() {
    let mut engine = limited(4, 350);
    for id in 0..256 {
        engine.submit(work(id, share(3), 100), at(0));
    }
    let first = started(&engine.turn(at(0)));
    assert_eq!(first, (0..116).collect::<Vec<_>>());
    assert_eq!(held(&engine), 348);
    let over = engine.over_quota(JobId(200)).unwrap();
    assert_eq!(over.to_string(), "348% of 350%");
    assert!(engine.plan().is_withheld(JobId(200)));
    // One goes, the next of the queue comes.
    engine.ended(JobId(7), at(1));
    assert_eq!(started(&engine.turn(at(1))), [116]);
    assert_eq!(held(&engine), 348);
    assert_eq!(engine.plan().queued(), 256 - 117);
    check(&engine);
}

#[test]
fn who_is_kept_out_holds_up_nobody() {
    let mut engine = limited(1, 100);
    assert!(matches!(
        engine.submit(work(1, whole(1), 1_000), at(0)),
        Admission::Queued { start: Some(_) }
    ));
    // It goes first by class and age, and is not in the way all the same.
    let urgent = class(Priority::Critical, work(2, whole(3), 1_000));
    let kept_out = engine.submit(urgent, at(0));
    assert_eq!(kept_out, Admission::Queued { start: None });
    let other = due(150, Unmet::Refuse, of(2, work(3, whole(3), 100)));
    assert!(matches!(
        engine.submit(other, at(0)),
        Admission::Accepted { .. }
    ));
    let effects = engine.turn(at(0));
    assert_eq!(started(&effects), [1, 3]);
    assert_eq!(engine.plan().standing(JobId(2)), Some(Standing::Waiting));
    assert_eq!(engine.plan().queue(), [JobId(2)]);
    check(&engine);
}

#[test]
fn nobody_gives_way_for_who_is_kept_out() {
    let mut engine = limited(1, 200);
    let low = |id| of(2, class(Priority::Low, work(id, whole(2), 100_000)));
    engine.submit(low(1), at(0));
    engine.submit(work(2, whole(2), 100_000), at(0));
    assert_eq!(started(&engine.turn(at(0))).len(), 2);
    let critical = |id, gpus| class(Priority::Critical, work(id, whole(gpus), 1_000));
    engine.submit(critical(3, 1), at(1_000));
    assert_eq!(engine.turn(at(1_000)), []);
    // Its own job is gone: two would be made room for, and the quota is for one of them.
    engine.submit(low(4), at(1_001));
    engine.ended(JobId(2), at(1_001));
    let effects = engine.turn(at(1_001));
    assert_eq!(started(&effects), [3], "{effects:?}");
    check(&engine);
}

#[test]
fn room_is_made_for_no_more_than_the_quota() {
    let mut engine = limited(1, 200);
    for id in 1..=4 {
        let low = class(Priority::Low, work(id, whole(1), 100_000));
        engine.submit(of(2, low), at(0));
    }
    assert_eq!(started(&engine.turn(at(0))).len(), 4);
    for id in 5..=7 {
        let critical = class(Priority::Critical, work(id, whole(1), 1_000));
        engine.submit(critical, at(1_000));
    }
    let effects = engine.turn(at(1_000));
    assert_eq!(stops(&effects).len(), 2, "{effects:?}");
    let over = engine.over_quota(JobId(7)).unwrap();
    assert_eq!((over.used.held, over.used.promised), (0, 200));
    for (victim, _) in stops(&effects) {
        engine.gave_way(JobId(victim), at(1_001));
    }
    assert_eq!(started(&engine.turn(at(1_001))), [5, 6]);
    assert_eq!(held(&engine), 200);
    // Whoever gives way counts until it is gone.
    engine.submit(
        of(3, class(Priority::Critical, work(8, whole(2), 1_000))),
        at(1_002),
    );
    check(&engine);
}

#[test]
fn who_gives_way_counts_until_it_is_gone() {
    let mut engine = limited(1, 400);
    engine.submit(class(Priority::Low, work(1, whole(4), 100_000)), at(0));
    engine.turn(at(0));
    let critical = class(Priority::Critical, of(2, work(2, whole(1), 10)));
    engine.submit(critical, at(1_000));
    assert_eq!(stops(&engine.turn(at(1_000))), [(1, 2)]);
    assert_eq!(held(&engine), 400);
    engine.submit(work(3, share(10), 10), at(1_001));
    assert_eq!(engine.turn(at(1_001)), []);
    assert!(engine.plan().is_withheld(JobId(3)));
    engine.gave_way(JobId(1), at(1_002));
    let effects = engine.turn(at(1_002));
    assert_eq!(started(&effects), [2, 3], "{effects:?}");
    assert_eq!(held(&engine), 10);
    check(&engine);
}

#[test]
fn what_is_promised_to_a_deadline_is_set_aside() {
    let mut engine = limited(1, 200);
    engine.submit(of(2, work(1, whole(4), 100)), at(0));
    engine.turn(at(0));
    let promised = due(1_000, Unmet::Refuse, work(2, whole(2), 100));
    assert!(matches!(
        engine.submit(promised, at(1)),
        Admission::Accepted { .. }
    ));
    engine.submit(work(3, whole(1), 10_000), at(2));
    assert_eq!(
        engine.over_quota(JobId(3)),
        Some(Exceeded {
            pool: None,
            needed: 100,
            used: crate::quota::Use {
                held: 0,
                promised: 200
            },
            limit: 200
        })
    );
    // Without a quota that is left nothing can be guaranteed.
    let refused = engine.submit(due(5_000, Unmet::Refuse, work(4, whole(1), 10)), at(3));
    assert_eq!(refused, Admission::Refused { expected_end: None });
    assert_eq!(engine.work(JobId(4)), None);
    let late = engine.submit(due(5_000, Unmet::AcceptLate, work(5, whole(1), 10)), at(3));
    assert_eq!(late, Admission::AcceptedLate { expected_end: None });
    engine.ended(JobId(1), at(50));
    assert_eq!(started(&engine.turn(at(50))), [2]);
    engine.ended(JobId(2), at(150));
    let effects = engine.turn(at(150));
    assert_eq!(started(&effects), [3, 5], "{effects:?}");
    check(&engine);
}

#[test]
fn a_type_has_a_limit_of_its_own() {
    let other = Kind::new(1).unwrap();
    let mut engine = cell(1);
    engine.set_pool(other, Pool(7));
    let second = Node::new(other, 64_000, 512_000, GPUS).unwrap();
    engine.add_node(second, at(0)).unwrap();
    let usual = Limits {
        blocks: Some(300),
        of_pool: BTreeMap::from([(Pool(7), 100)]),
    };
    engine.set_quotas(Quotas::new(usual, BTreeMap::new()));
    let on = |kind, gpus| whole(gpus).on([kind].into_iter().collect());
    assert_eq!(
        engine.need(&Ask::gang(on(other, 2), 3)),
        Need {
            blocks: 600,
            pool: Some(Pool(7))
        }
    );
    assert_eq!(engine.need(&Ask::one(on(kind(), 1))).pool, None);
    engine.submit(work(1, on(other, 1), 100), at(0));
    engine.submit(work(2, on(other, 1), 100), at(0));
    engine.submit(work(3, on(kind(), 2), 100), at(0));
    engine.submit(work(4, on(kind(), 1), 100), at(0));
    assert_eq!(started(&engine.turn(at(0))), [1, 3]);
    assert_eq!(engine.over_quota(JobId(4)).unwrap().pool, None);
    engine.ended(JobId(3), at(1));
    assert_eq!(started(&engine.turn(at(1))), [4]);
    assert_eq!(engine.over_quota(JobId(2)).unwrap().pool, Some(Pool(7)));
    check(&engine);
}

#[test]
fn what_is_held_elsewhere_counts() {
    let mut engine = limited(1, 200);
    let need = Need {
        blocks: 150,
        pool: None,
    };
    engine.count_elsewhere(JobId(9), team(1), need);
    engine.submit(work(1, whole(1), 100), at(0));
    assert_eq!(engine.turn(at(0)), []);
    engine.ended(JobId(9), at(1));
    assert_eq!(started(&engine.turn(at(1))), [1]);
}

#[test]
fn who_is_cancelled_makes_room_for_the_next_like_it() {
    let mut engine = limited(1, 100);
    engine.submit(of(2, work(9, whole(4), 1_000)), at(0));
    engine.turn(at(0));
    for id in 1..=3 {
        engine.submit(work(id, whole(1), 100), at(0));
    }
    engine.turn(at(0));
    engine.ended(JobId(1), at(1));
    engine.turn(at(1));
    engine.ended(JobId(9), at(2));
    assert_eq!(started(&engine.turn(at(2))), [2]);
    assert_eq!(engine.over_quota(JobId(3)).unwrap().limit, 100);
    check(&engine);
}

/// What happens to a cell.
#[derive(Debug, Clone)]
enum Step {
    Submit(u128, u8, u64, usize, Option<i64>),
    End(usize),
    Silent(usize),
    Turn(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let deadline = proptest::option::weighted(0.2, 10_i64..3_000);
    prop_oneof![
        6 => (1_u128..4, 1_u8..=110, 1_u64..2_000, 0_usize..4, deadline)
            .prop_map(|(team, blocks, length, class, due)| Step::Submit(team, blocks, length, class, due)),
        3 => (0_usize..64).prop_map(Step::End),
        1 => (0_usize..2).prop_map(Step::Silent),
        4 => (1_i64..600).prop_map(Step::Turn),
    ]
}

/// Carries steps out on a cell and hands every answer of the engine to `look`.
fn play(
    engine: &mut Engine<BestFit>,
    steps: &[Step],
    takes_part: impl Fn(u128) -> bool,
    mut look: impl FnMut(&Engine<BestFit>, &[Effect]),
) {
    let (mut now, mut known, mut eligible) = (0, Vec::new(), [true; 2]);
    for (id, step) in (0_u64..).zip(steps) {
        match step {
            Step::Submit(number, blocks, length, priority, by) => {
                // As many as are asked for in both of two cells that are compared.
                known.push((JobId(id), takes_part(*number)));
                if !takes_part(*number) {
                    continue;
                }
                let demand = match blocks {
                    1..=100 => share(*blocks),
                    _ => whole(2),
                };
                let mut new = class(Priority::ALL[*priority], work(id, demand, *length));
                new.job.submitted = at(now);
                if let Some(by) = by {
                    new = due(now + by, Unmet::AcceptLate, new);
                }
                engine.submit(of(*number, new), at(now));
            }
            Step::End(at_random) => {
                if !known.is_empty() {
                    let (id, takes_part) = known.remove(at_random % known.len());
                    if takes_part {
                        engine.ended(id, at(now));
                    }
                }
            }
            Step::Silent(node) => {
                eligible[*node] = !eligible[*node];
                let ix: Vec<NodeIx> = engine.cluster().nodes().map(|(ix, _)| ix).collect();
                engine
                    .set_eligible(ix[*node], eligible[*node], at(now))
                    .unwrap();
            }
            Step::Turn(passed) => {
                now += passed;
                let effects = engine.turn(at(now));
                look(engine, &effects);
                for (victim, _) in stops(&effects) {
                    engine.gave_way(JobId(victim), at(now));
                }
            }
        }
    }
}

proptest! {
    /// No team ever has more than its quota, and nobody is kept out who fits into it.
    #[test]
    fn quotas_hold_whatever_happens(
        steps in proptest::collection::vec(step(), 1..120),
        one in 0_u64..500,
        two in 0_u64..500,
    ) {
        let mut engine = cell(2);
        let special = BTreeMap::from([(team(1), limit(one)), (team(2), limit(two))]);
        engine.set_quotas(Quotas::new(Limits::default(), special));
        play(&mut engine, &steps, |_| true, |engine, _| {
            check(engine);
            for (number, most) in [(1, one), (2, two)] {
                let running: u64 = engine
                    .works
                    .values()
                    .filter(|work| work.team == team(number))
                    .filter(|work| engine.runs.get(work.job.id).is_some())
                    .map(|work| work.job.ask.blocks())
                    .sum();
                let used = engine.quotas().used(team(number), None);
                assert_eq!(running, used.held);
                assert!(used.total() <= most, "{used:?} of {most}");
            }
            for (id, work) in &engine.works {
                let over = engine.over_quota(*id).is_some();
                if !engine.plan().is_withheld(*id) {
                    let running = matches!(engine.plan().standing(*id), Some(Standing::Running { .. }));
                    assert!(running || !over, "{id:?} is in the way of others");
                } else if !over {
                    // As many like it as may start wait before it, or no node will do.
                    let like = |other: &&Work| {
                        other.team == work.team
                            && other.job.ask == work.job.ask
                            && other.job.length == work.job.length
                            && !engine.plan().is_withheld(other.job.id)
                            && engine.runs.get(other.job.id).is_none()
                    };
                    let before = engine.works.values().filter(like).count() as u64;
                    let room = engine.quotas().room(work.team, engine.need(&work.job.ask));
                    assert!(
                        before >= room.unwrap() || !engine.plan().timeline().could_hold(&work.job.ask),
                        "{id:?} is kept out for nothing"
                    );
                }
            }
        });
    }

    /// A team that may hold nothing changes nothing for the others, whatever it asks for.
    #[test]
    fn who_is_kept_out_changes_nothing(steps in proptest::collection::vec(step(), 1..120)) {
        let mut without = Vec::new();
        play(&mut limited(2, 0), &steps, |number| number != 1, |_, effects| {
            without.push(effects.to_vec());
        });
        let mut with = Vec::new();
        play(&mut limited(2, 0), &steps, |_| true, |_, effects| with.push(effects.to_vec()));
        prop_assert_eq!(with, without);
    }
}
