//! How long the grants of this node live, as far as the node itself can tell (X-12).
//!
//! ```text
//! scheduler ── answers a renewal ──▶ Life::lease ──▶ the process's supervisor, which ends it in time
//!                                        └─ expire: ends it here, too, and what has no process yet
//! ```
//!
//! **Invariants**
//! - The node never believes that a lease lives longer than the scheduler does: it counts from
//!   when it sent the renewal, the scheduler from when it took that in.
//! - Nothing of a run is started without a lease, and a lease that was let pass is not renewed: what
//!   a node-svc finds again goes on only if the scheduler, asked about it by name, says so.
//! - Time is the boot clock's: it is not set, and goes on while the machine sleeps.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use node_core::{Holder, expiry::leave};
use node_sandbox::{Boottime, Lease as ProcessLease};

use super::{Node, life::Life};

/// Where the scheduler does not say how long a lease lives.
const TTL: Duration = Duration::from_secs(30);

/// What is known of the leases of this node.
#[derive(Debug)]
pub(crate) struct Lease(Mutex<Option<Known>>);

/// Said by the scheduler since this node-svc registered.
#[derive(Debug, Clone, Copy)]
struct Known {
    ttl: Duration,
    /// When the call was sent that the scheduler answered last.
    heard: Boottime,
}

impl Lease {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn known(&self) -> Option<Known> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ttl(&self) -> Duration {
        self.known().map_or(TTL, |known| known.ttl)
    }

    /// Takes over what the scheduler answered to a registration that was sent at this moment.
    pub(crate) fn registered(&self, sent: Boottime, ttl: Option<Duration>) {
        let ttl = ttl.unwrap_or(TTL);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = known.map_or(sent, |known| known.heard.max(sent));
        *known = Some(Known { ttl, heard });
    }

    /// Takes over that a renewal was answered; `None` before the first registration was, since
    /// nobody knows then for how long it is good.
    fn renewed(&self, sent: Boottime) -> Option<()> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.as_mut()?;
        known.heard = known.heard.max(sent);
        Some(())
    }
}

/// A lease of this length that counts from a moment, for processes that are usually given `grace`.
fn counted_from(renewed_at: Boottime, ttl: Duration, grace: Duration) -> ProcessLease {
    let leave = leave(ttl, grace);
    let ask_at = renewed_at.plus(leave.after);
    ProcessLease {
        renewed_at,
        ask_at,
        kill_at: ask_at.plus(leave.grace),
        gone_by: renewed_at.plus(ttl),
    }
}

impl Node {
    fn lease_from(&self, renewed_at: Boottime) -> ProcessLease {
        let grace = self.config.process.stop_grace.0;
        counted_from(renewed_at, self.lease.ttl(), grace)
    }

    /// Gives a life that was just launched its first lease. The scheduler believes at least since
    /// its last answer that this node is there; if there was none yet, the first renewal gives it.
    pub(super) fn first_lease(&self, life: &Life) {
        if life.expires()
            && let Some(known) = self.lease.known()
        {
            life.renew(self.lease_from(known.heard));
        }
    }

    /// Takes over that the scheduler answered a renewal which was sent at this moment: of those
    /// that it named, all may go on that the answer does not end; others, launched since it was
    /// put together, if their lease has not passed.
    pub(crate) fn renewed(&self, sent: Boottime, named: &BTreeSet<Holder>, ending: &[String]) {
        if self.lease.renewed(sent).is_none() {
            return;
        }
        let lease = self.lease_from(sent);
        for life in self.all_lives() {
            if !life.expires() || life.is_over() || life.expired().is_some() {
                continue;
            }
            let goes_on = if named.contains(&life.holder) {
                let id = life.holder.workload.to_string();
                !ending.contains(&id)
            } else {
                life.lease().is_some()
            };
            if goes_on && life.lease().is_none_or(|lease| sent < lease.ask_at) {
                life.renew(lease);
            }
        }
    }

    /// Waits until a run may be started, and answers for how long; `None` when it has to end.
    pub(super) async fn lease_to_start(&self, life: &Life) -> Option<ProcessLease> {
        let lease = tokio::select! {
            lease = life.first_lease() => lease,
            () = life.stop.cancelled() => return None,
        };
        if lease.ask_at <= Boottime::now() {
            life.expire(Duration::ZERO);
            return None;
        }
        Some(lease)
    }

