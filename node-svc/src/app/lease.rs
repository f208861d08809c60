//! How long the grants of this node live, as far as the node itself can tell.
//!
//! **Invariant**: the node never believes that a lease lives longer than the scheduler does: it
//! counts from when it sent the renewal, the scheduler from when it took that in.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use node_core::expiry::leave;
use tokio::time::Instant;

use super::Node;

/// Until the scheduler has said how long a lease lives.
const TTL: Duration = Duration::from_secs(30);

/// What is known of the leases of this node.
#[derive(Debug)]
pub(crate) struct Lease(Mutex<Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    ttl: Duration,
    /// When the renewal was sent that was answered last. A node-svc that starts gets the time
    /// of one lease to find the scheduler: what it adopted goes on if the scheduler says so.
    renewed: Instant,
}

impl Lease {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Known {
            ttl: TTL,
            renewed: Instant::now(),
        }))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the scheduler says.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.known().ttl = ttl;
    }

    /// Says that a renewal was answered that was sent at this moment.
    pub(crate) fn renewed(&self, sent: Instant) {
        let mut known = self.known();
        known.renewed = known.renewed.max(sent);
    }
}

impl Node {
    /// Ends every run whose grant could not be renewed for so long that its processes have to
    /// go now. Answers when to look again.
    pub(crate) fn expire(&self) -> Duration {
        let known = *self.lease.known();
        let leave = leave(known.ttl, self.config.process.stop_grace.0);
        let now = Instant::now();
        for life in self.all_lives() {
            let heard = life.began.max(known.renewed);
            let due = life.expires() && !life.is_over() && !life.stop.is_cancelled();
            if due && now.duration_since(heard) >= leave.after {
                tracing::warn!(workload = %life.holder.workload, fence = life.holder.fence, "ending a run whose grant cannot be renewed");
                life.expire(leave.grace);
            }
        }
        (known.ttl / 30).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}
