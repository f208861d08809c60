//! Columns of ranks, each with a tree of maxima above it.
//!
//! A line is the ranks of 32 neighbouring nodes, 64 bytes, and its maximum is one entry of a
//! line of the level above, up to a single line. Lines of the same nodes lie next to each other
//! for 32 columns, because a change of a node touches the same line in every column.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "every change of a node runs through here for each column; indexes are quotients of \
              one that `grow` made room for"
)]

use crate::placement::Rank;

/// Entries of a line.
const LINE: usize = 32;

/// Columns whose lines lie together.
const BUNDLE: usize = 32;

/// Ranks of neighbouring nodes, or maxima of neighbouring lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([Rank; LINE]);

/// The ranks of all nodes in any number of columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns {
    bundles: Vec<Bundle>,
    nodes: usize,
    closed: Vec<usize>,
    opened: usize,
}

/// Thirty-two columns. The first level has the ranks, the last one a single line per column.
#[derive(Debug, Clone)]
struct Bundle {
    levels: Vec<Vec<Line>>,
}

impl Columns {
    /// Makes room for this many nodes. New ones have no room for anything in every column.
    pub(super) fn grow(&mut self, nodes: usize) {
        self.nodes = self.nodes.max(nodes);
        for bundle in &mut self.bundles {
            bundle.grow(self.nodes);
        }
    }

    /// A column, its ranks yet to be filled in.
    pub(super) fn open(&mut self) -> usize {
        if let Some(number) = self.closed.pop() {
            return number;
        }
        let number = self.opened;
        self.opened += 1;
        if number.is_multiple_of(BUNDLE) {
            let mut bundle = Bundle { levels: Vec::new() };
            bundle.grow(self.nodes);
            self.bundles.push(bundle);
        }
        number
    }

    /// Says that a column is not needed any more.
    pub(super) fn close(&mut self, number: usize) {
        self.closed.push(number);
    }

    /// Sets every rank of a column.
    pub(super) fn fill(&mut self, number: usize, rank: impl Fn(usize) -> Rank) {
        let (bundle, column) = (&mut self.bundles[number / BUNDLE], number % BUNDLE);
        let mut maxima: Vec<Rank> = (0..self.nodes).map(rank).collect();
        for level in &mut bundle.levels {
            let lines = maxima
                .chunks(LINE)
                .zip(level.iter_mut().skip(column).step_by(BUNDLE));
            maxima = lines
                .map(|(ranks, line)| {
                    line.0.fill(0);
                    line.0[..ranks.len()].copy_from_slice(ranks);
                    line.max()
                })
                .collect();
        }
    }

    /// Sets the rank of one node in a column.
    #[inline]
    pub(super) fn set(&mut self, number: usize, node: usize, rank: Rank) {
        let column = number % BUNDLE;
        let (mut at, mut value) = (node, rank);
        for level in &mut self.bundles[number / BUNDLE].levels {
            let line = &mut level[at / LINE * BUNDLE + column];
            let old = std::mem::replace(&mut line.0[at % LINE], value);
            if old == value {
                return;
            }
            value = line.max();
            at /= LINE;
        }
    }

    /// The first of the nodes with the highest rank, unless that is zero.
    #[inline]
    pub(super) fn best(&self, number: usize) -> Option<(usize, Rank)> {
        let (bundle, column) = (&self.bundles[number / BUNDLE], number % BUNDLE);
        let (mut at, mut best) = (0, 0);
        for level in bundle.levels.iter().rev() {
            let line = &level[at * BUNDLE + column];
            best = line.max();
            at = at * LINE + line.first(best);
        }
        (best > 0).then_some((at, best))
    }

    /// The first of the admitted nodes with the highest rank that one of those has.
    pub(super) fn best_where(
        &self,
        number: usize,
        admits: impl Fn(usize) -> bool,
    ) -> Option<(usize, Rank)> {
        let (bundle, column) = (&self.bundles[number / BUNDLE], number % BUNDLE);
        let mut best = None;
        let mut most = 0;
        let lines = bundle.levels.first()?.iter().skip(column).step_by(BUNDLE);
        for (first, line) in (0..).step_by(LINE).zip(lines) {
            if line.max() <= most {
                continue;
            }
            for (node, rank) in (first..).zip(line.0) {
                if rank > most && admits(node) {
                    most = rank;
                    best = Some((node, rank));
                }
            }
        }
        best
    }
}

impl Bundle {
    fn grow(&mut self, nodes: usize) {
        let mut entries = nodes.max(1);
        let mut level = 0;
        loop {
            let lines = entries.div_ceil(LINE);
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let is_top = level + 1 == self.levels.len();
            let rows = &mut self.levels[level];
            let was_single = rows.len() == BUNDLE;
            rows.resize(lines * BUNDLE, Line([0; LINE]));
            if is_top && was_single && lines > 1 {
                let above = rows[..BUNDLE].iter().map(|line| {
                    let mut above = Line([0; LINE]);
                    above.0[0] = line.max();
                    above
                });
                let above = above.collect();
                self.levels.push(above);
            }
            if lines == 1 {
                return;
            }
            entries = lines;
            level += 1;
        }
    }
}

impl Line {
    #[inline]
    fn max(&self) -> Rank {
        self.0.iter().fold(0, |max, rank| max.max(*rank))
    }

    /// The position of the first entry with this value.
    #[inline]
    fn first(&self, value: Rank) -> usize {
        self.0.iter().position(|rank| *rank == value).unwrap_or(0)
    }
}
