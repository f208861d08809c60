use super::*;

#[test]
fn what_fits_starts_and_what_does_not_is_told_when() {
    let mut plan = plan(&[1]);
    let now = Admission::Queued { start: Some(at(0)) };
    assert_eq!(plan.submit(job(1, gpus(1), 60), at(0)), now);
    let later = Admission::Queued {
        start: Some(at(60)),
    };
    assert_eq!(plan.submit(job(2, gpus(1), 30), at(0)), later);
    assert_eq!(
        plan.submit(job(3, gpus(2), 30), at(0)),
        Admission::Impossible
    );
    assert_eq!(started(&plan.turn(at(0))), [1]);
    assert_eq!(plan.wake_at(), Some(at(60)));
    check(&plan);
    // It ends early.
    plan.finish(JobId(1), at(20));
    assert_eq!(started(&plan.turn(at(20))), [2]);
    assert_eq!(plan.wake_at(), Some(at(50)));
    check(&plan);
}

#[test]
fn the_queue_goes_by_priority_deadline_share_and_age() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    let mut queue = [
        job(2, gpus(1), 10),
        job(3, gpus(1), 10),
        job(4, gpus(1), 10),
        job(5, gpus(1), 10),
        job(6, gpus(1), 10),
    ];
    queue[0].team = TeamIx(1);
    queue[1].submitted = at(1);
    queue[3].priority = Priority::High;
    queue[4].submitted = at(101);
    queue[4].deadline = Some(Deadline {
        at: at(141),
        unmet: Unmet::Refuse,
    });
    plan.set_ranks([(TeamIx(1), 7)]);
    for job in queue {
        plan.submit(job, at(1));
        check(&plan);
    }
    let order: Vec<u64> = plan.queue().into_iter().map(|id| id.0).collect();
    assert_eq!(order, [5, 6, 4, 3, 2]);
    let starts: Vec<Option<u64>> = order.iter().map(|id| start(&plan, *id)).collect();
    assert_eq!(
        starts,
        [Some(100), Some(110), Some(120), Some(130), Some(140)]
    );
    // The other team is owed more now.
    plan.set_ranks([(TeamIx(0), 9), (TeamIx(1), 7)]);
    check(&plan);
    let order: Vec<u64> = plan.queue().into_iter().map(|id| id.0).collect();
    assert_eq!(order, [5, 6, 2, 4, 3]);
    assert_eq!(start(&plan, 2), Some(120));
}

#[test]
fn a_small_job_goes_between_only_where_it_ends_in_time() {
    let mut plan = plan(&[2]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.submit(job(2, gpus(2), 50), at(0));
    plan.submit(job(3, gpus(1), 101), at(0));
    plan.submit(job(4, gpus(1), 100), at(0));
    assert_eq!(started(&plan.turn(at(0))), [1, 4]);
    assert_eq!(start(&plan, 2), Some(100));
    assert_eq!(start(&plan, 3), Some(150));
    check(&plan);
}

#[test]
fn a_deadline_is_kept_or_refused_or_late_as_was_chosen() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    let accepted = Admission::Accepted { start: at(100) };
    assert_eq!(plan.submit(due(2, gpus(1), 50, 150), at(0)), accepted);
    let refused = Admission::Refused {
        expected_end: Some(at(160)),
    };
    assert_eq!(plan.submit(due(3, gpus(1), 10, 159), at(0)), refused);
    assert!(plan.job(JobId(3)).is_none());
    let mut late = due(4, gpus(1), 10, 159);
    late.deadline = late.deadline.map(|deadline| Deadline {
        unmet: Unmet::AcceptLate,
        ..deadline
    });
    let admitted = Admission::AcceptedLate {
        expected_end: Some(at(160)),
    };
    assert_eq!(plan.submit(late, at(0)), admitted);
    assert!(!plan.is_guaranteed(JobId(4)));
    // One whose time is over before it began.
    let over = plan.submit(due(5, gpus(1), 10, 5), at(0));
    assert!(matches!(over, Admission::Refused { .. }));
    check(&plan);
}

