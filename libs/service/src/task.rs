//! Background work: loops that are ticked, and requests that outlive their connection.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::{Notify, oneshot};
use tonic::{Response, Status};

use crate::runtime::Tasks;

/// When a worker wants its next tick. A [`Wake`] ends every wait early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// After this time.
    After(Duration),
    /// When somebody wakes it.
    WhenWoken,
}

/// Wakes a worker early. A wake while the worker runs is kept for its next wait.
#[derive(Debug, Clone, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// One that nobody has used yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Waits for a wake.
    pub async fn woken(&self) {
        self.0.notified().await;
    }
}

type Tick = dyn Fn() -> Pin<Box<dyn Future<Output = Next> + Send>> + Send + Sync;

/// A loop of a service: the kit calls its tick until shutdown, tests call the tick itself.
pub struct Worker {
    name: &'static str,
    wake: Wake,
    tick: Box<Tick>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker of this name.
    pub fn new<F, T>(name: &'static str, wake: Wake, tick: T) -> Self
    where
        T: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Next> + Send + 'static,
    {
        Self {
            name,
            wake,
            tick: Box::new(move || Box::pin(tick())),
        }
    }

    /// Ticks until the tasks are told to stop; a tick that has begun is finished.
    pub(crate) async fn run(self, tasks: Tasks) {
        let token = tasks.token().clone();
        while !token.is_cancelled() {
            let wait = match (self.tick)().await {
                Next::Now => continue,
                Next::After(wait) => wait,
                Next::WhenWoken => Duration::MAX,
            };
            tokio::select! {
                () = token.cancelled() => break,
                () = self.wake.woken() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        tracing::debug!(worker = self.name, "worker stopped");
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }
}

/// Runs a mutating request on a task of its own, so that a caller that hangs up cannot
/// leave it half done; the caller that stays gets its answer.
///
/// # Errors
/// Those of the request; INTERNAL when it panicked.
pub async fn detached<T: Send + 'static>(
    tasks: &Tasks,
    name: &'static str,
    request: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
) -> Result<Response<T>, Status> {
    let (answer, answered) = oneshot::channel();
    tasks.spawn(name, async move {
        if answer.send(request.await).is_err() {
            tracing::debug!(request = name, "caller hung up before the answer");
        }
    });
    answered.await.map_err(|_| {
        tracing::error!(request = name, "request panicked");
        Status::internal("internal error")
    })?
}

/// Waits between tries: doubling from a least to a most, spread by a quarter so that many
/// do not retry in step.
#[derive(Debug, Clone)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    tries: u32,
}

impl Backoff {
    /// Waits between these two.
    #[must_use]
    pub const fn new(least: Duration, most: Duration) -> Self {
        Self {
            least,
            most,
            tries: 0,
        }
    }

    /// The wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self
            .least
            .saturating_mul(1 << self.tries.min(16))
            .min(self.most);
        self.tries = self.tries.saturating_add(1);
        // Weyl sequence: spread without a source of randomness.
        let spread = self.tries.wrapping_mul(0x9E37_79B9) >> 24;
        wait - wait / 4 * spread / 255
    }

    /// Begins anew after a success.
    pub const fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn backoff_grows_to_its_most_and_stays_above_three_quarters() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<_> = (0..20).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] <= Duration::from_millis(100) && waits[0] >= Duration::from_millis(75));
        assert!(waits[19] <= Duration::from_secs(5) && waits[19] >= Duration::from_millis(3750));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hang_up_does_not_stop_a_detached_request() {
        let tasks = Tasks::default();
        let done = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&done);
        let request = detached(&tasks, "test", async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(Response::new(()))
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(1), request)
                .await
                .is_err()
        );
        assert!(tasks.stop(Duration::from_secs(10)).await);
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_panic_answers_internal() {
        let tasks = Tasks::default();
        let answer: Result<Response<()>, _> =
            detached(&tasks, "test", async { panic!("on purpose") }).await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Internal);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_ticks_when_woken_and_stops() {
        let tasks = Tasks::default();
        let wake = Wake::new();
        let ticks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ticks);
        let worker = Worker::new("test", wake.clone(), move || {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Next::WhenWoken)
        });
        let running = tasks.spawn("worker", worker.run(tasks.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ticks.load(Ordering::SeqCst), 1);
        wake.wake();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ticks.load(Ordering::SeqCst), 2);
        assert!(tasks.stop(Duration::from_secs(1)).await);
        running.await.unwrap();
    }
}
