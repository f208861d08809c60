//! The cell in memory, and the one task that places.
//!
//! ```text
//!  app ── Want ──▶ ┌ inbox ┐     ┌─ Owner ──────────────────────────────────────┐
//!  commits ─ Changed ▶     │ ──▶ │ read names and keys ▸ Image: engine ▸ turn    │
//!  nodes ── Heard ──▶      │     │ ▸ one transaction: rows, grants, fences,      │
//!  questions ─ Ask ─▶ └────┘     │   messages, answers ▸ reply                   │
//!                                └───────────────────────────────────────────────┘
//! ```
//!
//! **Invariants**
//! - Only the owner grants slices, and only while it leads the cell: its transactions name the
//!   term of its lead (`store::lead`).
//! - Nobody is answered before what the answer says is committed.
//! - All that wait in the inbox when the owner turns to it are decided together and written
//!   together, so the price of a commit is shared by as many as come in its time.
//! - The image is never repaired: where it differs from the rows, it is made anew from them.

mod ask;
mod image;
mod kinds;
mod lines;
mod owner;
mod site;
mod teams;
mod who;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use cnlab_model::{
    Timestamp,
    id::{NodeId, ServerId},
};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use image::{Image, silent_before};
pub(crate) use owner::Owner;
pub(crate) use teams::Teams;
pub(crate) use who::Who;

use crate::{
    app::{
        once::Attempt,
        run::{OnLate, RunView},
        view::View,
    },
    error::SchedulerError,
    store::record::{Gpu, Node},
};

/// How much may wait in the inbox. Whoever wants a slice waits for room in it; what is told
/// without waiting and finds no room makes the owner read the rows anew.
const INBOX: usize = 4096;

/// What somebody wants who wants a slice.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A new server or run, with a profile of this name.
    New {
        who: Who,
        profile: String,
        on_late: OnLate,
    },
    /// A server that is stopped.
    Start(ServerId),
}

/// The answer to a wish.
#[derive(Debug, Clone)]
pub(crate) enum Placed {
    Server(Box<View>),
    Run(Box<RunView>),
}

pub(super) type Reply = oneshot::Sender<Result<Placed, SchedulerError>>;

/// A wish and who waits for its answer.
#[derive(Debug)]
pub(super) struct Want {
    wish: Wish,
    attempt: Attempt,
    /// The trace of the request.
    traceparent: Option<String>,
    reply: Reply,
}

/// Gets the image, or why there is none that may be believed.
type Question = Box<dyn FnOnce(Result<&Image, Arc<SchedulerError>>, Timestamp) + Send>;

pub(super) enum Command {
    Want(Box<Want>),
    Changed(Who),
    Registered(Box<Node>, Vec<Gpu>),
    /// The mark of a node has changed: its row says how it is now.
    Marked(NodeId),
    Heard {
        node: NodeId,
        disk_free_bytes: u64,
        at: Timestamp,
    },
    /// A workload with this image has started on a node.
    Started {
        node: NodeId,
        image: String,
    },
    Ask(Question),
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Want(_) => "Want",
            Self::Changed(_) => "Changed",
            Self::Registered(..) => "Registered",
            Self::Marked(_) => "Marked",
            Self::Heard { .. } => "Heard",
            Self::Started { .. } => "Started",
            Self::Ask(_) => "Ask",
        })
    }
}

/// Whether this process leads the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It has not led for so short a time that whoever asks waits.
    Unsettled,
    /// In this term.
    Leads(u64),
    StandsBy,
}

/// How the rest of the service speaks to the owner.
#[derive(Debug)]
pub(crate) struct Cell {
    role: watch::Sender<Role>,
    ready: watch::Sender<bool>,
    inbox: mpsc::Sender<Command>,
    /// Until the owner takes it.
    outlet: Mutex<Option<mpsc::Receiver<Command>>>,
    /// Whether something was told that found no room.
    missed: Arc<AtomicBool>,
}

impl Cell {
    pub(crate) fn new() -> Self {
        let (inbox, outlet) = mpsc::channel(INBOX);
        Self {
            role: watch::Sender::new(Role::Unsettled),
            ready: watch::Sender::new(false),
            inbox,
            outlet: Mutex::new(Some(outlet)),
            missed: Arc::default(),
        }
    }

