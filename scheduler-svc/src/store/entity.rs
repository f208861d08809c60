//! The tables as sea-orm sees them: texts, integers and nothing that decides.

pub(super) mod fence;
pub(super) mod gpu;
pub(super) mod grant;
pub(super) mod lead;
pub(super) mod node;
pub(super) mod run;
pub(super) mod server;
pub(super) mod start;
pub(super) mod volume;
