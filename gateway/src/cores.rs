//! Threads that share nothing: each serves its own connections and makes its own to the
//! services and nodes behind.
//!
//! With one runtime for all, a request that passes through three tasks wakes a sleeping
//! thread for nearly every step (docs/benchmarks/front.md, part d).

use std::{
    io, iter,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::listener::Held;

/// The threads and what each of them serves with.
#[derive(Debug)]
pub struct Cores<T> {
    cores: Vec<Core<T>>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Core<T> {
    handle: Handle,
    serves: T,
    connections: Arc<AtomicUsize>,
    ended: oneshot::Receiver<()>,
    _stop: DropGuard,
}

impl<T> Cores<T> {
    /// One thread per processor that this process may use. `make` runs in the context of each
    /// thread's runtime, so that what it spawns stays there.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be had, or `make` fails.
    pub fn start<E: From<io::Error>>(make: impl Fn() -> Result<T, E>) -> Result<Self, E> {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let cores = (0..count).map(|number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let serves = {
                let _inside = handle.enter();
                make()?
            };
            let stop = CancellationToken::new();
            let (end, ended) = oneshot::channel();
            let stopped = stop.clone();
            thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(move || {
                    runtime.block_on(stopped.cancelled());
                    // Whatever blocks (the lookup of a name) must not hold up the end.
                    runtime.shutdown_background();
                    // Nobody waits when the service was dropped instead of stopped.
                    let _ = end.send(());
                })?;
            Ok(Core {
                handle,
                serves,
                connections: Arc::default(),
                ended,
                _stop: stop.drop_guard(),
            })
        });
        Ok(Self {
            cores: cores.collect::<Result<_, E>>()?,
            turn: AtomicUsize::new(0),
        })
    }

    /// The thread with the fewest connections, in turns where several have; none only when
    /// there is no thread.
    pub fn least(&self) -> Option<(&Handle, &T, Held)> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.cores.len().max(1);
        let (before, after) = self.cores.split_at_checked(turn)?;
        let core = iter::chain(after, before)
            .min_by_key(|core| core.connections.load(Ordering::Relaxed))?;
        Some((&core.handle, &core.serves, Held::one_of(&core.connections)))
    }

    /// Ends the threads and waits for them.
    pub async fn stop(self) {
        let ends: Vec<_> = self.cores.into_iter().map(|core| core.ended).collect();
        for ended in ends {
            // An error is a thread that has ended by a panic.
            let _ = ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_spread_evenly_and_threads_end() {
        let cores = Cores::start(|| Ok::<_, io::Error>(thread::current().id())).unwrap();
        let count = cores.cores.len();
        let held: Vec<_> = (0..count * 3).map(|_| cores.least().unwrap().2).collect();
        for core in &cores.cores {
            assert_eq!(core.connections.load(Ordering::Relaxed), 3);
        }
        drop(held);
        let (handle, ..) = cores.least().unwrap();
        let named = handle
            .spawn(async { thread::current().name().map(str::to_owned) })
            .await
            .unwrap();
        assert!(named.unwrap().starts_with("gateway-"));
        cores.stop().await;
    }
}
