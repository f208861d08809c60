//! One life of a workload: one launch under one fence, from its record on disk to its end.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cnlab_model::{Timestamp, id::VolumeId};
use cnlab_service::Runtime;
use node_core::{Holder, Phase, Slice, WorkloadId};
use node_sandbox::{Boottime, Lease};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    disk::{self, Durability},
    failure::Failure,
    notebook::Peer,
    ports::{Exit, Handle, Process},
};

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// Those of the grant.
    #[serde(alias = "slice", deserialize_with = "one_or_several")]
    pub(crate) slices: Vec<Slice>,
    pub(crate) image: String,
    pub(crate) packages: Vec<String>,
    pub(crate) heavy_packages: Vec<String>,
    pub(crate) install_heavy: bool,
    pub(crate) volume: VolumeId,
    pub(crate) storage_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_milli: u32,
    pub(crate) hostname: String,
    /// Of a run; a server runs a notebook.
    #[serde(default)]
    pub(crate) command: Option<Command>,
}

/// What a run runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) argv: Vec<String>,
    /// After which it is ended.
    pub(crate) max_runtime: Option<Duration>,
}

/// Why a life ended, where that is not its own doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndCause {
    /// Its longest time was over.
    MaxRuntime,
    /// Its grant could not be renewed.
    GrantExpired,
    /// Nobody knows: its supervisor was killed, or the machine was restarted.
    Lost,
}

/// Records of earlier versions have one slice and no list.
fn one_or_several<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Slice>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Slices {
        Several(Vec<Slice>),
        One(Slice),
    }
    Ok(match Slices::deserialize(from)? {
        Slices::Several(slices) => slices,
        Slices::One(slice) => vec![slice],
    })
}

/// What really runs, said as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) simulated_gpu: bool,
    pub(crate) installed: Vec<String>,
    pub(crate) not_installed: Vec<String>,
    pub(crate) enforced: Vec<String>,
    pub(crate) not_enforced: Vec<String>,
    /// How much of the volume is used; changes while the life goes on.
    pub(crate) storage: String,
    pub(crate) python_version: String,
}

/// What is on disk of a life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) holder: Holder,
    /// Absent for a stop that came before its launch.
    pub(crate) launch: Option<Launch>,
    pub(crate) phase: Phase,
    pub(crate) failure: Option<Failure>,
    /// How to find its process again.
    pub(crate) handle: Option<Handle>,
    /// The user that its processes run as.
    pub(crate) uid: Option<u32>,
    pub(crate) traceparent: Option<String>,
    pub(crate) facts: Facts,
    pub(crate) environment_was_ready: bool,
    pub(crate) changed_at: Timestamp,
    /// When the command of a run was started.
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    /// How it ended.
    #[serde(default)]
    pub(crate) exit: Option<Exit>,
    #[serde(default)]
    pub(crate) cause: Option<EndCause>,
}

impl Record {
    pub(crate) fn new(
        holder: Holder,
        launch: Option<Launch>,
        traceparent: Option<String>,
        now: Timestamp,
    ) -> Self {
        Self {
            holder,
            launch,
            phase: Phase::Accepted,
            failure: None,
            handle: None,
            uid: None,
            traceparent,
            facts: Facts::default(),
            environment_was_ready: false,
            changed_at: now,
            started_at: None,
            exit: None,
            cause: None,
        }
    }
}

/// A life at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) record: Record,
    /// A few words about what it does now.
    pub(crate) detail: String,
    /// Grows with every change, also across restarts of the node.
    pub(crate) sequence: u64,
}

/// A life in memory.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) holder: Holder,
    pub(crate) folder: PathBuf,
    /// Told when it must end.
    pub(crate) stop: CancellationToken,
    /// Set before that when its grant could not be renewed, with the time to end in.
    expired: OnceLock<Duration>,
    /// When this node-svc began with it.
    pub(crate) began: Boottime,
    /// Of a run, since the scheduler said to this node-svc that it may run.
    lease: watch::Sender<Option<Lease>>,
    /// Who has to hear of renewals: the process of a run, while it is not over.
    process: Mutex<Option<Arc<dyn Process>>>,
    state: Mutex<Snapshot>,
    over: watch::Sender<bool>,
    peer: OnceLock<Peer>,
    /// One more than the sequence that the scheduler took in; 0 before it took in any.
    taken_in: AtomicU64,
}

