use cnlab_model::id::Ulid;

use super::*;
const DEFAULTS: ImageDefaults = ImageDefaults {
    build: Duration::from_secs(60),
    start: Duration::from_secs(3),
};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn node_id(n: u128) -> NodeId {
    NodeId::from_ulid(Ulid(n))
}

fn past(image: &str, node: u128, environment_ready: bool, took: u64) -> PastStart {
    PastStart {
        image: image.to_owned(),
        node: node_id(node),
        environment_ready,
        took: secs(took),
    }
}

#[test]
fn medians() {
    assert_eq!(median([]), None);
    assert_eq!(median([secs(9), secs(1), secs(2)]), Some(secs(2)));
    assert_eq!(
        median([secs(1), secs(4)]),
        Some(Duration::from_millis(2500))
    );
}

#[test]
fn a_start_is_expected_to_take_what_like_ones_took() {
    let history = [
        past("a", 1, true, 4),
        past("a", 1, true, 40),
        past("a", 1, true, 5),
        past("a", 2, true, 9),
        past("a", 2, false, 70),
        past("b", 1, true, 1),
    ];
    let eta =
        |image, node, ready| provisioning(&history, image, Some(node_id(node)), ready, DEFAULTS);
    assert_eq!(eta("a", 1, true), secs(5));
    assert_eq!(eta("a", 2, true), secs(9));
    // Not yet on this node: as on others.
    assert_eq!(eta("a", 3, false), secs(70));
    // Never anywhere: the catalogue.
    assert_eq!(eta("b", 1, false), secs(63));
    assert_eq!(eta("c", 1, true), secs(3));
}

#[test]
fn old_starts_are_forgotten() {
    let mut history = vec![past("a", 1, true, 2); RECENT];
    history.extend(vec![past("a", 1, true, 90); 50]);
    assert_eq!(
        provisioning(&history, "a", Some(node_id(1)), true, DEFAULTS),
        secs(2)
    );
}

#[test]
fn what_remains_is_never_nothing() {
    assert_eq!(remaining(secs(18), secs(5)), secs(13));
    assert_eq!(remaining(secs(18), secs(50)), secs(1));
}

#[test]
fn a_run_that_outlived_all_others_lasts_as_long_again() {
    let lengths = RunLengths {
        prior: secs(100),
        past: vec![secs(10), secs(300)],
    };
    assert_eq!(lengths.typical(), secs(100));
    assert_eq!(lengths.rest(secs(0)), secs(100));
    assert_eq!(lengths.rest(secs(150)), secs(150));
    assert_eq!(lengths.rest(secs(1000)), secs(1000));
}
