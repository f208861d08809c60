mod book;
mod need;
mod worth;

use cnlab_model::mig::{Grid, Product, Shape};
use proptest::prelude::*;

/// A small generator with a printed seed; good enough to draw traces.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// In [0, 1).
    #[expect(
        clippy::cast_precision_loss,
        clippy::float_arithmetic,
        reason = "53 bits are kept, in a test"
    )]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

pub(super) fn plain_shapes(grid: Grid) -> Vec<Shape> {
    Shape::ALL
        .into_iter()
        .filter(|shape| !shape.media() && !grid.starts(*shape).is_empty())
        .collect()
}

pub(super) fn any_product() -> impl Strategy<Value = Product> {
    prop::sample::select(Product::ALL.to_vec())
}

/// Rounds of the longer walks; more with `CNLAB_SOAK_ROUNDS`.
#[expect(
    clippy::disallowed_methods,
    reason = "how long a soak lasts is its caller's choice"
)]
pub(super) fn rounds(usual: u64) -> u64 {
    std::env::var("CNLAB_SOAK_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(1_u64)
        .max(1)
        * usual
}
