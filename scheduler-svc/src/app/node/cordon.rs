//! Cordoning: nothing new begins on a node that its operator has marked so.
//!
//! **Invariants**: once the mark is committed nothing is granted there, not even what was decided
//! before, since whoever writes a grant looks at the mark in the same transaction
//! (`store::batch`); only an operator takes the mark away.

use cnlab_db::Tx;
use cnlab_model::{Timestamp, id::NodeId};
use cnlab_service::Caller;
use scheduler_core::QueueReason;

use super::NodeView;
use crate::{
    app::{
        App,
        once::{self, Attempt, Once},
    },
    cell::Who,
    error::SchedulerError,
    store::{
        occupants::Occupants,
        record::{Cordon, Node},
        roster,
    },
};

/// Most nodes that a sentence names.
const NAMED: usize = 3;

/// What an operator wants of a node.
#[derive(Debug, Clone)]
enum Wish {
    /// Nothing new begins there.
    Cordon { reason: String },
    /// And what runs there ends.
    Drain { reason: String },
    /// It is used again.
    Uncordon,
}

impl Wish {
    /// The mark of the node from now on; a mark that is there keeps its time and, where no other
    /// is given, its reason.
    fn mark(&self, before: Option<&Cordon>, now: Timestamp) -> Option<Cordon> {
        let (reason, drains) = match self {
            Self::Cordon { reason } => (reason, false),
            Self::Drain { reason } => (reason, true),
            Self::Uncordon => return None,
        };
        Some(Cordon {
            since: before.map_or(now, |before| before.since),
            reason: match before {
                Some(before) if reason.is_empty() => before.reason.clone(),
                Some(_) | None => reason.clone(),
            },
            // What was asked to end ends, also when somebody only changes the reason.
            drain: drains || before.is_some_and(|before| before.drain),
        })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Cordon { .. } => "cordon",
            Self::Drain { .. } => "drain",
            Self::Uncordon => "uncordon",
        }
    }
}

impl App {
    /// Lets nothing new begin on a node.
    pub(crate) async fn cordon(
        &self,
        caller: &Caller,
        wanted: &str,
        reason: String,
        attempt: &Attempt,
    ) -> Result<NodeView, SchedulerError> {
        self.mark_found(caller, wanted, Wish::Cordon { reason }, attempt)
            .await
    }

    /// Lets a node be used again.
    pub(crate) async fn uncordon(
        &self,
        caller: &Caller,
        wanted: &str,
        attempt: &Attempt,
    ) -> Result<NodeView, SchedulerError> {
        self.mark_found(caller, wanted, Wish::Uncordon, attempt)
            .await
    }

    /// Lets nothing new begin on a node, and ends what runs there.
    pub(crate) async fn drain(
        &self,
        caller: &Caller,
        wanted: &str,
        reason: String,
        attempt: &Attempt,
    ) -> Result<NodeView, SchedulerError> {
        self.mark_found(caller, wanted, Wish::Drain { reason }, attempt)
            .await
    }

    async fn mark_found(
        &self,
        caller: &Caller,
        wanted: &str,
        wish: Wish,
        attempt: &Attempt,
    ) -> Result<NodeView, SchedulerError> {
        match self.find_node(wanted).await {
            Ok(found) => Box::pin(self.mark_node(caller, found.id, &wish, attempt)).await,
            Err(error) => self.kept_answer(attempt).await?.ok_or(error),
        }
    }

    async fn mark_node(
        &self,
        caller: &Caller,
        id: NodeId,
        wish: &Wish,
        attempt: &Attempt,
    ) -> Result<NodeView, SchedulerError> {
        let now = self.now();
        let (view, done) = self
            .write(|tx| async move {
                let pending = match attempt.begin(&tx, now).await? {
                    Once::Again(view) => return Ok((*view, None)),
                    Once::First(pending) => pending,
                };
                let mut node = roster::node(&tx, id)
                    .await?
                    .ok_or(SchedulerError::ChangedMeanwhile)?;
                let done = self.carry_out_mark(&tx, &mut node, wish, now).await?;
                let on_it = Occupants::load(&tx, node.id).await?;
                let view = self.node_view(caller, node, on_it);
                once::finish(&tx, pending, &view).await?;
                Ok::<_, SchedulerError>((view, done))
            })
            .await?;
        if let Some(ended) = done {
            let reason = view.node.cordon.as_ref().map(|cordon| &cordon.reason);
            tracing::info!(
                cnlab.node_id = %id,
                name = view.node.name,
                by = caller.user_name,
                reason,
                ended = ended.len(),
                "node changed: {}", wish.name()
            );
            for who in ended {
                self.publish(who);
            }
            // Who waits is placed there again, or told.
            self.cell.marked(id);
        }
        Ok(view)
    }

    /// Answers what it changed of servers and runs; `None` when the mark is as it was.
    async fn carry_out_mark(
        &self,
        tx: &Tx,
        node: &mut Node,
        wish: &Wish,
        now: Timestamp,
    ) -> Result<Option<Vec<Who>>, SchedulerError> {
        let mark = wish.mark(node.cordon.as_ref(), now);
        if mark == node.cordon {
            return Ok(None);
        }
        let drained_before = node.cordon.as_ref().is_some_and(|before| before.drain);
        node.cordon = mark;
        // First, so that whoever is placing there now comes before or is refused.
        roster::mark(tx, node.id, node.cordon.as_ref()).await?;
        match &node.cordon {
            // A drain asks once: its messages stay until they are answered, and nothing came
            // after them.
            Some(cordon) if cordon.drain && !drained_before => {
                self.end_everything(tx, node, now).await.map(Some)
            }
            Some(_) | None => Ok(Some(Vec::new())),
        }
    }
}

