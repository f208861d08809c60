use super::*;

/// What happens to a cell in a round.
struct Day {
    nodes: Vec<u8>,
    jobs: Vec<(u64, Job)>,
    /// How long each job really runs, in seconds.
    really: BTreeMap<JobId, u64>,
}

fn any_ask(dice: &mut Dice) -> Ask {
    match dice.roll(8) {
        0 => Ask::one(Demand::cpu_only(100, 1)),
        1 | 2 => share(1 + u8::try_from(dice.roll(99)).unwrap()),
        3 => Ask::gang(
            Demand::whole(1, 1, 1).unwrap(),
            2 + u16::try_from(dice.roll(3)).unwrap(),
        ),
        4 => gpus(2),
        _ => gpus(1),
    }
}

fn day(seed: u64, jobs: u64, exact: bool) -> Day {
    let mut dice = Dice(seed);
    let nodes = (0..=dice.roll(3))
        .map(|_| 2 + u8::try_from(dice.roll(3)).unwrap())
        .collect();
    let mut clock = 0;
    let mut day = Day {
        nodes,
        jobs: Vec::new(),
        really: BTreeMap::new(),
    };
    for id in 0..jobs {
        clock += dice.roll(40);
        let length = 5 + dice.roll(120);
        let mut next = job(id, any_ask(&mut dice), length);
        next.submitted = at(clock);
        next.team = TeamIx(u32::try_from(dice.roll(3)).unwrap());
        next.priority = [
            Priority::Low,
            Priority::Normal,
            Priority::High,
            Priority::Critical,
        ][usize::try_from(dice.roll(4)).unwrap()];
        if dice.roll(2) == 0 {
            // A slack of 1.1 to 4 times the length.
            let slack = length * (11 + dice.roll(30)) / 10;
            let unmet = [Unmet::Refuse, Unmet::AcceptLate][usize::try_from(dice.roll(2)).unwrap()];
            next.deadline = Some(Deadline {
                at: at(clock + slack),
                unmet,
            });
        }
        let really = if exact {
            length
        } else {
            1 + dice.roll(length * 2)
        };
        day.really.insert(next.id, really);
        day.jobs.push((clock, next));
    }
    day
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    admitted: BTreeMap<JobId, Admission>,
    ran: BTreeMap<JobId, (Timestamp, Timestamp)>,
    lost: BTreeMap<JobId, Timestamp>,
    outcomes: Vec<Outcome>,
}

/// Lets a day happen; `watch` sees the plan after every event.
fn live(day: &Day, settings: Settings, mut watch: impl FnMut(&Plan, bool)) -> Record {
    let mut plan = Plan::new(&cell(&day.nodes), settings, at(0));
    plan.set_ranks([(TeamIx(1), 1), (TeamIx(2), 2)]);
    let mut record = Record::default();
    let mut arrivals = day.jobs.iter().peekable();
    let mut ends: BTreeSet<(Timestamp, JobId)> = BTreeSet::new();
    loop {
        let arrival = arrivals.peek().map(|(clock, _)| at(*clock));
        let next = [arrival, ends.first().map(|end| end.0), plan.wake_at()];
        let Some(now) = next.into_iter().flatten().min() else {
            break;
        };
        while let Some((end, id)) = ends.first().copied().filter(|(end, _)| *end <= now) {
            ends.pop_first();
            plan.finish(id, now);
            record.ran.get_mut(&id).unwrap().1 = end;
        }
        let mut arrived = false;
        while let Some((_, job)) = arrivals.next_if(|(clock, _)| at(*clock) <= now) {
            record.admitted.insert(job.id, plan.submit(*job, now));
            if job.id.0 % 5 == 0 {
                // Who is owed most changes.
                let first = u32::try_from(job.id.0 / 5).unwrap();
                plan.set_ranks((0..3).map(|team| (TeamIx(team), (team + first) % 3)));
            }
            arrived = true;
        }
        watch(&plan, arrived);
        for outcome in plan.turn(now) {
            match &outcome {
                Outcome::Start { job, .. } => {
                    ends.insert((now.plus(secs(day.really[job])), *job));
                    let twice = record.ran.insert(*job, (now, now));
                    assert_eq!(twice, None, "{job:?} started twice");
                }
                Outcome::DeadlineLost { job, .. } => {
                    record.lost.insert(*job, now);
                }
                Outcome::Overran { .. } => {}
            }
            record.outcomes.push(outcome);
        }
        watch(&plan, false);
    }
    assert!(plan.queue().is_empty(), "somebody waits for ever");
    record
}