    /// Ends every run whose grant could not be renewed for so long that its processes have to
    /// go now. Answers when to look again.
    pub(crate) fn expire(&self) -> Duration {
        let now = Boottime::now();
        for life in self.all_lives() {
            if !life.expires() || life.is_over() || life.stop.is_cancelled() {
                continue;
            }
            // What was found again has its supervisor to end it in time; this node-svc gives the
            // scheduler the time of one lease to say something.
            let lease = life.lease().unwrap_or_else(|| self.lease_from(life.began));
            if lease.ask_at <= now {
                tracing::warn!(workload = %life.holder.workload, fence = life.holder.fence, "ending a run whose grant cannot be renewed");
                life.expire(lease.kill_at.since(now));
            }
        }
        (self.lease.ttl() / 30).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cnlab_model::{
        Timestamp,
        id::{RunId, ServerId, Ulid},
    };
    use cnlab_service::Runtime;
    use node_core::WorkloadId;

    use super::*;
    use crate::app::life::Record;

    /// A life that nothing leads.
    fn life(node: &Node, workload: WorkloadId) -> Arc<Life> {
        let holder = Holder { workload, fence: 1 };
        let record = Record::new(holder, None, None, Timestamp(0));
        let life = Arc::new(Life::new("none".into(), record, String::new()));
        node.lives().insert(holder, Arc::clone(&life));
        life
    }

    fn run(node: &Node, n: u128) -> Arc<Life> {
        life(node, WorkloadId::Run(RunId::from_ulid(Ulid(n))))
    }

    fn named(lives: &[&Arc<Life>]) -> BTreeSet<Holder> {
        lives.iter().map(|life| life.holder).collect()
    }

    fn renewed_at(life: &Life) -> Option<Boottime> {
        life.lease().map(|lease| lease.renewed_at)
    }

    /// What it answers at once.
    fn polled<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn only_what_the_scheduler_let_go_on_is_renewed() {
        let data = tempfile::tempdir().unwrap();
        let node = Node::simulated(data.path(), Runtime::system()).await;
        let [goes_on, ends, found, late] = [1, 2, 3, 4].map(|n| run(&node, n));
        let server = life(&node, WorkloadId::Server(ServerId::from_ulid(Ulid(5))));
        let ending = [ends.holder.workload.to_string()];
        let said = named(&[&goes_on, &ends, &server]);

        // How long a lease lives is not known yet, and so neither is what a renewal is good for.
        let now = Boottime::now();
        node.first_lease(&late);
        node.renewed(now, &said, &ending);
        assert_eq!(renewed_at(&goes_on), None);
        node.lease.registered(now, Some(HOUR));
        for life in [&goes_on, &late, &server] {
            node.first_lease(life);
        }
        let sent = now.plus(Duration::from_secs(1));
        node.renewed(sent, &said, &ending);
        assert_eq!(renewed_at(&goes_on), Some(sent));
        assert_eq!(renewed_at(&ends), None, "the scheduler ends it");
        assert_eq!(
            renewed_at(&found),
            None,
            "the scheduler was not asked about it"
        );
        assert_eq!(renewed_at(&late), Some(sent), "launched since");
        assert_eq!(renewed_at(&server), None, "its grant does not expire");
        // Once it is asked about by name, it may go on as well.
        node.renewed(sent, &named(&[&found]), &[]);
        assert_eq!(renewed_at(&found), Some(sent));
    }

    #[tokio::test]
    async fn a_lease_that_was_let_pass_is_not_renewed() {
        let data = tempfile::tempdir().unwrap();
        let node = Node::simulated(data.path(), Runtime::system()).await;
        let run = run(&node, 1);
        let now = Boottime::now();
        node.lease.registered(now, Some(HOUR));
        node.first_lease(&run);
        let passed = run.lease().unwrap().ask_at;
        node.renewed(passed, &named(&[&run]), &[]);
        assert_eq!(renewed_at(&run), Some(now));
        let just_in_time = now.plus(passed.since(now) - Duration::from_nanos(1));
        node.renewed(just_in_time, &named(&[&run]), &[]);
        assert_eq!(renewed_at(&run), Some(just_in_time));
    }

    #[tokio::test]
    async fn nothing_starts_without_a_lease_or_on_one_that_is_over() {
        let data = tempfile::tempdir().unwrap();
        let node = Node::simulated(data.path(), Runtime::system()).await;
        let [found, over, stopped] = [1, 2, 3].map(|n| run(&node, n));
        let mut waits = std::pin::pin!(node.lease_to_start(&found));
        assert!(polled(waits.as_mut()).is_none());
        let now = Boottime::now();
        node.lease.registered(now, Some(HOUR));
        assert!(polled(waits.as_mut()).is_none(), "registered only");
        node.renewed(now, &named(&[&found]), &[]);
        let lease = waits.await.unwrap();
        assert_eq!(lease.gone_by, now.plus(HOUR));
        assert!(lease.kill_at < lease.gone_by);

        node.lease.registered(now, Some(Duration::from_millis(1)));
        node.first_lease(&over);
        let over_by = over.lease().unwrap().gone_by;
        while Boottime::now() <= over_by {
            tokio::task::yield_now().await;
        }
        assert!(node.lease_to_start(&over).await.is_none());
        assert!(over.expired().is_some() && over.stop.is_cancelled());

        stopped.stop.cancel();
        assert!(node.lease_to_start(&stopped).await.is_none());
        assert!(stopped.expired().is_none());
    }
}
