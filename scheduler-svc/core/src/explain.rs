//! Why a job stands where it stands, made on demand from the plan.

mod report;
mod sooner;
mod text;

pub use report::{
    Ahead, Blocker, DeadlineTerm, GpuTypeTerm, LocalityTerm, Report, ShareTerm, explain, report,
};
pub use sooner::{Change, Sooner, WORTH, starts};
pub use text::{Names, Words, after};