/// What somebody waits for, which names the nodes that are cordoned of those that would do.
///
/// `volume_on`: where its files lie, if they tie it to one node.
pub(crate) fn words(volume_on: Option<NodeId>, reason: &QueueReason, would_do: &[&Node]) -> String {
    let (cordoned, others): (Vec<&Node>, Vec<&Node>) = would_do
        .iter()
        .copied()
        .partition(|node| node.cordon.is_some());
    if cordoned.is_empty() {
        return reason.to_string();
    }
    let what = match (volume_on, reason) {
        (Some(_), _) => "waiting for the node where its files lie".to_owned(),
        (None, QueueReason::NodesSilent { family }) if others.is_empty() => {
            format!("waiting for a node with {family}")
        }
        (
            None,
            reason @ (QueueReason::NodesSilent { .. }
            | QueueReason::Busy { .. }
            | QueueReason::BusyGpus { .. }),
        ) => reason.to_string(),
    };
    format!("{what}; {}", are_cordoned(&cordoned))
}

/// `a is cordoned (new fans)`, `a, b, c and 4 more are cordoned`; the reason where all have the
/// same.
fn are_cordoned(nodes: &[&Node]) -> String {
    let names: Vec<&str> = nodes
        .iter()
        .take(NAMED)
        .map(|node| node.name.as_str())
        .collect();
    let names = names.join(", ");
    let are = match nodes.len().saturating_sub(NAMED) {
        0 if nodes.len() == 1 => format!("{names} is cordoned"),
        0 => format!("{names} are cordoned"),
        more => format!("{names} and {more} more are cordoned"),
    };
    let mut reasons = nodes.iter().map(|node| {
        node.cordon
            .as_ref()
            .map_or("", |cordon| cordon.reason.as_str())
    });
    match reasons.next() {
        Some(reason) if !reason.is_empty() && reasons.all(|other| other == reason) => {
            format!("{are} ({reason})")
        }
        Some(_) | None => are,
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    fn node(n: u128, reason: Option<&str>) -> Node {
        Node {
            id: NodeId::from_ulid(Ulid(n)),
            name: format!("box-{n}"),
            endpoint: String::new(),
            cpu_milli: 1,
            memory_bytes: 1,
            disk_bytes: 1,
            disk_free_bytes: 1,
            not_enforced: Vec::new(),
            ready_images: Vec::new(),
            registered_at: Timestamp(0),
            last_seen_at: Timestamp(0),
            cordon: reason.map(|reason| Cordon {
                since: Timestamp(0),
                reason: reason.to_owned(),
                drain: false,
            }),
        }
    }

    #[test]
    fn who_waits_is_told_of_cordoned_nodes_and_of_what_is_also_true() {
        let silent = QueueReason::NodesSilent {
            family: "H100".to_owned(),
        };
        let busy = QueueReason::Busy {
            family: "H100".to_owned(),
            wanted: 25,
            most_free: 10,
        };
        let (plain, fans, why) = (node(1, None), node(2, Some("new fans")), node(3, Some("")));
        for (volume_on, reason, would_do, says) in [
            (None, &busy, vec![&plain], busy.to_string()),
            (
                None,
                &busy,
                vec![&plain, &fans],
                "waiting for 25% of one H100; at most 10% is free; box-2 is cordoned (new fans)"
                    .to_owned(),
            ),
            (
                None,
                &silent,
                vec![&plain, &why],
                "waiting for a node with H100 to answer again; box-3 is cordoned".to_owned(),
            ),
            (
                None,
                &silent,
                vec![&fans, &why],
                "waiting for a node with H100; box-2, box-3 are cordoned".to_owned(),
            ),
            (
                None,
                &silent,
                vec![&fans; 5],
                "waiting for a node with H100; box-2, box-2, box-2 and 2 more are cordoned \
                 (new fans)"
                    .to_owned(),
            ),
            (
                Some(fans.id),
                &silent,
                vec![&fans],
                "waiting for the node where its files lie; box-2 is cordoned (new fans)".to_owned(),
            ),
        ] {
            assert_eq!(words(volume_on, reason, &would_do), says);
        }
    }

    #[test]
    fn a_mark_keeps_its_time_and_what_it_says() {
        let at = Timestamp;
        let cordon = |reason: &str| Wish::Cordon {
            reason: reason.to_owned(),
        };
        let first = cordon("fans").mark(None, at(1)).unwrap();
        assert_eq!(
            (first.since, first.reason.as_str(), first.drain),
            (at(1), "fans", false)
        );
        assert_eq!(cordon("").mark(Some(&first), at(2)), Some(first.clone()));
        let other = cordon("disks").mark(Some(&first), at(2)).unwrap();
        assert_eq!((other.since, other.reason.as_str()), (at(1), "disks"));
        let drain = Wish::Drain {
            reason: String::new(),
        };
        let drained = drain.mark(Some(&other), at(3)).unwrap();
        assert!(drained.drain && drained.reason == "disks");
        assert!(cordon("x").mark(Some(&drained), at(4)).unwrap().drain);
        assert_eq!(Wish::Uncordon.mark(Some(&drained), at(5)), None);
    }
}
