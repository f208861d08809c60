use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

fn team(number: usize) -> TeamId {
    format!("team_{number:026}").parse().unwrap()
}

fn weight(weight: u32) -> NonZeroU32 {
    NonZeroU32::new(weight).unwrap()
}

fn amount(values: [u64; 4]) -> Amount {
    Amount {
        blocks: values[0],
        vram_mib: values[1],
        cpu_milli: values[2],
        memory_mib: values[3],
    }
}

fn blocks(blocks: u64) -> Amount {
    amount([blocks, 0, 0, 0])
}

fn at(micros: i64) -> Timestamp {
    Timestamp(micros)
}

/// The reference: keeps every stretch of use from the beginning, adds up overlaps with the
/// window one by one, and compares fractions by Euclid's algorithm.
#[derive(Default)]
struct Reference {
    /// Team, what it held in between, from, until (passed time).
    stretches: Vec<(usize, [u64; 4], i128, i128)>,
    held: Vec<[u64; 4]>,
    weights: Vec<u32>,
    last: Option<i64>,
    passed: i128,
}

impl Reference {
    fn new(teams: usize) -> Self {
        Self {
            held: vec![[0; 4]; teams],
            weights: vec![1; teams],
            ..Self::default()
        }
    }

    /// Only steps forward count.
    fn passed_at(&self, now: i64) -> i128 {
        let step = self
            .last
            .map_or(0, |last| i128::from(now) - i128::from(last));
        self.passed + step.max(0)
    }

    fn step(&mut self, now: i64) {
        let next = self.passed_at(now);
        for (team, held) in self.held.iter().enumerate() {
            if *held != [0; 4] && next > self.passed {
                self.stretches.push((team, *held, self.passed, next));
            }
        }
        self.passed = next;
        self.last = Some(now);
    }

    fn used(&self, team: usize, now: i64) -> [u128; 4] {
        let end = self.passed_at(now);
        let begin = end - i128::from(7 * DAY);
        let running = (team, self.held[team], self.passed, end);
        let mut used = [0; 4];
        for (of, held, from, until) in self.stretches.iter().copied().chain([running]) {
            let overlap = until.min(end) - from.max(begin);
            if of == team && overlap > 0 {
                for (used, held) in used.iter_mut().zip(held) {
                    *used += u128::from(held) * u128::try_from(overlap).unwrap();
                }
            }
        }
        used
    }

    /// The dominant share as (used, capacity * weight); 0/1 where nothing counts.
    fn share(&self, team: usize, capacity: [u64; 4], now: i64) -> (u128, u128) {
        let used = self.used(team, now);
        let weight = u128::from(self.weights[team]);
        (0..4)
            .filter(|resource| capacity[*resource] > 0)
            .map(|resource| (used[resource], u128::from(capacity[resource]) * weight))
            .fold((0, 1), |best, next| {
                if compare(next, best) == Ordering::Greater {
                    next
                } else {
                    best
                }
            })
    }
}

/// Compares a/b with c/d without multiplying.
fn compare((a, b): (u128, u128), (c, d): (u128, u128)) -> Ordering {
    match (a / b).cmp(&(c / d)) {
        Ordering::Equal => match (a % b, c % d) {
            (0, 0) => Ordering::Equal,
            (0, _) => Ordering::Less,
            (_, 0) => Ordering::Greater,
            (rest, other) => compare((d, other), (b, rest)),
        },
        unequal @ (Ordering::Less | Ordering::Greater) => unequal,
    }
}

