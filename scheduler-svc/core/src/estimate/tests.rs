use cnlab_model::{Blocks, id::Ulid};
use proptest::prelude::*;

use super::*;
use crate::snapshot::Holder;

const NOW: Timestamp = Timestamp(1_000_000_000_000);
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

fn cell(holders: &[(u8, u64)], queue: Vec<Request>) -> Snapshot {
    let mut free = Blocks::ALL;
    let holders = holders
        .iter()
        .map(|(count, age)| {
            let blocks = free.lowest(*count).unwrap();
            free = free.minus(blocks);
            Holder {
                blocks,
                since: Timestamp(NOW.0 - i64::try_from(secs(*age).as_micros()).unwrap()),
            }
        })
        .collect();
    let gpu = Gpu {
        family: "H100".to_owned(),
        memory_bytes: 80 << 30,
        holders,
    };
    let mut snapshot = Snapshot::new([Node {
        id: node_id(1),
        answers: true,
        disk_bytes: 1 << 40,
        gpus: [("GPU-1".to_owned(), gpu)].into(),
    }]);
    snapshot.queue = queue;
    snapshot.run_lengths = RunLengths {
        prior: secs(600),
        past: Vec::new(),
    };
    snapshot
}

fn ask(blocks: u8) -> Request {
    Request {
        family: "H100".to_owned(),
        blocks,
        storage_bytes: 1,
        volume_on: None,
    }
}

#[test]
fn a_wait_ends_when_enough_of_those_before_have_left() {
    let holders = [(50, 100), (30, 400), (20, 500)];
    assert_eq!(
        wait(&cell(&holders, vec![]), &ask(20), NOW),
        Some(secs(100))
    );
    assert_eq!(
        wait(&cell(&holders, vec![]), &ask(40), NOW),
        Some(secs(200))
    );
    assert_eq!(
        wait(&cell(&holders, vec![]), &ask(100), NOW),
        Some(secs(500))
    );
    // One ahead takes the first gap.
    assert_eq!(
        wait(&cell(&holders, vec![ask(20)]), &ask(20), NOW),
        Some(secs(200))
    );
    // Behind a whole GPU one waits for that to run, too.
    assert_eq!(
        wait(&cell(&holders, vec![ask(100)]), &ask(20), NOW),
        Some(secs(1100))
    );
}

#[test]
fn one_that_can_never_start_holds_up_nobody() {
    let mut impossible = ask(100);
    impossible.volume_on = Some(node_id(9));
    assert_eq!(wait(&cell(&[(100, 0)], vec![]), &impossible, NOW), None);
    assert_eq!(
        wait(&cell(&[(100, 0)], vec![impossible]), &ask(1), NOW),
        Some(secs(600))
    );
}

proptest! {
    #[test]
    fn a_median_lies_between_the_extremes(times in proptest::collection::vec(0_u64..1 << 40, 1..20)) {
        let times: Vec<Duration> = times.into_iter().map(Duration::from_micros).collect();
        let middle = median(times.iter().copied()).unwrap();
        prop_assert!(times.iter().min() <= Some(&middle));
        prop_assert!(times.iter().max() >= Some(&middle));
    }

    #[test]
    fn a_longer_queue_never_shortens_the_wait(blocks in 1_u8..=100, ahead in proptest::collection::vec(1_u8..=100, 0..6)) {
        let holders = [(50, 100), (30, 400), (20, 500)];
        let queue: Vec<Request> = ahead.into_iter().map(ask).collect();
        let mut last = Duration::ZERO;
        for length in 0..=queue.len() {
            let now = wait(&cell(&holders, queue[..length].to_vec()), &ask(blocks), NOW).unwrap();
            prop_assert!(now >= last);
            last = now;
        }
    }
}
