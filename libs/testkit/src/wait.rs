//! Waits for a condition with a deadline that is meant never to be reached.
//!
//! The deadline only turns a hang into a failure; no test may conclude anything from how long
//! a wait took.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

/// A deadline for things that normally take milliseconds, on a machine that is badly overloaded.
pub const GENEROUS: Duration = Duration::from_secs(60);

/// How long a poll sleeps; short, since most conditions become true within a few milliseconds.
const POLL: Duration = Duration::from_millis(10);

/// Polls `condition` until it is true.
///
/// # Errors
/// When `within` is over; the text names `what`.
pub async fn wait_until(
    within: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> anyhow::Result<()> {
    wait_for(within, what, async || condition().await.then_some(())).await
}

/// Polls `probe` until it gives a value, and returns that.
///
/// # Errors
/// When `within` is over; the text names `what`.
pub async fn wait_for<T>(
    within: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = probe().await {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("gave up waiting for {what} after {within:?}");
        }
        tokio::time::sleep(POLL).await;
    }
}
