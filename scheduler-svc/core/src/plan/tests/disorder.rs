//! Whatever happens in whatever order, the books agree.

use super::*;

/// A job of a random kind.
fn any_job(dice: &mut Dice, id: u64, now: u64) -> Job {
    let demand = match dice.roll(4) {
        0 => Demand::share(1, 1, 1 + u8::try_from(dice.roll(99)).unwrap()).unwrap(),
        1 => Demand::cpu_only(500, 1),
        wide => Demand::whole(1, 1, u8::try_from(wide - 1).unwrap()).unwrap(),
    };
    let length = 1 + dice.roll(50);
    let mut new = job(
        id,
        Ask::gang(demand, 1 + u16::try_from(dice.roll(3) / 2).unwrap()),
        length,
    );
    new.submitted = at(now);
    new.team = TeamIx(u32::try_from(dice.roll(3)).unwrap());
    new.priority = [Priority::Low, Priority::High][usize::try_from(dice.roll(2)).unwrap()];
    if dice.roll(2) == 0 {
        new.deadline = Some(Deadline {
            at: at(now + length + dice.roll(100)),
            unmet: [Unmet::Refuse, Unmet::AcceptLate][usize::try_from(dice.roll(2)).unwrap()],
        });
    }
    if dice.roll(6) == 0 {
        new.ask.tasks = 1;
        new.ask.only = Some(NodeIx(u32::try_from(dice.roll(3)).unwrap()));
    }
    new
}

fn running(plan: &Plan) -> Vec<JobId> {
    let runs = |entry: &&Entry| matches!(entry.state, State::Running { .. });
    plan.jobs
        .values()
        .filter(runs)
        .map(|entry| entry.job.id)
        .collect()
}

/// Deadlines that were promised and are neither met, nor running, nor said to be lost.
fn check_promises(plan: &Plan, now: Timestamp) {
    for (by, id) in &plan.firm {
        assert!(*by >= now, "{id:?} is promised for the past");
    }
}

#[test]
fn whatever_happens_the_books_agree() {
    for seed in 0..60 * rounds() {
        let mut dice = Dice(seed);
        let mut nodes = cell(&[2, 3, 4]);
        let settings = Settings {
            depth: usize::try_from(dice.roll(5)).unwrap(),
            ..Settings::default()
        };
        let mut plan = Plan::new(&nodes, settings, at(0));
        let mut gone = [false; 3];
        let mut now = 0;
        for step in 0..120 {
            match dice.roll(12) {
                0..=4 => {
                    let new = any_job(&mut dice, step, now);
                    plan.submit(new, at(now));
                }
                5 | 6 => {
                    now += dice.roll(30);
                    plan.turn(at(now));
                }
                7 => {
                    let runs = running(&plan);
                    if !runs.is_empty() {
                        let which = usize::try_from(dice.roll(runs.len() as u64)).unwrap();
                        plan.finish(runs[which], at(now));
                    }
                }
                8 => plan.finish(JobId(dice.roll(step + 1)), at(now)),
                9 => {
                    if let Some(first) = running(&plan).first() {
                        plan.expect_end(*first, at(now + dice.roll(90)), at(now));
                    }
                }
                10 => {
                    let first = u32::try_from(dice.roll(3)).unwrap();
                    plan.set_ranks((0..3).map(|team| (TeamIx(team), (team + first) % 3)));
                }
                _ => {
                    let which = usize::try_from(dice.roll(3)).unwrap();
                    let ix = NodeIx(u32::try_from(which).unwrap());
                    if gone[which] {
                        gone[which] = false;
                        plan.set_node(ix, nodes.node(ix), at(now));
                    } else if dice.roll(2) == 0 {
                        // What runs on a node ends with it.
                        gone[which] = true;
                        let lost: Vec<JobId> = running(&plan)
                            .into_iter()
                            .filter(|id| {
                                let claim = plan.claim(*id).unwrap();
                                claim.places.iter().any(|place| place.node == ix)
                            })
                            .collect();
                        for id in lost {
                            plan.finish(id, at(now));
                        }
                        plan.set_node(ix, None, at(now));
                    } else {
                        // It takes nothing new for a while, and what runs goes on.
                        let open = nodes.node(ix).unwrap().is_eligible();
                        nodes.set_eligible(ix, !open).unwrap();
                        plan.set_node(ix, nodes.node(ix), at(now));
                    }
                }
            }
            check(&plan);
            if plan.freed.is_empty() {
                check_promises(&plan, plan.timeline.now());
            }
        }
        // With all nodes back, whoever can run does in the end.
        for ix in (0..3).map(NodeIx) {
            nodes.set_eligible(ix, true).unwrap();
            plan.set_node(ix, nodes.node(ix), at(now));
        }
        for _ in 0..400 {
            plan.turn(at(now));
            check(&plan);
            for id in running(&plan) {
                plan.finish(id, at(now));
            }
            now += 1;
        }
        assert_eq!(plan.queued(), 0, "seed {seed}");
    }
}