impl Life {
    pub(crate) fn new(folder: PathBuf, record: Record, detail: String) -> Self {
        let over = record.phase.is_over();
        let sequence = u64::try_from(record.changed_at.0).unwrap_or(0);
        Self {
            holder: record.holder,
            folder,
            stop: CancellationToken::new(),
            expired: OnceLock::new(),
            began: Boottime::now(),
            lease: watch::Sender::new(None),
            process: Mutex::default(),
            state: Mutex::new(Snapshot {
                record,
                detail,
                sequence,
            }),
            over: watch::Sender::new(over),
            peer: OnceLock::new(),
            taken_in: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, Snapshot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.state().clone()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().record.phase
    }

    pub(crate) fn volume(&self) -> Option<VolumeId> {
        self.state()
            .record
            .launch
            .as_ref()
            .map(|launch| launch.volume)
    }

    /// What it runs, for a run.
    pub(crate) fn command(&self) -> Option<Command> {
        let state = self.state();
        let launch = state.record.launch.as_ref();
        launch.and_then(|launch| launch.command.clone())
    }

    /// Whether its grant expires when it is not renewed: a run's does, a server's is sticky.
    pub(crate) fn expires(&self) -> bool {
        matches!(self.holder.workload, WorkloadId::Run(_))
    }

    /// For how long it may run, as far as the scheduler said so to this node-svc.
    pub(crate) fn lease(&self) -> Option<Lease> {
        *self.lease.borrow()
    }

    /// Waits until the scheduler has said that it may run.
    pub(crate) async fn first_lease(&self) -> Lease {
        let mut said = self.lease.subscribe();
        loop {
            if let Some(lease) = *said.borrow_and_update() {
                return lease;
            }
            // The sender lives in this value, so waiting cannot fail.
            drop(said.changed().await);
        }
    }

    /// Lets it run on for as long as this lease says, and says so to its process.
    pub(crate) fn renew(&self, lease: Lease) {
        self.lease.send_replace(Some(lease));
        self.tell_process();
    }

    /// Renewals are for this process from now on.
    pub(crate) fn set_process(&self, process: &Arc<dyn Process>) {
        *self.process() = Some(Arc::clone(process));
        // One may have come since the process was started.
        self.tell_process();
    }

    fn process(&self) -> MutexGuard<'_, Option<Arc<dyn Process>>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_process(&self) {
        if let (Some(lease), Some(process)) = (self.lease(), self.process().as_ref())
            && let Err(error) = process.renew(&lease)
        {
            // Then it ends in time.
            tracing::warn!(workload = %self.holder.workload, %error, "the lease of a run could not be renewed");
        }
    }

    /// Ends it, because its grant could not be renewed, and gives it so much time.
    pub(crate) fn expire(&self, grace: Duration) {
        if self.expired.set(grace).is_ok() {
            self.stop.cancel();
        }
    }

    /// Whether its grant could not be renewed; then, the time that its processes have to end.
    pub(crate) fn expired(&self) -> Option<Duration> {
        self.expired.get().copied()
    }

    /// Says that the scheduler took in the state of this sequence.
    pub(crate) fn set_taken_in(&self, sequence: u64) {
        self.taken_in
            .fetch_max(sequence.saturating_add(1), Ordering::Relaxed);
    }

    /// Whether the scheduler took in the state of this sequence, or a later one.
    pub(crate) fn is_taken_in(&self, sequence: u64) -> bool {
        self.taken_in.load(Ordering::Relaxed) > sequence
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits until its processes are gone and its slice is free.
    pub(crate) async fn over(&self) {
        // The sender lives in this value, so waiting cannot fail.
        drop(self.over.subscribe().wait_for(|over| *over).await);
    }

    /// Says that its processes are gone and its slice is free.
    pub(crate) fn set_over(&self) {
        *self.process() = None;
        self.over.send_replace(true);
    }

    /// Changes its state; whether that changed anything.
    pub(crate) fn update(&self, now: Timestamp, change: impl FnOnce(&mut Snapshot)) -> bool {
        let mut state = self.state();
        let before = (state.record.clone(), state.detail.clone());
        change(&mut state);
        if (&before.0, &before.1) == (&state.record, &state.detail) {
            return false;
        }
        if before.0.phase != state.record.phase {
            state.record.changed_at = now;
        }
        // Time is in it, so that the scheduler sees it grow after a restart that lost the count.
        let clock = u64::try_from(now.0).unwrap_or(0);
        state.sequence = clock.max(state.sequence.saturating_add(1));
        true
    }

    /// Makes the life's folder. Once only: a runner may open it to the workload's user later.
    fn make_folder(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        disk::make_dir(&self.folder, 0o700)
    }

    /// Writes the record. Blocks.
    pub(crate) fn keep(&self, durability: Durability) -> io::Result<()> {
        self.make_folder()?;
        // Under the lock, so that an older state never overwrites a newer one.
        let state = self.state();
        disk::write_json(&self.folder.join("record.json"), &state.record, durability)
    }

    /// Makes the notebook's own token. Blocks.
    pub(crate) fn make_token(&self, runtime: &Runtime) -> io::Result<()> {
        self.make_folder()?;
        let token: String = runtime
            .ids
            .secret()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        disk::write(
            &self.folder.join("token"),
            token.as_bytes(),
            Durability::Atomic,
        )
    }

    /// The notebook's own token. Blocks.
    pub(crate) fn token(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join("token"))
    }

    /// Its notebook, once its process runs.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.get()
    }

    pub(crate) fn set_peer(&self, peer: Peer) {
        // A second one would be the same: token and folder belong to the life.
        drop(self.peer.set(peer));
    }
}
