//! Follows the leases: notices nodes that fell silent, and opens leases anew that were lost.
//!
//! A lease that runs out says that its node was not heard of for its whole time. The row of the
//! node decides whether that is so, and who places goes by the same times; what follows here is
//! saying it. Nothing is taken from a silent node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cnlab_lease::{ExpiryWatch, LeaseEvent, LeaseExpired, SWEEP_EVERY};
use cnlab_model::{
    Timestamp,
    id::{GrantId, NodeId},
};
use cnlab_service::Next;

use crate::{
    app::App,
    cell::silent_before,
    error::SchedulerError,
    store::{grant, roster},
};

const AFTER_ERROR: Duration = Duration::from_secs(1);

/// Follows the leases of the cell.
#[derive(Debug)]
pub(crate) struct Leases {
    app: Arc<App>,
    /// Taken out for a tick. One that is not put back begins anew, which misses nothing: the
    /// first look of a watch compares all rows.
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    watch: ExpiryWatch,
    /// Nodes of leases that ran out, and when each was last heard of, until it is known
    /// whether it is silent: the clocks of the store and of the rows differ a little.
    doubtful: BTreeMap<NodeId, Timestamp>,
    /// Since when a node that was told of is silent.
    silent: BTreeMap<NodeId, Timestamp>,
    /// Whether the store is away, which is said once.
    away: bool,
}

impl Leases {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self {
            app,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks once.
    pub(crate) async fn tick(&self) -> Next {
        let seen = self.seen().take();
        let mut seen = seen.unwrap_or_else(|| Seen {
            watch: ExpiryWatch::new(Arc::clone(&self.app.leases)),
            doubtful: BTreeMap::new(),
            silent: BTreeMap::new(),
            away: false,
        });
        let next = match seen.watch.tick().await {
            Ok((events, wait)) => {
                seen.away = false;
                match self.take_in(&mut seen, events).await {
                    Ok(_) => wait.min(SWEEP_EVERY),
                    Err(error) => {
                        tracing::warn!(%error, "what leases say could not be compared with the rows");
                        return Next::After(AFTER_ERROR);
                    }
                }
            }
            Err(error) => {
                if !seen.away {
                    tracing::warn!(%error, "leases cannot be followed");
                }
                seen.away = true;
                AFTER_ERROR
            }
        };
        *self.seen() = Some(seen);
        Next::After(next)
    }

    /// Answers which nodes have fallen silent.
    async fn take_in(
        &self,
        seen: &mut Seen,
        events: Vec<LeaseEvent>,
    ) -> Result<Vec<NodeId>, SchedulerError> {
        let mut expired = Vec::new();
        let mut reset = false;
        for event in events {
            match event {
                LeaseEvent::Expired(lease) => expired.push(lease),
                LeaseEvent::Reset { .. } => reset = true,
            }
        }
        if reset {
            self.app.reopen_leases().await?;
        }
        for node in self.nodes_of(&expired).await? {
            if let Some(node) = self.app.node(node).await? {
                seen.doubtful.insert(node.id, node.last_seen_at);
            }
        }
        self.settle(seen).await
    }

    /// The nodes of the grants whose leases ran out.
    async fn nodes_of(&self, expired: &[LeaseExpired]) -> Result<Vec<NodeId>, SchedulerError> {
        let fences: BTreeMap<GrantId, u64> = expired
            .iter()
            .filter_map(|lease| Some((lease.key.parse().ok()?, lease.fence)))
            .collect();
        let ids: Vec<GrantId> = fences.keys().copied().collect();
        let held = grant::held_of(self.app.db.read(), &ids).await?;
        let mut nodes: Vec<NodeId> = held
            .iter()
            .filter(|grant| fences.get(&grant.id) == Some(&grant.fence))
            .map(|grant| grant.node)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    /// Asks the rows of the doubtful nodes.
    async fn settle(&self, seen: &mut Seen) -> Result<Vec<NodeId>, SchedulerError> {
        let mut fell = Vec::new();
        let before = silent_before(self.app.runtime.clock.now(), self.app.grants.ttl.0);
        for (id, heard) in std::mem::take(&mut seen.doubtful) {
            let Some(node) = roster::node(self.app.db.read(), id).await? else {
                continue;
            };
            if node.last_seen_at > heard {
                // It answers; what it does not name is not its any more, or not yet.
                seen.silent.remove(&id);
            } else if node.last_seen_at >= before {
                seen.doubtful.insert(id, heard);
            } else if seen.silent.insert(id, heard) != Some(heard) {
                tracing::warn!(cnlab.node_id = %id, name = node.name, "node does not answer any more");
                fell.push(id);
            }
        }
        Ok(fell)
    }
}

#[cfg(test)]
mod tests;