fn agrees(ours: &FairShare, reference: &Reference, now: i64) {
    let capacity = ours.capacity.four();
    let teams = reference.held.len();
    for number in 0..teams {
        let wanted = reference.used(number, now);
        for (index, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(
                ours.used(team(number), resource, at(now)),
                wanted[index],
                "team {number}, {resource:?} at {now}"
            );
        }
        assert_eq!(ours.held(team(number)).four(), reference.held[number]);
        let (used, of) = reference.share(number, capacity, now);
        let share = ours.share(team(number), at(now));
        let parts = used * 1_000_000 / u128::from(WINDOW_MICROS) / of;
        assert_eq!(u128::from(share.parts_per_million()), parts);
    }
    let mut order: Vec<usize> = (0..teams).collect();
    order.sort_by(|a, b| {
        compare(
            reference.share(*a, capacity, now),
            reference.share(*b, capacity, now),
        )
        .then(a.cmp(b))
    });
    let wanted: Vec<TeamId> = order.into_iter().map(team).collect();
    let got: Vec<TeamId> = ours
        .order(at(now))
        .into_iter()
        .map(|(team, _)| team)
        .collect();
    assert_eq!(got, wanted);
    assert_eq!(
        ours.next(wanted.iter().copied(), at(now)),
        wanted.first().copied()
    );
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Event {
    Hold(usize, [u64; 4]),
    /// Gives back that many sixteenths of what is held.
    Release(usize, u64),
    Weight(usize, u32),
    Capacity([u64; 4]),
}

const TEAMS: usize = 4;

fn amounts() -> impl Strategy<Value = [u64; 4]> {
    // Small ones, so that equal shares happen, and large ones, so that products are wide.
    prop_oneof![
        prop::array::uniform4(0_u64..4),
        prop::array::uniform4(0_u64..1 << 40),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..TEAMS, amounts()).prop_map(|(team, held)| Event::Hold(team, held)),
        4 => (0..TEAMS, 0_u64..=17).prop_map(|(team, parts)| Event::Release(team, parts)),
        1 => (0..TEAMS, 1_u32..6).prop_map(|(team, weight)| Event::Weight(team, weight)),
        1 => prop::array::uniform4(prop_oneof![Just(0), 1_u64..1 << 40]).prop_map(Event::Capacity),
    ]
}

