use std::collections::BTreeSet;

use cnlab_model::id::Ulid;
use proptest::prelude::*;

use super::*;

fn team(number: u128) -> TeamId {
    TeamId::from_ulid(Ulid(number))
}

fn need(blocks: u64, pool: Option<u16>) -> Need {
    Need {
        blocks,
        pool: pool.map(Pool),
    }
}

fn limits(blocks: Option<u64>, of_pool: &[(u16, u64)]) -> Limits {
    Limits {
        blocks,
        of_pool: of_pool
            .iter()
            .map(|(pool, limit)| (Pool(*pool), *limit))
            .collect(),
    }
}

#[test]
fn a_limit_can_be_filled_to_the_last_block_and_no_further() {
    let mut quotas = Quotas::new(limits(Some(400), &[(1, 200)]), BTreeMap::new());
    let mine = team(1);
    assert_eq!(quotas.room(mine, need(100, Some(1))), Some(2));
    quotas.charge(JobId(1), mine, need(150, Some(1)), Hold::Held);
    assert_eq!(quotas.check(JobId(2), mine, need(50, Some(1))), Ok(()));
    let over = quotas.check(JobId(2), mine, need(51, Some(1))).unwrap_err();
    assert_eq!((over.pool, over.limit), (Some(Pool(1)), 200));
    assert_eq!(over.to_string(), "150% of 200%");
    assert!(!over.is_alone());
    quotas.charge(JobId(2), mine, need(200, None), Hold::Promised);
    assert_eq!(
        quotas.used(mine, None),
        Use {
            held: 150,
            promised: 200
        }
    );
    let over = quotas.check(JobId(3), mine, need(51, None)).unwrap_err();
    assert_eq!((over.pool, over.to_string()), (None, "350% of 400%".into()));
    // Its own promise does not stand in its way, and turns into what it holds.
    assert_eq!(quotas.check(JobId(2), mine, need(250, None)), Ok(()));
    quotas.charge(JobId(2), mine, need(200, None), Hold::Held);
    assert_eq!(quotas.used(mine, None).held, 350);
    // Another team has an account of its own.
    assert_eq!(quotas.check(JobId(4), team(2), need(400, None)), Ok(()));
    assert_eq!(quotas.discharge(JobId(1)), Some(mine));
    assert_eq!(quotas.discharge(JobId(1)), None);
    assert_eq!(quotas.room(mine, need(100, Some(1))), Some(2));
}

#[test]
fn a_team_with_limits_of_its_own_has_no_others() {
    let special = BTreeMap::from([
        (team(2), limits(None, &[(3, 0)])),
        (team(3), limits(None, &[])),
    ]);
    let quotas = Quotas::new(limits(Some(10), &[]), special);
    assert!(quotas.ever(team(1), need(11, None)).unwrap_err().is_alone());
    assert_eq!(quotas.ever(team(2), need(1_000, Some(1))), Ok(()));
    assert_eq!(quotas.ever(team(2), need(1, Some(3))).unwrap_err().limit, 0);
    assert!(quotas.is_limited(team(1)) && quotas.is_limited(team(2)));
    assert!(!quotas.is_limited(team(3)));
    assert_eq!(quotas.room(team(3), need(1, Some(3))), None);
}

#[test]
fn what_is_held_counts_beyond_a_limit_that_was_lowered() {
    let mut quotas = Quotas::new(limits(Some(100), &[]), BTreeMap::new());
    quotas.charge(JobId(1), team(1), need(300, None), Hold::Held);
    assert_eq!(quotas.room(team(1), need(1, None)), Some(0));
    let over = quotas.check(JobId(2), team(1), need(1, None)).unwrap_err();
    assert_eq!(over.to_string(), "300% of 100%");
    quotas.discharge(JobId(1));
    assert_eq!(quotas.check(JobId(2), team(1), need(100, None)), Ok(()));
}