/// Of every job with a promise, whether it was kept, or given back before it was broken.
fn judge(day: &Day, record: &Record) {
    for (_, job) in &day.jobs {
        let deadline = job.deadline.map(|deadline| deadline.at);
        let ran = record.ran.get(&job.id);
        match record.admitted[&job.id] {
            Admission::Impossible | Admission::Refused { .. } => assert_eq!(ran, None),
            Admission::Queued { .. } | Admission::AcceptedLate { .. } => assert!(ran.is_some()),
            Admission::Accepted { .. } => {
                let end = ran.unwrap().1;
                let kept = Some(end) <= deadline;
                let said = record.lost.get(&job.id).copied();
                assert!(
                    kept || said <= deadline && said.is_some(),
                    "{job:?} ended at {end}"
                );
            }
        }
    }
}

#[test]
fn no_promise_is_broken_when_lengths_are_known() {
    for seed in 0..40 * rounds() {
        let day = day(seed, 60, true);
        let record = live(&day, Settings::default(), |plan, _| check(plan));
        judge(&day, &record);
        assert_eq!(record.lost, BTreeMap::new(), "seed {seed}");
        assert!(
            record
                .outcomes
                .iter()
                .all(|outcome| matches!(outcome, Outcome::Start { .. }))
        );
    }
}

#[test]
fn no_promise_is_broken_in_silence_when_they_are_not() {
    let mut lost = 0;
    for seed in 1000..1000 + 40 * rounds() {
        let day = day(seed, 60, false);
        let record = live(&day, Settings::default(), |plan, _| check(plan));
        judge(&day, &record);
        lost += record.lost.len();
    }
    assert!(lost > 0, "the rounds are too easy");
}

#[test]
fn the_same_day_goes_the_same_way() {
    let day = day(7, 80, false);
    let settings = Settings {
        depth: 3,
        ..Settings::default()
    };
    assert_eq!(
        live(&day, settings, |_, _| ()),
        live(&day, settings, |_, _| ())
    );
}

/// Reserved starts of a plan.
fn reserved(plan: &Plan) -> BTreeMap<JobId, Timestamp> {
    let ids = plan.queue().into_iter();
    ids.filter_map(|id| match plan.standing(id)? {
        Standing::Reserved { start, .. } => Some((id, start)),
        Standing::Waiting | Standing::Running { .. } => None,
    })
    .collect()
}

/// What was reserved or runs, after a turn with these settings.
fn after_turn(plan: &Plan, backfill: bool) -> BTreeMap<JobId, Timestamp> {
    let mut plan = plan.clone();
    plan.settings.backfill = backfill;
    let now = plan.timeline.now();
    let mut starts = BTreeMap::new();
    for id in started(&plan.turn(now)) {
        starts.insert(JobId(id), now);
    }
    starts.extend(reserved(&plan));
    starts
}

#[test]
fn going_between_delays_no_reservation() {
    let mut between = 0;
    for seed in 2000..2000 + 30 * rounds() {
        let day = day(seed, 60, seed % 2 == 0);
        let settings = Settings {
            depth: 2,
            ..Settings::default()
        };
        live(&day, settings, |plan, _| {
            let without = after_turn(plan, false);
            let with = after_turn(plan, true);
            for (id, start) in &without {
                assert!(with[id] <= *start, "seed {seed}: {id:?}");
            }
            between += with.len() - without.len();
        });
    }
    assert!(between > 0, "nobody went between");
}

#[test]
fn a_reservation_moves_later_only_for_an_arrival() {
    for seed in 3000..3000 + 30 * rounds() {
        let day = day(seed, 60, true);
        let mut last: BTreeMap<JobId, Timestamp> = BTreeMap::new();
        live(&day, Settings::default(), |plan, arrived| {
            let now = reserved(plan);
            for (id, start) in &now {
                let before = last.get(id).copied().unwrap_or(*start);
                assert!(arrived || *start <= before, "seed {seed}: {id:?}");
            }
            last = now;
        });
    }
}

#[test]
fn now_means_that_it_starts_at_once() {
    let (mut yes, mut no) = (0, 0);
    for seed in 4000..4000 + 20 * rounds() {
        let day = day(seed, 50, false);
        let mut dice = Dice(seed);
        live(&day, Settings::default(), |plan, _| {
            // Before the turn of this moment nothing is settled.
            let now = plan.timeline.now();
            if !plan.freed.is_empty() || plan.wake_at() <= Some(now) {
                return;
            }
            let ask = any_ask(&mut dice);
            let length = secs(1 + dice.roll(200));
            let told = plan.available(&plan.forecast(), &ask, length);
            let mut plan = plan.clone();
            let mut next = job(u64::MAX, ask, length.as_secs());
            next.submitted = now;
            next.priority = Priority::Low;
            let last = (0..3).map(TeamIx).max_by_key(|team| plan.rank(*team));
            next.team = last.unwrap();
            plan.submit(next, now);
            let starts = started(&plan.turn(now)).contains(&u64::MAX);
            assert_eq!(told == Availability::Now, starts, "seed {seed}: {ask:?}");
            if told == Availability::Now {
                yes += 1;
            } else {
                no += 1;
            }
        });
    }
    assert!(yes > 50 && no > 50, "{yes} and {no}");
}
