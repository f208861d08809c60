mod book;
mod need;
#[expect(
    clippy::float_arithmetic,
    reason = "oracles and simulations, not the product"
)]
mod process;
mod worth;

use cnlab_model::mig::Product;
use proptest::prelude::*;

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
