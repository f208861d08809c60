//! Why a job stands where it stands, made on demand from the plan.

mod report;
mod sooner;
mod text;

pub use report::{
    Ahead, Blocker, DeadlineTerm, GpuTypeTerm, LocalityTerm, Report, ShareTerm, explain,
};
pub use sooner::{Change, Sooner};
pub use text::Names;