#[test]
fn a_deadline_goes_before_those_that_have_none_and_moves_guaranteed_ones_that_can_wait() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    plan.submit(job(2, gpus(1), 100), at(0));
    plan.submit(due(3, gpus(1), 100, 400), at(0));
    assert_eq!((start(&plan, 2), start(&plan, 3)), (Some(200), Some(100)));
    let accepted = Admission::Accepted { start: at(100) };
    assert_eq!(plan.submit(due(4, gpus(1), 50, 160), at(0)), accepted);
    assert_eq!(start(&plan, 3), Some(150));
    assert_eq!(start(&plan, 2), Some(250));
    check(&plan);
}

#[test]
fn a_deadline_that_is_far_away_earns_no_place_before_others() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    plan.submit(job(2, gpus(1), 100), at(0));
    plan.submit(due(3, gpus(1), 10, 100_000), at(1));
    assert_eq!((start(&plan, 2), start(&plan, 3)), (Some(100), Some(200)));
}

#[test]
fn higher_work_without_a_deadline_goes_before_lower_work_that_can_wait() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    plan.submit(due(2, gpus(1), 50, 220), at(0));
    let mut high = job(3, gpus(1), 70);
    high.priority = Priority::Critical;
    plan.submit(high, at(0));
    assert_eq!((start(&plan, 3), start(&plan, 2)), (Some(100), Some(170)));
    // But not when the promise would be broken.
    let mut longer = job(4, gpus(1), 10);
    longer.priority = Priority::Critical;
    plan.submit(longer, at(0));
    assert_eq!((start(&plan, 2), start(&plan, 4)), (Some(170), Some(220)));
    check(&plan);
}

#[test]
fn an_overrun_moves_who_waits_for_it_and_says_what_is_lost() {
    let mut plan = plan(&[1, 1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.submit(job(2, gpus(1), 500), at(0));
    plan.turn(at(0));
    plan.submit(due(3, gpus(1), 50, 150), at(0));
    plan.submit(job(4, gpus(1), 10), at(0));
    assert_eq!((start(&plan, 3), start(&plan, 4)), (Some(100), Some(150)));
    let outcomes = plan.turn(at(100));
    let lost = Outcome::DeadlineLost {
        job: JobId(3),
        expected_end: Some(at(180)),
    };
    let overran = Outcome::Overran {
        job: JobId(1),
        until: at(130),
    };
    assert_eq!(outcomes, [lost, overran]);
    assert_eq!(start(&plan, 3), Some(130));
    assert_eq!(start(&plan, 4), Some(180));
    check(&plan);
    plan.finish(JobId(1), at(101));
    assert_eq!(started(&plan.turn(at(101))), [3]);
    check(&plan);
}

#[test]
fn there_are_few_corrections_however_late_a_job_becomes() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    let mut corrections = 0;
    while let Some(at_) = plan.wake_at().filter(|wake| *wake < at(1_000_000)) {
        assert_eq!(plan.turn(at_).len(), 1);
        corrections += 1;
    }
    // It doubles from half a minute: 30 s × 2^15 is more than a million.
    assert!(corrections <= 17, "{corrections}");
}

#[test]
fn a_turn_that_comes_late_moves_nobody() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 100), at(0));
    plan.turn(at(0));
    plan.submit(due(2, gpus(1), 50, 150), at(0));
    plan.submit(due(3, gpus(1), 50, 200), at(0));
    plan.finish(JobId(1), at(100));
    let moment = at(100).plus(Duration::from_millis(3));
    assert_eq!(started(&plan.turn(moment)), [2]);
    assert_eq!(start(&plan, 3), Some(150));
    check(&plan);
}

