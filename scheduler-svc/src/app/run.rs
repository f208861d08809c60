//! Runs: submitting, looking, cancelling and deleting them, and what becomes of them on nodes.

mod expire;
mod find;
mod lifecycle;
mod report;
mod submit;
mod view;

pub(crate) use submit::{NewRun, OnLate};
pub(crate) use view::RunView;
