//! What every lease store and counter must do, as checks that run against any of them.
//!
//! Each check gets an empty store of its own and uses tokio's time. None draws a conclusion from
//! how long something took: what must be alive has a long time to live, and what must end is
//! waited for.

mod counting;
mod electing;
mod expiring;
mod holding;
mod losing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Claim, Counter, LeaseError, LeaseStore};

pub use counting::{counts_up_to_the_limit, refills_over_time, refuses_impossible_costs};
pub use electing::{a_silent_leader_is_replaced, elects_one_leader, resigning_hands_over};
pub use expiring::{
    a_lagging_watcher_catches_up, each_watcher_sees_each_expiry, expiry_is_reported_once,
    fences_grow_over_expiry, taking_over_reports_the_lapsed_lease,
};
pub use holding::{
    a_batch_is_renewed_in_order, a_fence_has_one_life, a_holder_moves_to_a_higher_fence,
    names_may_hold_anything, one_of_many_acquirers_wins, refuses_bad_arguments,
    releases_only_its_own, repeats_without_harm, stale_fences_are_refused,
};
pub use losing::lost_data_are_noticed;

/// An empty store under test.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The leases.
    fn leases(&self) -> Arc<dyn LeaseStore>;
    /// The counters.
    fn counter(&self) -> Arc<dyn Counter>;
    /// Makes the store lose all its data.
    async fn lose_data(&self);
}

/// How a store broke the contract.
#[derive(Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<LeaseError> for Violation {
    fn from(error: LeaseError) -> Self {
        Self(format!("unexpected error: {error:?}"))
    }
}

/// The outcome of a check.
pub type Checked = Result<(), Violation>;

/// Long enough that nothing which must be alive ends by itself during a check.
const LONG: Duration = Duration::from_secs(3600);
/// Short, for what is to run out.
const SHORT: Duration = Duration::from_millis(200);
/// For waits that must come to an end.
const PATIENCE: Duration = Duration::from_secs(60);

fn claim(key: &str, holder: &str, fence: u64) -> Claim {
    Claim::new(key, holder, fence)
}

/// Compares, naming the place in words.
fn expect<T: PartialEq + fmt::Debug>(what: &str, found: &T, wanted: &T) -> Checked {
    if found == wanted {
        return Ok(());
    }
    Err(Violation(format!(
        "{what}: found {found:?}, wanted {wanted:?}"
    )))
}

fn ensure(what: &str, holds: bool) -> Checked {
    if holds {
        return Ok(());
    }
    Err(Violation(what.to_owned()))
}

/// Waits, without sweeping, until nobody holds the key.
async fn until_free(leases: &dyn LeaseStore, key: &str) -> Checked {
    let free = async {
        while leases.get(key).await?.is_some() {
            tokio::time::sleep(SHORT / 10).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, free)
        .await
        .unwrap_or_else(|_| Err(Violation(format!("{key} never ran out"))))
}