#[test]
fn a_lost_node_makes_reservations_anew() {
    let nodes = cell(&[2, 1]);
    let mut plan = Plan::new(&nodes, Settings::default(), at(0));
    plan.submit(job(1, gpus(2), 100), at(0));
    plan.submit(job(2, gpus(1), 100), at(0));
    plan.turn(at(0));
    plan.submit(due(3, gpus(1), 50, 300), at(0));
    plan.submit(job(4, gpus(2), 50), at(0));
    plan.set_node(NodeIx(0), None, at(10));
    assert_eq!(start(&plan, 3), Some(100));
    // There is no node for it any more: it waits, and holds up nobody.
    assert_eq!(plan.standing(JobId(4)), Some(Standing::Waiting));
    assert_eq!(
        plan.available(&plan.forecast(), &gpus(2), secs(1)),
        Availability::Never
    );
    plan.finish(JobId(1), at(10));
    check(&plan);
    plan.set_node(NodeIx(0), nodes.node(NodeIx(0)), at(20));
    assert_eq!(started(&plan.turn(at(20))), [3]);
    check(&plan);
    assert_eq!(start(&plan, 4), Some(70));
}

#[test]
fn what_somebody_may_expect_is_told_in_whole_minutes() {
    let mut plan = plan(&[1]);
    let told = |plan: &Plan| {
        plan.available(&plan.forecast(), &share(25), secs(60))
            .to_string()
    };
    assert_eq!(told(&plan), "✓ now");
    plan.submit(job(1, share(80), 601), at(0));
    plan.turn(at(0));
    assert_eq!(told(&plan), "queue: 11 min");
    plan.submit(job(2, gpus(1), 59), at(0));
    assert_eq!(told(&plan), "queue: 11 min");
    let never = plan.available(&plan.forecast(), &gpus(2), secs(60));
    assert_eq!(never.to_string(), "never");
}

#[test]
fn what_is_likely_is_told_beside_what_is_promised() {
    let mut plan = plan(&[1]);
    plan.submit(job(1, gpus(1), 600), at(0));
    plan.turn(at(0));
    plan.submit(job(2, gpus(1), 600), at(0));
    plan.submit(due(3, gpus(1), 60, 2000), at(0));
    plan.turn(at(60));
    // Runs last half of what they are planned for.
    let expected = plan.expect(|job, age| {
        let half = job.length / 2;
        age.map_or(half, |age| half.saturating_sub(age))
    });
    assert_eq!(start(&plan, 2), Some(600));
    assert_eq!(expected.start(JobId(2)), Some(at(300)));
    assert_eq!(expected.start(JobId(3)), Some(at(600)));
    let wait = plan.available(&expected, &gpus(1), secs(10));
    assert_eq!(wait, Availability::Wait(secs(630 - 60)));
    // As planned, it is what is reserved.
    let planned = plan.expect(|job, age| job.length.saturating_sub(age.unwrap_or_default()));
    assert_eq!(planned.start(JobId(2)), Some(at(600)));
    check(&plan);
}

#[test]
fn what_runs_already_is_taken_in_as_it_is() {
    let mut plan = plan(&[1]);
    let first = plan
        .timeline()
        .earliest(&gpus(1), secs(1), Window::from(at(0)))
        .unwrap();
    let mut elsewhere = first.places.clone();
    elsewhere[0].node = NodeIx(7);
    let unknown = plan.adopt(job(3, gpus(1), 100), elsewhere, at(0), at(40));
    assert_eq!(unknown, Err(Refused::NoNode(NodeIx(7))));
    assert!(plan.job(JobId(3)).is_none());
    plan.adopt(job(1, gpus(1), 100), first.places, at(0), at(40))
        .unwrap();
    plan.submit(job(2, gpus(1), 10), at(0));
    assert_eq!(start(&plan, 2), Some(40));
    plan.expect_end(JobId(1), at(90), at(10));
    assert_eq!(start(&plan, 2), Some(90));
    plan.expect_end(JobId(1), at(60), at(10));
    plan.turn(at(10));
    assert_eq!(start(&plan, 2), Some(60));
    check(&plan);
}
