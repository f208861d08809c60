//! The loops of the scheduler.

mod destinations;
pub(crate) mod dispatch;
pub(crate) mod expiry;
pub(crate) mod gauges;
mod jobs;
pub(crate) mod leases;
pub(crate) mod purge;
