//! GPUs cut in hardware: which profile a request gets, where its instance goes, and how 1 %
//! blocks share an instance.
//!
//! ```text
//! percent ──▶ cut ──▶ Blocks | Instance(profile)          the smallest that meets both figures
//! Popularity ──▶ Worth ──▶ best start index, loss         values of all layouts, computed once
//! Ask ──▶ Book::best ──▶ Room ──▶ Book::take              the least Room of many GPUs is the best
//! ```
//!
//! Geometry, legality and figures are in [`cnlab_model::mig`], since nodes need them too.

mod book;
mod need;
mod space;
mod worth;

pub use book::{Ask, Book, Boundary, NoRoom, Room, Want};
pub use need::{Bandwidth, Cut, Need, NoCut, NoProfile, blocks_for, cut, part, smallest};
pub use worth::{Popularity, Worth};

#[cfg(test)]
mod tests;
