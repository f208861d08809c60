//! What one team holds and held.

use std::{collections::VecDeque, num::NonZeroU32};

use super::{Amount, WINDOW_MICROS};

/// One value per resource, in the order of [`super::Resource::ALL`].
pub(super) type Four<T> = [T; 4];

impl Amount {
    pub(super) const fn four(&self) -> Four<u64> {
        [self.blocks, self.vram_mib, self.cpu_milli, self.memory_mib]
    }

    const fn from_four([blocks, vram_mib, cpu_milli, memory_mib]: Four<u64>) -> Self {
        Self {
            blocks,
            vram_mib,
            cpu_milli,
            memory_mib,
        }
    }
}

/// A moment at which the team's holdings changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// Passed time.
    at: u64,
    /// What it holds from then on.
    held: Four<u64>,
    /// What it used from its beginning until then, modulo 2^128: only differences within a
    /// window are read, and those are far smaller.
    used: Four<u128>,
}

impl Mark {
    /// Use from the beginning until a moment at or after the mark, if nothing changes.
    fn used_at(&self, passed: u64) -> Four<u128> {
        let time = u128::from(passed.saturating_sub(self.at));
        let mut used = self.used;
        for (used, held) in used.iter_mut().zip(self.held) {
            *used = used.wrapping_add(u128::from(held).wrapping_mul(time));
        }
        used
    }
}

/// The account of one team.
///
/// **Invariant**: marks rise in time; the first is the only one that may lie before the
/// window of the last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    weight: NonZeroU32,
    marks: VecDeque<Mark>,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            weight: NonZeroU32::MIN,
            marks: VecDeque::new(),
        }
    }
}

impl Account {
    pub(super) const fn weight(&self) -> NonZeroU32 {
        self.weight
    }

    pub(super) const fn set_weight(&mut self, weight: NonZeroU32) {
        self.weight = weight;
    }

    pub(super) fn held(&self) -> Amount {
        Amount::from_four(self.marks.back().map_or([0; 4], |mark| mark.held))
    }

    /// Applies a change to each resource; `None`, with nothing changed, where it is impossible.
    pub(super) fn change(
        &mut self,
        passed: u64,
        apply: impl Fn(u64, u64) -> Option<u64>,
        by: Amount,
    ) -> Option<()> {
        let last = self.marks.back().copied();
        let mut held = last.map_or([0; 4], |mark| mark.held);
        for (held, by) in held.iter_mut().zip(by.four()) {
            *held = apply(*held, by)?;
        }
        match self.marks.back_mut().filter(|mark| mark.at == passed) {
            Some(mark) => mark.held = held,
            None => self.marks.push_back(Mark {
                at: passed,
                held,
                used: last.map_or([0; 4], |mark| mark.used_at(passed)),
            }),
        }
        let edge = passed.saturating_sub(WINDOW_MICROS);
        while self.marks.get(1).is_some_and(|second| second.at <= edge) {
            self.marks.pop_front();
        }
        Some(())
    }

    /// What it used in the window that ends at a moment at or after the last change.
    pub(super) fn used(&self, passed: u64) -> Four<u128> {
        let Some(last) = self.marks.back() else {
            return [0; 4];
        };
        let mut used = last.used_at(passed);
        let edge = passed.saturating_sub(WINDOW_MICROS);
        let after = self.marks.partition_point(|mark| mark.at <= edge);
        // Before its first mark the team held nothing.
        if let Some(mark) = after.checked_sub(1).and_then(|index| self.marks.get(index)) {
            for (used, before) in used.iter_mut().zip(mark.used_at(edge)) {
                *used = used.wrapping_sub(before);
            }
        }
        used
    }

    /// Whether forgetting it changes nothing.
    pub(super) fn is_blank(&self, passed: u64) -> bool {
        self.weight == NonZeroU32::MIN
            && self.held() == Amount::default()
            && self.used(passed) == [0; 4]
    }
}

#[cfg(test)]
impl Account {
    /// How many marks it keeps.
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }
}
