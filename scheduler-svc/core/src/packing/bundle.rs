//! Shares that go to one idle GPU together.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "classes are numbered by one list; a bundle has at most 100 members"
)]

use super::gaps::is_half;
use super::plan::Expected;
use super::{Free, WHOLE};
use crate::cluster::{Kind, KindSet};

/// Tasks that share one GPU which is idle now.
#[derive(Debug, Clone)]
pub(super) struct Bundle {
    pub(super) members: Vec<usize>,
    pub(super) cpu: u32,
    pub(super) memory: u32,
    pub(super) room: u8,
    pub(super) kinds: Accept,
}

impl Bundle {
    pub(super) fn empty() -> Self {
        Self {
            members: Vec::new(),
            cpu: 0,
            memory: 0,
            room: WHOLE,
            kinds: Accept::ALL,
        }
    }

    pub(super) fn add(&mut self, id: usize, expected: &Expected, kinds: Accept) {
        self.members.push(id);
        self.cpu += expected.class.cpu;
        self.memory += expected.memory;
        self.room -= expected.class.blocks;
        self.kinds = self.kinds.and(kinds);
    }
}

/// The kinds that several tasks accept together, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accept(pub(super) u64);

impl Accept {
    pub(super) const ALL: Self = Self(u64::MAX);

    pub(super) fn of(kinds: KindSet) -> Self {
        if kinds == KindSet::ANY {
            return Self::ALL;
        }
        let mut bits = 0;
        for number in 0..Kind::LIMIT {
            if Kind::new(number).is_some_and(|kind| kinds.admits(kind)) {
                bits |= 1 << number;
            }
        }
        Self(bits)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn admits(self, node: &Free) -> bool {
        self.0 & 1 << node.kind.number() != 0
    }
}

/// Puts shares into bundles, best fit, in the given order; opens new ones where none has room.
pub(super) fn fill(
    mut bundles: Vec<Bundle>,
    shares: &[(usize, u32)],
    expected: &[Expected],
    accept: &[Accept],
) -> Vec<Bundle> {
    let mut rooms: Vec<Vec<usize>> = vec![Vec::new(); usize::from(WHOLE) + 1];
    for (index, bundle) in bundles.iter().enumerate() {
        rooms[usize::from(bundle.room)].push(index);
    }
    for &(id, count) in shares {
        let class = expected[id].class;
        for _ in 0..count {
            let mut found = None;
            'rooms: for (room, list) in rooms.iter().enumerate().skip(usize::from(class.blocks)) {
                for (place, &bundle) in list.iter().enumerate().rev() {
                    if bundles[bundle].kinds.and(accept[id]).0 != 0 {
                        found = Some((room, place));
                        break 'rooms;
                    }
                }
            }
            let index = if let Some((room, place)) = found {
                rooms[room].swap_remove(place)
            } else {
                bundles.push(Bundle::empty());
                bundles.len() - 1
            };
            bundles[index].add(id, &expected[id], accept[id]);
            rooms[usize::from(bundles[index].room)].push(index);
        }
    }
    bundles
}

/// Splits pairs of shares of about half a GPU, as often as asked for. Each half keeps processor
/// time for a guest.
pub(super) fn split(
    mut bundles: Vec<Bundle>,
    mut times: u64,
    guest: u32,
    expected: &[Expected],
    accept: &[Accept],
) -> Vec<Bundle> {
    for index in 0..bundles.len() {
        let members = &bundles[index].members;
        let halves = members.iter().all(|&id| is_half(expected[id].class.blocks));
        if times == 0 || members.len() != 2 || !halves {
            continue;
        }
        times -= 1;
        for id in std::mem::take(&mut bundles[index].members) {
            let mut half = Bundle::empty();
            half.add(id, &expected[id], accept[id]);
            half.cpu += guest;
            if bundles[index].members.is_empty() {
                bundles[index] = half;
            } else {
                bundles.push(half);
            }
        }
    }
    bundles
}
