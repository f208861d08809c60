//! The loops of the scheduler.

pub(crate) mod dispatch;
pub(crate) mod gauges;
pub(crate) mod purge;
pub(crate) mod queue;
