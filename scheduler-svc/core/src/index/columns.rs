//! The rank of every node for many demands, with a tree of maxima.
//!
//! A row is the ranks of one node in 64 columns: a cache line. Above the rows of the nodes
//! stand rows of maxima, each over 16 rows of the level below, up to a level of at most 16. So
//! a change of a node renews its row and one row on each level, in all columns at once, by
//! maxima of entire rows; a question walks down one column.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "every change of a node and every question runs through here; indexes are quotients \
              of ones that `grow` or `open` made room for"
)]

use crate::placement::Rank;

/// Rows below one row of maxima.
const FAN: usize = 16;

/// Columns of a row.
const WIDTH: usize = 64;

/// The ranks of a node, or the maxima of neighbouring rows, in each of some columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
struct Row([Rank; WIDTH]);

/// The ranks of all nodes in any number of columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns {
    bundles: Vec<Bundle>,
    nodes: usize,
    count: usize,
}

/// Sixty-four columns. The first level has the rows of the nodes.
#[derive(Debug, Clone, Default)]
struct Bundle {
    levels: Vec<Vec<Row>>,
}

impl Columns {
    /// Makes room for this many nodes. New ones have no room for anything, in every column.
    pub(super) fn grow(&mut self, nodes: usize) {
        self.nodes = self.nodes.max(nodes);
        for bundle in &mut self.bundles {
            bundle.grow(self.nodes);
        }
    }

    /// One column more, at the end.
    pub(super) fn open(&mut self) {
        if self.count.is_multiple_of(WIDTH) {
            let mut bundle = Bundle::default();
            bundle.grow(self.nodes);
            self.bundles.push(bundle);
        }
        self.count += 1;
    }

    /// Sets every rank of a column.
    pub(super) fn fill(&mut self, column: usize, rank: impl Fn(usize) -> Rank) {
        let (levels, column) = (&mut self.bundles[column / WIDTH].levels, column % WIDTH);
        let mut below: Vec<Rank> = (0..self.nodes).map(rank).collect();
        for level in levels {
            for (row, rank) in level.iter_mut().zip(&below) {
                row.0[column] = *rank;
            }
            below = below
                .chunks(FAN)
                .map(|ranks| ranks.iter().copied().fold(0, Rank::max))
                .collect();
        }
    }

    /// Sets the ranks of a node in every column.
    pub(super) fn set(&mut self, node: usize, ranks: &[Rank]) {
        for (bundle, ranks) in self.bundles.iter_mut().zip(ranks.chunks(WIDTH)) {
            bundle.set(node, ranks);
        }
    }

    /// The first of the nodes with the highest rank in a column, unless that is zero.
    pub(super) fn best(&self, column: usize) -> Option<(usize, Rank)> {
        let (levels, column) = (&self.bundles[column / WIDTH].levels, column % WIDTH);
        let mut levels = levels.iter().rev();
        let top = levels.next()?;
        let best = top.iter().map(|row| row.0[column]).max()?;
        let mut at = first(top, column, best);
        for level in levels {
            let rows = &level[at * FAN..];
            at = at * FAN + first(&rows[..rows.len().min(FAN)], column, best);
        }
        (best > 0).then_some((at, best))
    }

    /// The first of the admitted nodes with the highest rank that one of those has.
    pub(super) fn best_where(
        &self,
        column: usize,
        admits: impl Fn(usize) -> bool,
    ) -> Option<(usize, Rank)> {
        let (levels, column) = (&self.bundles[column / WIDTH].levels, column % WIDTH);
        let maxima = levels.get(1);
        let mut best = None;
        let mut most = 0;
        for (group, rows) in levels.first()?.chunks(FAN).enumerate() {
            if maxima.is_some_and(|maxima| maxima[group].0[column] <= most) {
                continue;
            }
            for (node, row) in (group * FAN..).zip(rows) {
                let rank = row.0[column];
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
        let mut rows = nodes.max(1);
        for level in 0.. {
            if level == self.levels.len() {
                let maxima = match level.checked_sub(1) {
                    Some(below) => self.levels[below].chunks(FAN).map(maxima).collect(),
                    None => Vec::new(),
                };
                self.levels.push(maxima);
            }
            self.levels[level].resize(rows, Row([0; WIDTH]));
            if rows <= FAN {
                return;
            }
            rows = rows.div_ceil(FAN);
        }
    }

    fn set(&mut self, node: usize, ranks: &[Rank]) {
        let Some((rows, above)) = self.levels.split_first_mut() else {
            return;
        };
        rows[node].0[..ranks.len()].copy_from_slice(ranks);
        let mut below = rows;
        let mut at = node;
        for level in above {
            at /= FAN;
            let end = below.len().min((at + 1) * FAN);
            let row = maxima(&below[at * FAN..end]);
            if std::mem::replace(&mut level[at], row) == row {
                return;
            }
            below = level;
        }
    }
}

#[inline]
fn maxima(rows: &[Row]) -> Row {
    let mut maxima = Row([0; WIDTH]);
    for row in rows {
        for (maximum, rank) in maxima.0.iter_mut().zip(row.0) {
            *maximum = (*maximum).max(rank);
        }
    }
    maxima
}

/// The position of the first row with this rank in a column.
#[inline]
fn first(rows: &[Row], column: usize, rank: Rank) -> usize {
    rows.iter()
        .position(|row| row.0[column] == rank)
        .unwrap_or(0)
}
