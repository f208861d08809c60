//! Fair share: error against a plain sum, and the time of changes and questions.

use std::num::NonZeroU32;

use cnlab_model::{Timestamp, id::TeamId};
use scheduler_core::fairshare::{Amount, FairShare, Resource};

use super::{nanos, process::Dice, quantile, row};

const DAY: u64 = 24 * 3_600 * 1_000_000;

/// A cell of 6,212 GPUs as in the trace that the demands are from.
const CELL: Amount = Amount {
    blocks: 621_200,
    vram_mib: 6_212 * 81_920,
    cpu_milli: 107_018_000,
    memory_mib: 500_000_000,
};

pub(super) fn measure(quick: bool) {
    exact(quick);
    for teams in [10, 1_000, 100_000] {
        speed(teams, quick);
    }
    order();
}

fn team(number: u64) -> TeamId {
    format!("team_{number:026}").parse().unwrap()
}

fn at(micros: u64) -> Timestamp {
    Timestamp(i64::try_from(micros).unwrap())
}

/// Demands of the trace, each as often as it occurs there.
fn demands() -> Vec<Amount> {
    let mut all = Vec::new();
    for line in include_str!("../openb_default.csv").lines().skip(1) {
        let cells: Vec<u64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        let [cpu_milli, memory_mib, gpus, blocks, count] = cells.try_into().unwrap();
        let blocks = gpus * blocks;
        let amount = Amount {
            blocks,
            vram_mib: blocks * 819,
            cpu_milli,
            memory_mib,
        };
        all.extend(std::iter::repeat_n(amount, usize::try_from(count).unwrap()));
    }
    all
}

fn pick<T: Copy>(dice: &mut Dice, of: &[T]) -> T {
    of[usize::try_from(dice.below(of.len() as u64)).unwrap()]
}

/// Tasks of the trace with random teams and lengths over three weeks; at every event the use
/// of one team is compared with the sum over all of its tasks.
fn exact(quick: bool) {
    let tasks = if quick { 1_000 } else { 20_000 };
    let demands = demands();
    let mut dice = Dice::new(11);
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    let mut lives: Vec<(u64, Amount, u64, u64)> = Vec::new();
    for index in 0..tasks {
        let from = dice.below(21 * DAY);
        let until = from + 1 + dice.below(2 * DAY) * dice.below(100) / 100;
        // A few teams use most.
        let owner = dice.below(40) * dice.below(40) / 40;
        lives.push((owner, pick(&mut dice, &demands), from, until));
        events.push((from, true, index));
        events.push((until, false, index));
    }
    events.sort_unstable();
    let mut shares = FairShare::new(CELL);
    let (mut wrong, mut worst_parts) = (0_u32, 0_u64);
    for (now, begins, index) in events {
        let (owner, amount, ..) = lives[index];
        if begins {
            shares.hold(team(owner), amount, at(now)).unwrap();
        } else {
            shares.release(team(owner), amount, at(now)).unwrap();
        }
        let mut wanted = [0_u128; 2];
        for (_, amount, from, until) in lives.iter().filter(|life| life.0 == owner) {
            let overlap =
                (*until.min(&now)).saturating_sub(*from.max(&now.saturating_sub(7 * DAY)));
            wanted[0] += u128::from(amount.blocks) * u128::from(overlap);
            wanted[1] += u128::from(amount.cpu_milli) * u128::from(overlap);
        }
        let got = [Resource::Blocks, Resource::Cpu]
            .map(|resource| shares.used(team(owner), resource, at(now)));
        wrong += u32::from(got != wanted);
        let parts = |used: u128, of: u64| used * 1_000_000 / u128::from(7 * DAY) / u128::from(of);
        let share = parts(wanted[0], CELL.blocks).max(parts(wanted[1], CELL.cpu_milli));
        let got = shares.share(team(owner), at(now)).parts_per_million();
        if shares.share(team(owner), at(now)).dominant() != Resource::Memory {
            worst_parts = worst_parts.max(got.abs_diff(u64::try_from(share).unwrap()));
        }
    }
    row(
        "fair share: answers that differ from the plain sum",
        wrong.into(),
        "",
        "<= 0",
        &format!("use of blocks and processors at {} events", 2 * tasks),
    );
    row(
        "fair share: largest error of a share",
        f64::from(u32::try_from(worst_parts).unwrap()) / 10_000.0,
        "%",
        "<= 0.1",
        "of the cell over seven days",
    );
}

/// A cell in full swing: every team has changed twenty times in the last seven days.
fn filled(teams: u64, dice: &mut Dice, demands: &[Amount]) -> (FairShare, u64) {
    let mut shares = FairShare::new(CELL);
    let changes = (20 * teams).min(2_000_000);
    let mut now = 0;
    for _ in 0..changes {
        now += 7 * DAY / changes;
        let owner = team(dice.below(teams));
        shares.hold(owner, pick(dice, demands), at(now)).unwrap();
    }
    for number in 0..teams {
        let weight = NonZeroU32::new(u32::try_from(1 + number % 5).unwrap()).unwrap();
        shares.set_weight(team(number), weight);
    }
    (shares, now)
}

fn speed(teams: u64, quick: bool) {
    const BATCH: u64 = 100;
    let demands = demands();
    let mut dice = Dice::new(5);
    let (mut shares, mut now) = filled(teams, &mut dice, &demands);
    let batches = if quick { 200 } else { 5_000 };
    let (mut changes, mut questions) = (Vec::new(), Vec::new());
    for _ in 0..batches {
        let picks: Vec<(TeamId, Amount)> = (0..BATCH)
            .map(|_| (team(dice.below(teams)), pick(&mut dice, &demands)))
            .collect();
        let ((), time) = nanos(|| {
            for (owner, amount) in &picks {
                now += 1_000_000;
                shares.hold(*owner, *amount, at(now)).unwrap();
            }
        });
        changes.push(time / 100.0);
        let (_, time) = nanos(|| {
            picks
                .iter()
                .map(|(owner, _)| shares.share(*owner, at(now)))
                .max()
        });
        questions.push(time / 100.0);
        for (owner, amount) in &picks {
            shares.release(*owner, *amount, at(now)).unwrap();
        }
    }
    let anchor = format!("batches of {BATCH}, {batches} of them");
    row(
        &format!("fair share: one change, {teams} teams, median"),
        quantile(&mut changes, 0.5),
        "ns",
        "<= 1000",
        &anchor,
    );
    row(
        &format!("fair share: one change, {teams} teams, p99"),
        quantile(&mut changes, 0.99),
        "ns",
        "<= 1000",
        &anchor,
    );
    row(
        &format!("fair share: one share, {teams} teams, median"),
        quantile(&mut questions, 0.5),
        "ns",
        "",
        &anchor,
    );
}

fn order() {
    let demands = demands();
    let (shares, now) = filled(1_000, &mut Dice::new(9), &demands);
    let mut times: Vec<f64> = (0..200)
        .map(|step| nanos(|| shares.order(at(now + step))).1 / 1e3)
        .collect();
    row(
        "fair share: order of 1000 teams",
        quantile(&mut times, 0.5),
        "us",
        "",
        "median of 200",
    );
}
