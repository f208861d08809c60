//! Cuts shares out of GPUs so that the fewest idle GPUs are opened (the cutting stock problem,
//! solved as Gilmore and Gomory do: a linear programme whose columns, the patterns, are found by
//! a knapsack over the prices).
//!
//! Numbers are fixed-point, so that the answer is the same on every machine.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "dense linear algebra over vectors of one length; values are bounded by the counts of a cell"
)]

use super::WHOLE;

/// Fractional bits.
const BITS: u32 = 32;
const ONE: i64 = 1 << BITS;
/// What counts as zero.
const SMALL: i64 = ONE >> 16;
/// After this many exchanges of the basis the patterns are good enough.
const MOST: usize = 600;

/// Shares that go to one GPU, and how many GPUs get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// What is free on the GPU now.
    pub room: u8,
    /// The sizes of the shares, the largest first.
    pub sizes: Vec<u8>,
    /// How often, rounded down.
    pub times: u32,
}

/// A column of the programme: a pattern, or a slack.
#[derive(Debug, Clone)]
enum Column {
    /// Row of the room (`None`: an idle GPU), and how many of each size.
    Pattern(Option<usize>, Vec<u8>),
    /// More of a size than asked for, or less of a room than there is.
    Slack(usize),
}

struct Programme {
    sizes: Vec<u8>,
    rooms: Vec<u8>,
    rows: usize,
    /// Row-major.
    inverse: Vec<i64>,
    level: Vec<i64>,
    basis: Vec<Column>,
}

fn times(a: i64, b: i64) -> i64 {
    let product = (i128::from(a) * i128::from(b)) >> BITS;
    i64::try_from(product).unwrap_or(if product > 0 { i64::MAX } else { i64::MIN })
}

fn ratio(a: i64, b: i64) -> i64 {
    let quotient = (i128::from(a) << BITS) / i128::from(b);
    i64::try_from(quotient).unwrap_or(i64::MAX)
}

/// Cuts `demand` (sizes in 1..100 and how many of each) out of `rooms` (what is free on used
/// GPUs, and on how many) and of idle GPUs.
#[must_use]
pub fn cut(demand: &[(u8, u32)], rooms: &[(u8, u32)]) -> Vec<Cut> {
    let demand: Vec<(u8, u32)> = demand.iter().copied().filter(|d| d.1 > 0).collect();
    let least = demand.iter().map(|d| d.0).min().unwrap_or(WHOLE);
    let rooms: Vec<(u8, u32)> = rooms
        .iter()
        .copied()
        .filter(|room| room.1 > 0 && room.0 >= least)
        .collect();
    let mut programme = Programme::new(&demand, &rooms);
    for _ in 0..MOST {
        if !programme.improve() {
            break;
        }
    }
    programme.cuts()
}

impl Programme {
    fn new(demand: &[(u8, u32)], rooms: &[(u8, u32)]) -> Self {
        let rows = demand.len() + rooms.len();
        let mut inverse = vec![0; rows * rows];
        let mut level = Vec::with_capacity(rows);
        let mut basis = Vec::with_capacity(rows);
        for (row, &(size, count)) in demand.iter().enumerate() {
            let fits = WHOLE / size;
            let mut pattern = vec![0; demand.len()];
            pattern[row] = fits;
            basis.push(Column::Pattern(None, pattern));
            inverse[row * rows + row] = ONE / i64::from(fits);
            level.push(i64::from(count) * ONE / i64::from(fits));
        }
        for (place, &(_, count)) in rooms.iter().enumerate() {
            let row = demand.len() + place;
            basis.push(Column::Slack(row));
            inverse[row * rows + row] = ONE;
            level.push(i64::from(count) * ONE);
        }
        Self {
            sizes: demand.iter().map(|d| d.0).collect(),
            rooms: rooms.iter().map(|room| room.0).collect(),
            rows,
            inverse,
            level,
            basis,
        }
    }

    /// The prices of the rows: of a size what one more costs, of a room what one more saves,
    /// negative.
    fn prices(&self) -> Vec<i64> {
        let mut prices = vec![0; self.rows];
        for (row, column) in self.basis.iter().enumerate() {
            if matches!(column, Column::Pattern(None, _)) {
                let line = &self.inverse[row * self.rows..(row + 1) * self.rows];
                for (price, &value) in prices.iter_mut().zip(line) {
                    *price += value;
                }
            }
        }
        prices
    }

    /// Exchanges one column of the basis. False when none is worth it.
    fn improve(&mut self) -> bool {
        let prices = self.prices();
        let Some(column) = self.entering(&prices) else {
            return false;
        };
        let direction = self.direction(&column);
        let mut leaving: Option<(i64, usize)> = None;
        for (row, &step) in direction.iter().enumerate() {
            if step > SMALL {
                let limit = ratio(self.level[row].max(0), step);
                if leaving.is_none_or(|(least, _)| limit < least) {
                    leaving = Some((limit, row));
                }
            }
        }
        let Some((_, row)) = leaving else {
            return false;
        };
        self.pivot(row, &direction, column);
        true
    }

