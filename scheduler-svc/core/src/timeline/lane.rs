//! The future of one node.

use crate::cluster::{Demand, Kind, Node};

use super::amount::Amount;

/// What is held from a moment on, until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    from: i64,
    held: Amount,
}

/// What is held of one node, over time.
///
/// **Invariants**: there is a first step, which begins before all time; the moments rise;
/// neighbours differ. What was before `since` is forgotten: the first step then tells what is
/// held at `since`.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) kind: Kind,
    pub(super) eligible: bool,
    pub(super) total: Amount,
    since: i64,
    steps: Vec<Step>,
}

/// Where a demand would run on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) start: i64,
    /// What is left of the node during all of the run.
    pub(super) left: Amount,
}

impl Lane {
    pub(super) fn new(node: &Node, now: i64) -> Self {
        Self {
            kind: node.kind(),
            eligible: node.is_eligible(),
            total: Amount::total(node),
            since: now,
            steps: vec![Step {
                from: i64::MIN,
                held: Amount::default(),
            }],
        }
    }

    /// The step of a moment.
    fn index(&self, at: i64) -> usize {
        self.steps
            .partition_point(|step| step.from <= at)
            .saturating_sub(1)
    }

    /// The moments after `after` at which what is held changes.
    pub(super) fn changes(&self, after: i64) -> impl Iterator<Item = i64> {
        self.steps
            .iter()
            .map(|step| step.from)
            .filter(move |from| *from > after)
    }

    /// What is left during all of `start..end`.
    pub(super) fn during(&self, start: i64, end: i64) -> Amount {
        let first = self.index(start);
        let held = self
            .steps
            .iter()
            .skip(first)
            .take_while(|step| step.from < end)
            .fold(Amount::default(), |most, step| most.max(&step.held));
        self.total.left(&held)
    }

    /// The earliest start of a demand that runs for `length`, between `not_before` and
    /// `latest`.
    pub(super) fn earliest(
        &self,
        demand: &Demand,
        length: i64,
        not_before: i64,
        latest: i64,
    ) -> Option<Gap> {
        let mut start = not_before;
        let mut first = self.index(start);
        'start: loop {
            if start > latest {
                return None;
            }
            let end = start.saturating_add(length);
            let mut most = Amount::default();
            let window = self.steps.iter().enumerate().skip(first);
            for (index, step) in window.take_while(|(_, step)| step.from < end) {
                most = most.max(&step.held);
                if !self.total.left(&most).fits(demand) {
                    // When the step alone is too full, nothing starts before it has passed.
                    let alone = self.total.left(&step.held).fits(demand);
                    let passed = if alone { first } else { index };
                    first = passed.saturating_add(1);
                    start = self.steps.get(first)?.from;
                    continue 'start;
                }
            }
            return Some(Gap {
                start,
                left: self.total.left(&most),
            });
        }
    }

    /// How much room for sets of 2, 4 and 8 free GPUs a run would break up, times how long.
    /// One that runs beside others that run longer breaks up nothing.
    pub(super) fn breaks(&self, demand: &Demand, gap: &Gap, length: i64) -> u64 {
        let end = gap.start.saturating_add(length);
        let Some(gpus) = gap.left.pick(demand) else {
            return u64::MAX;
        };
        let first = self.index(gap.start);
        let steps = self.steps.iter().skip(first);
        let untils = steps.clone().skip(1).map(|step| step.from);
        let untils = untils.chain(std::iter::once(i64::MAX));
        let mut broken: u64 = 0;
        for (step, until) in steps.zip(untils).take_while(|(step, _)| step.from < end) {
            let left = self.total.left(&step.held);
            let before = left.idle();
            let taken = left.idle_among(gpus);
            let after = before.saturating_sub(taken);
            let lost = [1_u8, 2, 3].iter().fold(0_u64, |lost, power| {
                let sets = (before >> power).saturating_sub(after >> power);
                lost.saturating_add(u64::from(sets) << power)
            });
            if lost > 0 {
                let span = until.min(end).saturating_sub(step.from.max(gap.start));
                let millis = u64::try_from(span).unwrap_or(0).div_euclid(1000);
                broken = broken.saturating_add(lost.saturating_mul(millis));
            }
        }
        broken
    }

    /// What is left from each step on, in the order of time; the first one begins before all.
    pub(super) fn steps(&self) -> impl Iterator<Item = (i64, Amount)> {
        self.steps
            .iter()
            .map(|step| (step.from, self.total.left(&step.held)))
    }

    /// Forgets what was before `now`.
    pub(super) fn forget(&mut self, now: i64) {
        if now <= self.since {
            return;
        }
        self.since = now;
        let current = self.index(now);
        self.steps.drain(..current);
        if let Some(first) = self.steps.first_mut() {
            first.from = i64::MIN;
        }
    }

    /// Changes what is held during `from..until`; nothing where `change` refuses a part of it.
    pub(super) fn alter<E>(
        &mut self,
        from: i64,
        until: i64,
        change: impl Fn(&Amount) -> Result<Amount, E>,
    ) -> Result<(), E> {
        if until <= from || until <= self.since {
            return Ok(());
        }
        let first = if from <= self.since {
            0
        } else {
            self.split(from)
        };
        let last = if until == i64::MAX {
            self.steps.len()
        } else {
            self.split(until)
        };
        let count = last.saturating_sub(first);
        let steps = self.steps.iter().skip(first).take(count);
        let changed: Result<Vec<Amount>, E> = steps.map(|step| change(&step.held)).collect();
        if let Ok(changed) = &changed {
            for (step, held) in self.steps.iter_mut().skip(first).zip(changed) {
                step.held = *held;
            }
        }
        self.steps
            .dedup_by(|later, earlier| later.held == earlier.held);
        changed.map(|_| ())
    }

    /// The index of the step that begins at this moment, which is made when there is none.
    fn split(&mut self, at: i64) -> usize {
        let index = self.index(at);
        match self.steps.get(index) {
            Some(step) if step.from < at => {
                let step = Step {
                    from: at,
                    held: step.held,
                };
                let next = index.saturating_add(1);
                self.steps.insert(next, step);
                next
            }
            Some(_) | None => index,
        }
    }
}
