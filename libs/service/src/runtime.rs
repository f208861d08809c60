//! What a service takes from outside: time, ids, randomness and the spawning of tasks, so
//! that the same code runs in a test with a clock of its own.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use cnlab_model::{Timestamp, id::Ulid};
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

/// Wall-clock time. Intervals inside a process use `tokio::time::Instant`.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// Fresh ids and secrets.
pub trait IdSource: fmt::Debug + Send + Sync {
    /// A new ULID; later ones sort after earlier ones.
    fn ulid(&self) -> Ulid;
    /// 256 unpredictable bits.
    fn secret(&self) -> [u8; 32];
}

/// Everything that a service takes from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Ids and secrets.
    pub ids: Arc<dyn IdSource>,
    /// Where tasks are spawned.
    pub tasks: Tasks,
}

impl Runtime {
    /// The real clock and the operating system's randomness.
    #[must_use]
    pub fn system() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            tasks: Tasks::default(),
        }
    }

    /// A clock that stands still until it is moved, and ids that repeat with the seed.
    #[must_use]
    pub fn for_tests(clock: TestClock, ids: SeededIds) -> Self {
        Self {
            clock: Arc::new(clock),
            ids: Arc::new(ids),
            tasks: Tasks::default(),
        }
    }

    /// The same sources with a set of tasks of its own, so that one service can be stopped
    /// while others of the process go on.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            clock: Arc::clone(&self.clock),
            ids: Arc::clone(&self.ids),
            tasks: Tasks::default(),
        }
    }
}

#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }
}

#[derive(Debug)]
struct SystemIds;

impl IdSource for SystemIds {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that makes ids"
    )]
    fn ulid(&self) -> Ulid {
        Ulid::generate()
    }

    #[expect(
        clippy::expect_used,
        reason = "without randomness no secret may be made, and nothing can go on"
    )]
    fn secret(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system gives randomness");
        bytes
    }
}

/// A clock that stands still until somebody moves it.
#[derive(Debug, Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    /// A clock that shows this time.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.0)))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let now = Timestamp(self.0.load(Ordering::SeqCst)).plus(by);
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Sets it, backwards too.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// Ids that repeat with the seed. Never for production: the secrets are predictable.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    next: AtomicU64,
}

impl SeededIds {
    /// Ids that depend on this seed only.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            next: AtomicU64::new(1),
        }
    }
}

impl IdSource for SeededIds {
    fn ulid(&self) -> Ulid {
        let next = self.next.fetch_add(1, Ordering::SeqCst);
        Ulid(u128::from(self.seed) << 64 | u128::from(next))
    }

    fn secret(&self) -> [u8; 32] {
        use sha2::Digest as _;
        let next = self.next.fetch_add(1, Ordering::SeqCst);
        let mut hash = sha2::Sha256::new();
        hash.update(self.seed.to_le_bytes());
        hash.update(next.to_le_bytes());
        hash.finalize().into()
    }
}

/// The tasks of one service: named, counted, told to stop together and waited for.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
}

impl Tasks {
    /// Spawns a task that keeps the present span. It is waited for at shutdown; a long one
    /// watches [`Tasks::token`].
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that spawns"
    )]
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.prepared(name, future))
    }

    /// As [`Tasks::spawn`], on another tokio runtime than the present one.
    pub fn spawn_on<F>(&self, on: &Handle, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        on.spawn(self.prepared(name, future))
    }

    fn prepared<F: Future>(
        &self,
        name: &'static str,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        self.tracker.track_future(
            async move {
                tracing::trace!(task = name, "task started");
                future.await
            }
            .instrument(tracing::Span::current()),
        )
    }

    /// Cancelled when the service shuts down.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Tells every task to stop and waits for them, at most this long. Answers whether all
    /// of them ended.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait())
            .await
            .is_ok()
    }
}