/// What is said of jobs: team, job, blocks, type, what happens.
#[derive(Debug, Clone)]
enum Step {
    Ask(u128, u64, u64, Option<u16>, Hold),
    Fact(u128, u64, u64, Option<u16>),
    Gone(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let hold = prop_oneof![Just(Hold::Promised), Just(Hold::Held)];
    let pool = proptest::option::of(0_u16..3);
    prop_oneof![
        4 => (0_u128..3, 0_u64..12, 0_u64..60, pool.clone(), hold)
            .prop_map(|(team, job, blocks, pool, hold)| Step::Ask(team, job, blocks, pool, hold)),
        1 => (0_u128..3, 0_u64..12, 0_u64..60, pool)
            .prop_map(|(team, job, blocks, pool)| Step::Fact(team, job, blocks, pool)),
        3 => (0_u64..12).prop_map(Step::Gone),
    ]
}

proptest! {
    /// Against a list of jobs that is summed up anew for every question.
    #[test]
    fn the_account_is_the_sum_of_the_jobs(
        steps in proptest::collection::vec(step(), 1..80),
        all in proptest::option::of(0_u64..150),
        one in 0_u64..100,
    ) {
        let usual = limits(all, &[(1, one)]);
        let mut quotas = Quotas::new(usual.clone(), BTreeMap::new());
        let mut jobs: BTreeMap<u64, (u128, u64, Option<u16>, Hold)> = BTreeMap::new();
        let mut facts = BTreeSet::new();
        let sum = |jobs: &BTreeMap<u64, (u128, u64, Option<u16>, Hold)>,
                   except: Option<u64>, of: u128, pool: Option<u16>| -> u64 {
            jobs.iter()
                .filter(|(job, _)| Some(**job) != except)
                .filter(|(_, (team, _, its, _))| *team == of && (pool.is_none() || *its == pool))
                .map(|(_, (_, blocks, _, _))| blocks)
                .sum()
        };
        for step in steps {
            match step {
                Step::Ask(of, job, blocks, pool, hold) => {
                    let fits = blocks == 0 || all.is_none_or(|limit| {
                        sum(&jobs, Some(job), of, None) + blocks <= limit
                    }) && (pool != Some(1)
                        || sum(&jobs, Some(job), of, Some(1)) + blocks <= one);
                    let checked = quotas.check(JobId(job), team(of), need(blocks, pool));
                    // A job belongs to one team.
                    if jobs.get(&job).is_some_and(|(team, ..)| *team != of) {
                        continue;
                    }
                    prop_assert_eq!(checked.is_ok(), fits);
                    let room = quotas.room(team(of), need(blocks, pool));
                    if !jobs.contains_key(&job) && blocks > 0 {
                        prop_assert_eq!(room.is_none_or(|room| room > 0), fits);
                    }
                    if fits {
                        quotas.charge(JobId(job), team(of), need(blocks, pool), hold);
                        jobs.insert(job, (of, blocks, pool, hold));
                    }
                }
                Step::Fact(of, job, blocks, pool) => {
                    quotas.charge(JobId(job), team(of), need(blocks, pool), Hold::Held);
                    jobs.insert(job, (of, blocks, pool, Hold::Held));
                    facts.insert(of);
                }
                Step::Gone(job) => {
                    let was = jobs.remove(&job).map(|(of, ..)| team(of));
                    prop_assert_eq!(quotas.discharge(JobId(job)), was);
                }
            }
            for of in 0..3 {
                for pool in [None, Some(0), Some(1), Some(2)] {
                    let used = quotas.used(team(of), pool.map(Pool));
                    prop_assert_eq!(used.total(), sum(&jobs, None, of, pool));
                }
                // Only facts exceed a limit.
                if !facts.contains(&of) {
                    let total = quotas.used(team(of), None).total();
                    prop_assert!(all.is_none_or(|limit| total <= limit));
                    prop_assert!(quotas.used(team(of), Some(Pool(1))).total() <= one);
                }
            }
        }
    }
}
