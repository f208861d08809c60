use proptest::prelude::*;

use super::*;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn of(lengths: &[u64]) -> History {
    let mut history = History::new(64);
    for length in lengths {
        history.observe(secs(*length));
    }
    history
}

#[test]
fn nothing_is_forecast_from_nothing() {
    assert_eq!(History::new(4).forecast(Duration::ZERO), None);
    assert_eq!(History::new(4).accuracy(), None);
    assert_eq!(of(&[3]).forecast(secs(3)), None);
}

#[test]
fn the_middle_and_the_bound() {
    let history = of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let forecast = history.forecast(Duration::ZERO).unwrap();
    assert_eq!((forecast.likely, forecast.bound), (secs(5), secs(9)));
    // Of 19, the bound is the 18th: 900 of a thousand of 20.
    let nineteen: Vec<u64> = (1..=19).collect();
    assert_eq!(
        of(&nineteen).forecast(Duration::ZERO).unwrap().bound,
        secs(18)
    );
}

#[test]
fn one_that_runs_already_is_like_those_that_ran_longer() {
    let history = of(&[10, 10, 10, 60, 70]);
    assert_eq!(history.forecast(Duration::ZERO).unwrap().likely, secs(10));
    assert_eq!(history.forecast(secs(10)).unwrap().likely, secs(60));
    assert_eq!(history.longer_than(secs(10)), 2);
}

#[test]
fn the_error_is_that_of_forecasts_made_before() {
    // The first five are not checked; the sixth was forecast as 10, bound 10.
    let history = of(&[10, 10, 10, 10, 10, 25]);
    let accuracy = history.accuracy().unwrap();
    assert_eq!(accuracy.checked, 1);
    assert_eq!(accuracy.within_bound_permille, 0);
    assert_eq!(accuracy.median_error, secs(15));
}

proptest! {
    #[test]
    fn a_history_stays_small_and_its_quantiles_lie_inside(
        lengths in proptest::collection::vec(0_u64..1000, 1..200),
    ) {
        let mut history = History::new(16);
        for length in &lengths {
            history.observe(secs(*length));
        }
        let kept = &lengths[lengths.len().saturating_sub(16)..];
        prop_assert_eq!(history.len(), kept.len());
        let forecast = history.forecast(Duration::ZERO).unwrap();
        prop_assert!(forecast.likely <= forecast.bound);
        prop_assert!(forecast.likely >= secs(*kept.iter().min().unwrap()));
        prop_assert!(forecast.bound <= secs(*kept.iter().max().unwrap()));
        let below = kept.iter().filter(|length| secs(**length) <= forecast.likely).count();
        prop_assert!(below * 2 >= kept.len());
    }
}
