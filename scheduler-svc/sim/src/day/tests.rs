use scheduler_core::engine::{Engine, Settings};
use scheduler_core::index::Index;
use scheduler_core::placement::BestFit;

use super::policy::Queue;
use super::*;
use crate::openb;

fn day(load: u32) -> Day {
    let hosts = openb::hosts().unwrap();
    let pods = openb::pods("default", &hosts).unwrap();
    Day::new(&hosts, &pods, 6, load, 7).unwrap()
}

fn engine(day: &Day) -> Engine<BestFit> {
    let vram = BTreeMap::new();
    Engine::new(
        day.cluster.clone(),
        BestFit,
        vram,
        Settings::default(),
        Timestamp(0),
    )
}

#[test]
fn a_day_is_the_same_every_time() {
    let day = day(90);
    assert!(day.jobs.len() > 100, "{}", day.jobs.len());
    let again = run(&day, &mut engine(&day));
    assert_eq!(run(&day, &mut engine(&day)), again);
    assert!(
        again.allocation > 30.0 && again.allocation <= 100.0,
        "{}",
        again.allocation
    );
    assert_eq!(
        again.curve.len(),
        145,
        "every ten minutes of 24 hours, both ends"
    );
}

#[test]
fn with_little_to_do_nobody_waits_behind_any_policy() {
    let day = day(5);
    let index = || Index::new(day.cluster.clone(), BestFit);
    let outcomes = [
        run(&day, &mut engine(&day)),
        run(&day, &mut Queue::new(index(), false)),
        run(&day, &mut Queue::new(index(), true)),
    ];
    for outcome in outcomes {
        let late = outcome.waits.iter().filter(|wait| **wait > 60.0).count();
        assert!(
            late * 20 <= outcome.waits.len(),
            "{late} of {}",
            outcome.waits.len()
        );
        assert_eq!(outcome.refused, 0);
    }
}

#[test]
fn the_urgent_wait_less_behind_the_engine_than_in_a_line() {
    let day = day(130);
    let line = run(
        &day,
        &mut Queue::new(Index::new(day.cluster.clone(), BestFit), false),
    );
    let own = run(&day, &mut engine(&day));
    let mean =
        |waits: &[f64]| waits.iter().sum::<f64>() / f64::from(u32::try_from(waits.len()).unwrap());
    assert!(mean(&own.urgent_waits) < mean(&line.urgent_waits) / 2.0);
    assert!(own.missed.0 <= line.missed.0);
    assert!(own.allocation > line.allocation);
}