    /// Whether this process leads the cell: what others write is not heard of here, so they
    /// write nothing.
    pub(crate) fn leads(&self) -> bool {
        self.term().is_ok()
    }

    /// The term in which this process leads the cell, which each of its transactions names.
    ///
    /// # Errors
    /// [`SchedulerError::NotLeading`] when it does not.
    pub(crate) fn term(&self) -> Result<u64, SchedulerError> {
        match *self.role.borrow() {
            Role::Leads(term) => Ok(term),
            Role::Unsettled | Role::StandsBy => Err(SchedulerError::NotLeading),
        }
    }

    /// Waits until this process leads the cell.
    ///
    /// # Errors
    /// [`SchedulerError::NotLeading`] when it does not soon.
    pub(crate) async fn lead(&self) -> Result<(), SchedulerError> {
        let mut role = self.role.subscribe();
        let settled = role.wait_for(|role| *role != Role::Unsettled).await;
        match settled.map(|role| *role) {
            Ok(Role::Leads(_)) => Ok(()),
            Ok(Role::StandsBy) | Err(_) => Err(SchedulerError::NotLeading),
            Ok(Role::Unsettled) => Err(SchedulerError::Closing),
        }
    }

    /// Whether this process leads the cell, as it changes.
    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// For tests of what a leader does beside placing.
    #[cfg(test)]
    pub(crate) fn lead_at_once(&self) {
        self.turn_to(Role::Leads(0));
    }

    fn turn_to(&self, role: Role) {
        let leads = matches!(role, Role::Leads(_));
        self.ready
            .send_if_modified(|ready| std::mem::replace(ready, leads) != leads);
        self.role.send_if_modified(|now| {
            let changed = *now != role;
            *now = role;
            changed
        });
    }

    fn outlet(&self) -> Option<mpsc::Receiver<Command>> {
        let mut outlet = self.outlet.lock().unwrap_or_else(PoisonError::into_inner);
        outlet.take()
    }

    /// Gives a wish to the owner, and waits until it is granted, queued or refused, and
    /// written down.
    pub(crate) async fn want(
        &self,
        wish: Wish,
        attempt: &Attempt,
        traceparent: Option<String>,
    ) -> Result<Placed, SchedulerError> {
        let (reply, replied) = oneshot::channel();
        let want = Want {
            wish,
            attempt: attempt.clone(),
            traceparent,
            reply,
        };
        let sent = self.inbox.send(Command::Want(Box::new(want))).await;
        sent.map_err(|_| SchedulerError::Closing)?;
        replied.await.map_err(|_| SchedulerError::Closing)?
    }

    /// Asks the image something.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Image, Timestamp) -> T + Send + 'static,
    ) -> Result<T, SchedulerError> {
        let (reply, replied) = oneshot::channel();
        let question: Question = Box::new(move |image, now| {
            let answer = match image {
                Ok(image) => Ok(question(image, now)),
                Err(error) => Err(SchedulerError::Shared(error)),
            };
            // Who asked may have gone.
            let _ = reply.send(answer);
        });
        let sent = self.inbox.send(Command::Ask(question)).await;
        sent.map_err(|_| SchedulerError::Closing)?;
        // The owner drops questions while it does not lead.
        replied.await.map_err(|_| SchedulerError::NotLeading)?
    }

    /// Tells the owner of a change that is committed.
    pub(crate) fn changed(&self, who: Who) {
        self.tell(Command::Changed(who));
    }

    pub(crate) fn registered(&self, node: &Node, gpus: &[Gpu]) {
        self.tell(Command::Registered(Box::new(node.clone()), gpus.to_vec()));
    }

    /// Tells the owner that a node was cordoned or uncordoned. It reads the row: of two such
    /// commits, the later one may be told of first.
    pub(crate) fn marked(&self, node: NodeId) {
        self.tell(Command::Marked(node));
    }

    pub(crate) fn heard(&self, node: NodeId, disk_free_bytes: u64, at: Timestamp) {
        self.tell(Command::Heard {
            node,
            disk_free_bytes,
            at,
        });
    }

    pub(crate) fn started(&self, node: NodeId, image: &str) {
        self.tell(Command::Started {
            node,
            image: image.to_owned(),
        });
    }

    fn tell(&self, command: Command) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.inbox.try_send(command) {
            self.missed.store(true, Ordering::Release);
        }
    }
}