    fn entering(&self, prices: &[i64]) -> Option<Column> {
        let sizes = self.sizes.len();
        let mut best: Option<(i64, Column)> = None;
        let mut offer = |gain: i64, column: &dyn Fn() -> Column| {
            if gain > SMALL && best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, column()));
            }
        };
        let (value, last) = self.knapsack(&prices[..sizes]);
        offer(value[usize::from(WHOLE)] - ONE, &|| {
            Column::Pattern(None, self.pattern(&last, WHOLE))
        });
        for (place, &room) in self.rooms.iter().enumerate() {
            let row = sizes + place;
            offer(value[usize::from(room)] + prices[row], &|| {
                Column::Pattern(Some(row), self.pattern(&last, room))
            });
            offer(prices[row], &|| Column::Slack(row));
        }
        for (row, &price) in prices[..sizes].iter().enumerate() {
            offer(-price, &|| Column::Slack(row));
        }
        best.map(|(_, column)| column)
    }

    /// For each room the worth of the best pattern, and the place of the last size in it.
    fn knapsack(&self, prices: &[i64]) -> ([i64; WHOLE as usize + 1], [u8; WHOLE as usize + 1]) {
        let mut value = [0_i64; WHOLE as usize + 1];
        let mut last = [u8::MAX; WHOLE as usize + 1];
        for room in 1..=usize::from(WHOLE) {
            value[room] = value[room - 1];
            last[room] = u8::MAX;
            for (place, (&size, &price)) in (0_u8..).zip(self.sizes.iter().zip(prices)) {
                let size = usize::from(size);
                if size <= room && value[room - size] + price > value[room] {
                    value[room] = value[room - size] + price;
                    last[room] = place;
                }
            }
        }
        (value, last)
    }

    fn pattern(&self, last: &[u8], room: u8) -> Vec<u8> {
        let mut pattern = vec![0; self.sizes.len()];
        let mut room = usize::from(room);
        while room > 0 {
            match last[room] {
                u8::MAX => room -= 1,
                place => {
                    pattern[usize::from(place)] += 1;
                    room -= usize::from(self.sizes[usize::from(place)]);
                }
            }
        }
        pattern
    }

    /// The column in terms of the basis.
    fn direction(&self, column: &Column) -> Vec<i64> {
        let sizes = self.sizes.len();
        (0..self.rows)
            .map(|row| {
                let line = &self.inverse[row * self.rows..(row + 1) * self.rows];
                match column {
                    Column::Slack(at) if *at < sizes => -line[*at],
                    Column::Slack(at) => line[*at],
                    Column::Pattern(room, pattern) => {
                        let shares: i64 = line
                            .iter()
                            .zip(pattern)
                            .map(|(&value, &count)| value * i64::from(count))
                            .sum();
                        shares + room.map_or(0, |at| line[at])
                    }
                }
            })
            .collect()
    }

    fn pivot(&mut self, leaving: usize, direction: &[i64], column: Column) {
        let rows = self.rows;
        let pivot = direction[leaving];
        let mut line = self.inverse[leaving * rows..(leaving + 1) * rows].to_vec();
        for value in &mut line {
            *value = ratio(*value, pivot);
        }
        let level = ratio(self.level[leaving].max(0), pivot);
        for (row, &step) in direction.iter().enumerate() {
            if row == leaving || step == 0 {
                continue;
            }
            for (value, &new) in self.inverse[row * rows..(row + 1) * rows]
                .iter_mut()
                .zip(&line)
            {
                if new != 0 {
                    *value -= times(step, new);
                }
            }
            self.level[row] -= times(step, level);
        }
        self.inverse[leaving * rows..(leaving + 1) * rows].copy_from_slice(&line);
        self.level[leaving] = level;
        self.basis[leaving] = column;
    }

    fn cuts(&self) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (column, &level) in self.basis.iter().zip(&self.level) {
            let Column::Pattern(row, pattern) = column else {
                continue;
            };
            let times = u32::try_from((level + SMALL) >> BITS).unwrap_or(0);
            if times == 0 {
                continue;
            }
            let mut sizes: Vec<u8> = Vec::new();
            for (&size, &count) in self.sizes.iter().zip(pattern) {
                sizes.extend(std::iter::repeat_n(size, usize::from(count)));
            }
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let room = row.map_or(WHOLE, |row| self.rooms[row - self.sizes.len()]);
            cuts.push(Cut { room, sizes, times });
        }
        cuts.sort_by(|a, b| (a.room, &b.sizes).cmp(&(b.room, &a.sizes)));
        cuts
    }
}
