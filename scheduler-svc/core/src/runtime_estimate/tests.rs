use cnlab_model::id::Ulid;

use super::*;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn kind(team: u128, image: &str, profile: &str, longest: Option<u64>) -> Kind {
    Kind {
        team: TeamId::from_ulid(Ulid(team)),
        image: image.to_owned(),
        profile: profile.to_owned(),
        max_runtime: longest.map(secs),
    }
}

fn taught(lessons: &[(&Kind, u64, usize)]) -> RuntimeEstimator {
    let mut estimator = RuntimeEstimator::default();
    for (kind, lasted, times) in lessons {
        for _ in 0..*times {
            estimator.learn(kind, secs(*lasted));
        }
    }
    estimator
}

fn level(estimate: &Estimate) -> Option<Level> {
    match estimate.basis {
        Basis::History { level, .. } => Some(level),
        Basis::Declared | Basis::Outlived => None,
    }
}

#[test]
fn the_finest_kind_with_enough_runs_answers() {
    let own = kind(1, "a", "full", Some(4000));
    let longer = kind(1, "a", "full", Some(40_000));
    let half = kind(1, "a", "half", None);
    let other = kind(2, "a", "full", None);
    let estimator = taught(&[(&own, 100, 5), (&longer, 900, 6), (&other, 7, 20)]);

    let exact = estimator.length(&own).unwrap();
    assert_eq!(
        (level(&exact), exact.likely),
        (Some(Level::Exact), secs(100))
    );
    // Without a declared time: all of the team's with this image and profile.
    let any = estimator.length(&kind(1, "a", "full", None)).unwrap();
    assert_eq!(
        (level(&any), any.likely),
        (Some(Level::TeamImageProfile), secs(900))
    );
    let coarser = estimator.length(&half).unwrap();
    assert_eq!(level(&coarser), Some(Level::TeamImage));
    let stranger = estimator.length(&kind(3, "a", "full", None)).unwrap();
    assert_eq!(
        (level(&stranger), stranger.likely),
        (Some(Level::ImageProfile), secs(7))
    );
}

#[test]
fn without_enough_runs_the_declaration_answers_then_the_few_then_nobody() {
    let declared = kind(1, "a", "full", Some(4000));
    let open = kind(1, "a", "full", None);
    assert_eq!(RuntimeEstimator::default().length(&open), None);
    let estimator = taught(&[(&declared, 100, 4)]);
    let estimate = estimator.length(&declared).unwrap();
    assert_eq!(
        (estimate.likely, estimate.basis),
        (secs(4000), Basis::Declared)
    );
    let estimate = estimator.length(&open).unwrap();
    assert_eq!(estimate.likely, secs(100));
    assert_eq!(level(&estimate), Some(Level::TeamImageProfile));
}

#[test]
fn the_bound_needs_nine_runs_or_is_the_declared_time() {
    let declared = kind(1, "a", "full", Some(4000));
    let few = taught(&[(&declared, 100, 8)]).length(&declared).unwrap();
    assert_eq!((few.likely, few.bound), (secs(100), secs(4000)));
    let many = taught(&[(&declared, 100, 9)]).length(&declared).unwrap();
    assert_eq!(many.bound, secs(100));
}

#[test]
fn what_runs_already_goes_on_like_those_that_ran_longer() {
    let run = kind(1, "a", "full", None);
    let estimator = taught(&[(&run, 10, 40), (&run, 600, 6)]);
    let rest = |age: u64| estimator.remaining(&run, secs(age)).unwrap();
    assert_eq!(rest(0).likely, secs(10));
    assert_eq!(rest(20).likely, secs(580));
    assert_eq!(
        (rest(700).likely, rest(700).basis),
        (secs(700), Basis::Outlived)
    );
}

#[test]
fn nothing_is_expected_beyond_the_longest_time() {
    let run = kind(1, "a", "full", Some(500));
    let estimator = taught(&[(&run, 900, 20)]);
    assert_eq!(estimator.length(&run).unwrap().bound, secs(500));
    assert_eq!(
        estimator.remaining(&run, secs(450)).unwrap().likely,
        secs(50)
    );
    // It overran: it ends at any moment.
    assert_eq!(
        estimator.remaining(&run, secs(501)).unwrap().likely,
        secs(1)
    );
}

#[test]
fn estimates_tell_their_error() {
    let run = kind(1, "a", "full", None);
    let mut estimator = taught(&[(&run, 100, 20)]);
    for _ in 0..5 {
        estimator.learn(&run, secs(160));
    }
    let Basis::History {
        accuracy: Some(accuracy),
        runs,
        ..
    } = estimator.length(&run).unwrap().basis
    else {
        panic!("there is a history");
    };
    // Of the 20 that were checked, the first two long ones exceeded the bound; then it followed.
    assert_eq!((runs, accuracy.checked), (25, 20));
    assert_eq!(accuracy.median_error, Duration::ZERO);
    assert_eq!(accuracy.within_bound_permille, 900);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut estimator = RuntimeEstimator::default();
    for team in 0..3000 {
        estimator.learn(&kind(team, "a", "full", None), secs(1));
    }
    assert_eq!(estimator.kinds.len(), KINDS);
    assert_eq!(estimator.by_lesson.len(), KINDS);
    assert!(estimator.length(&kind(2999, "b", "full", None)).is_none());
    let latest = estimator.length(&kind(2999, "a", "full", None)).unwrap();
    assert_eq!(level(&latest), Some(Level::ImageProfile));
}