/// Time until the next event: nothing, moments, hours, weeks, and sometimes back.
fn step() -> impl Strategy<Value = i64> {
    prop_oneof![
        2 => Just(0),
        2 => 0..1_000_000_i64,
        8 => 0..DAY,
        2 => 0..10 * DAY,
        2 => -DAY..0_i64,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn shares_are_those_of_the_reference_at_every_event(
        events in prop::collection::vec((event(), step()), 1..60),
        ahead in 0..8 * DAY,
    ) {
        let capacity = [800, 1 << 20, 128_000, 1 << 20];
        let mut ours = FairShare::new(amount(capacity));
        let mut reference = Reference::new(TEAMS);
        for number in 0..TEAMS {
            ours.set_weight(team(number), NonZeroU32::MIN);
        }
        let mut now = 1_700_000_000_000_000;
        for (event, step) in events {
            now += step;
            match event {
                Event::Hold(number, more) => {
                    reference.step(now);
                    ours.hold(team(number), amount(more), at(now)).unwrap();
                    for (held, more) in reference.held[number].iter_mut().zip(more) {
                        *held += more;
                    }
                }
                Event::Release(number, parts) => {
                    reference.step(now);
                    let held = reference.held[number];
                    let less = held.map(|held| held / 16 * parts);
                    let may = held.iter().zip(less).all(|(held, less)| *held >= less);
                    let got = ours.release(team(number), amount(less), at(now));
                    prop_assert_eq!(got, if may { Ok(()) } else { Err(Refused::NotHeld) });
                    if may {
                        for (held, less) in reference.held[number].iter_mut().zip(less) {
                            *held -= less;
                        }
                    }
                }
                Event::Weight(number, value) => {
                    reference.weights[number] = value;
                    ours.set_weight(team(number), weight(value));
                }
                Event::Capacity(capacity) => ours.set_capacity(amount(capacity)),
            }
            agrees(&ours, &reference, now);
            agrees(&ours, &reference, now + ahead);
            // A question about the past is answered as of the last change.
            agrees(&ours, &reference, now - ahead);
        }
        // Teams without a trace may be forgotten; nobody's share changes.
        let shares: Vec<Share> = (0..TEAMS).map(|n| ours.share(team(n), at(now))).collect();
        ours.forget(at(now));
        for (number, share) in shares.into_iter().enumerate() {
            prop_assert_eq!(ours.share(team(number), at(now)), share);
        }
    }

    #[test]
    fn the_order_of_changes_at_one_moment_does_not_matter(
        changes in prop::collection::vec((0..TEAMS, amounts()), 1..8),
        shift in 0_usize..8,
    ) {
        let build = |changes: &[(usize, [u64; 4])]| {
            let mut shares = FairShare::new(blocks(100));
            shares.hold(team(0), blocks(1), at(0)).unwrap();
            for (number, more) in changes {
                shares.hold(team(*number), amount(*more), at(HOUR)).unwrap();
            }
            shares
        };
        let mut turned = changes.clone();
        turned.rotate_left(shift % changes.len());
        prop_assert_eq!(build(&changes), build(&turned));
    }

    #[test]
    fn shares_are_free_of_scale(
        held in prop::collection::vec(1_u64..1000, 3),
        factor in 1_u64..1000,
        later in 0..9 * DAY,
    ) {
        let order = |factor: u64| {
            let mut shares = FairShare::new(blocks(1_000 * factor));
            for (number, held) in held.iter().enumerate() {
                shares.hold(team(number), blocks(held * factor), at(0)).unwrap();
            }
            shares.order(at(later))
        };
        // Equal as fractions, not only in order.
        prop_assert_eq!(order(1), order(factor));
    }
}

#[test]
fn use_leaves_the_window_as_gradually_as_it_came() {
    let mut shares = FairShare::new(blocks(100));
    shares.hold(team(1), blocks(50), at(0)).unwrap();
    shares.release(team(1), blocks(50), at(DAY)).unwrap();
    let share = |days: i64| shares.share(team(1), at(days * DAY)).parts_per_million();
    // Half of the cell for one day of seven.
    assert_eq!(share(1), 71_428);
    assert_eq!(share(7), 71_428);
    let half = shares.share(team(1), at(7 * DAY + DAY / 2));
    assert_eq!(half.parts_per_million(), 35_714);
    assert_eq!(half.to_string(), "3.57%");
    assert_eq!(share(8), 0);
    assert_eq!(shares.share(team(1), at(8 * DAY)), Share::NOTHING);
    assert_eq!(shares.share(team(9), at(DAY)), Share::NOTHING);
}

#[test]
fn the_dominant_resource_counts() {
    let mut shares = FairShare::new(amount([1_000, 1_000, 1_000, 1_000]));
    shares
        .hold(team(1), amount([10, 10, 400, 10]), at(0))
        .unwrap();
    shares
        .hold(team(2), amount([300, 300, 100, 100]), at(0))
        .unwrap();
    let first = shares.share(team(1), at(DAY));
    assert_eq!(first.dominant(), Resource::Cpu);
    assert!(first > shares.share(team(2), at(DAY)));
    // With twice the weight the larger user comes first.
    shares.set_weight(team(1), weight(2));
    assert_eq!(shares.next([team(2), team(1)], at(DAY)), Some(team(1)));
    // What the cell has none of does not count.
    shares.set_capacity(amount([1_000, 1_000, 0, 0]));
    assert_eq!(shares.share(team(1), at(DAY)).dominant(), Resource::Blocks);
    shares.set_capacity(Amount::default());
    assert_eq!(shares.share(team(1), at(DAY)), Share::NOTHING);
}

#[test]
fn a_clock_that_is_set_back_costs_nobody_anything() {
    let mut shares = FairShare::new(blocks(100));
    shares.hold(team(1), blocks(10), at(10 * HOUR)).unwrap();
    // Back by an hour, then an hour and a half on: the half hour after the step counts, too.
    shares.hold(team(2), blocks(10), at(9 * HOUR)).unwrap();
    let used = |shares: &FairShare, number, now| {
        shares.used(team(number), Resource::Blocks, at(now)) / u128::try_from(HOUR).unwrap()
    };
    assert_eq!(used(&shares, 1, 9 * HOUR), 0);
    assert_eq!(used(&shares, 1, 11 * HOUR), 20);
    assert_eq!(used(&shares, 2, 11 * HOUR), 20);
    // A jump of a year forward and back empties the window and charges it once, and the
    // account goes on at once.
    let year = 365 * DAY;
    shares
        .hold(team(3), blocks(1), at(11 * HOUR + year))
        .unwrap();
    shares.release(team(1), blocks(10), at(11 * HOUR)).unwrap();
    assert_eq!(used(&shares, 1, 11 * HOUR), 10 * 7 * 24);
    assert_eq!(used(&shares, 3, 12 * HOUR), 1);
    assert_eq!(used(&shares, 1, 12 * HOUR), 10 * (7 * 24 - 1));
}

#[test]
fn refused_changes_change_nothing() {
    let mut shares = FairShare::new(blocks(100));
    assert_eq!(
        shares.release(team(1), blocks(1), at(0)),
        Err(Refused::NotHeld)
    );
    shares.hold(team(1), amount([5, 5, 5, 5]), at(0)).unwrap();
    // The last resource does not suffice: the first ones stay as well.
    assert_eq!(
        shares.release(team(1), amount([1, 1, 1, 6]), at(0)),
        Err(Refused::NotHeld)
    );
    assert_eq!(
        shares.hold(team(1), amount([1, 1, 1, u64::MAX]), at(0)),
        Err(Refused::TooMuch)
    );
    assert_eq!(shares.held(team(1)), amount([5, 5, 5, 5]));
}

#[test]
fn marks_older_than_the_window_are_dropped() {
    let mut shares = FairShare::new(blocks(100));
    for hour in 0..24 * 60 {
        shares.hold(team(1), blocks(1), at(hour * HOUR)).unwrap();
    }
    let marks = shares.teams[&team(1)].len();
    assert!((7 * 24..=7 * 24 + 2).contains(&marks), "{marks}");
}

/// Two teams with endless work on ten slots, each job an hour: who gets the freed slots?
fn slots_by_hour(
    shares: &mut FairShare,
    held: &mut [u64; 2],
    hours: std::ops::Range<i64>,
    wants: [bool; 2],
) -> Vec<[u64; 2]> {
    hours
        .map(|hour| {
            let now = at(hour * HOUR);
            for (number, slots) in held.iter_mut().enumerate() {
                shares.release(team(number), blocks(*slots), now).unwrap();
                *slots = 0;
            }
            for _ in 0..10 {
                // A slot given counts at once: compare with what is held by the end of the hour.
                let then = at(now.0 + HOUR);
                let waiting = [0, 1].into_iter().filter(|number| wants[*number]).map(team);
                let next = shares.next(waiting, then).unwrap();
                let number = usize::from(next == team(1));
                shares.hold(next, blocks(1), now).unwrap();
                held[number] += 1;
            }
            *held
        })
        .collect()
}

#[test]
fn a_team_that_ran_heavy_yesterday_yields_ground_to_a_starved_one() {
    // H-07: the first team had the whole cell yesterday, the second nothing.
    let mut shares = FairShare::new(blocks(10));
    let mut held = [0; 2];
    for number in 0..2 {
        shares.hold(team(number), blocks(0), at(0)).unwrap();
    }
    let yesterday = slots_by_hour(&mut shares, &mut held, 0..24, [true, false]);
    assert!(yesterday.iter().all(|slots| *slots == [10, 0]));
    // Today both want everything: the starved one gets it for a day, until both are level.
    let today = slots_by_hour(&mut shares, &mut held, 24..48, [true, true]);
    assert!(today.iter().all(|slots| *slots == [0, 10]), "{today:?}");
    // From then on they share evenly, hour by hour, ...
    let level = slots_by_hour(&mut shares, &mut held, 48..7 * 24, [true, true]);
    assert!(level.iter().all(|slots| *slots == [5, 5]), "{level:?}");
    // ... until yesterday leaves the window and the first team makes up for its day of
    // waiting, and so on: over any seven days both get the same within one slot hour.
    let later = slots_by_hour(&mut shares, &mut held, 7 * 24..28 * 24, [true, true]);
    for window in later.windows(7 * 24) {
        let sums = [0, 1].map(|number| window.iter().map(|slots| slots[number]).sum::<u64>());
        assert!(sums[0].abs_diff(sums[1]) <= 10, "{sums:?}");
    }
}

#[test]
fn weights_divide_a_cell_that_both_want() {
    let mut shares = FairShare::new(blocks(10));
    shares.set_weight(team(1), weight(4));
    shares.hold(team(0), blocks(0), at(0)).unwrap();
    shares.hold(team(1), blocks(0), at(0)).unwrap();
    let hours = slots_by_hour(&mut shares, &mut [0; 2], 0..7 * 24, [true, true]);
    let sums = [0, 1].map(|number| hours.iter().map(|slots| slots[number]).sum::<u64>());
    assert_eq!(sums, [336, 1_344]);
}
