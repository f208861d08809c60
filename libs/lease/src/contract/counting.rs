//! Checks of rate counters.

use std::time::Duration;

use super::{Checked, Fixture, LONG, PATIENCE, Violation, ensure, expect};
use crate::{LeaseError, Rate, Taken};

/// A full bucket gives its limit and not more, each key for itself.
pub async fn counts_up_to_the_limit(fixture: &dyn Fixture) -> Checked {
    let counter = fixture.counter();
    let rate = Rate {
        limit: 5,
        window: LONG,
    };
    for remaining in [4, 3, 2, 1, 0] {
        let taken = counter.take("k", 1, rate).await?;
        expect("one", &taken, &Taken::Allowed { remaining })?;
    }
    match counter.take("k", 1, rate).await? {
        Taken::Refused { retry_after } => ensure(
            "a fifth of the window at most",
            retry_after > Duration::ZERO && retry_after <= LONG / 5,
        )?,
        taken @ Taken::Allowed { .. } => {
            return Err(Violation(format!("a sixth was answered with {taken:?}")));
        }
    }
    expect(
        "nothing costs nothing",
        &counter.take("k", 0, rate).await?,
        &Taken::Allowed { remaining: 0 },
    )?;
    expect(
        "other key",
        &counter.take("l", 5, rate).await?,
        &Taken::Allowed { remaining: 0 },
    )?;
    fixture.lose_data().await;
    expect(
        "forgotten",
        &counter.take("k", 5, rate).await?,
        &Taken::Allowed { remaining: 0 },
    )
}

/// After the time it was told, a request fits.
pub async fn refills_over_time(fixture: &dyn Fixture) -> Checked {
    let counter = fixture.counter();
    let rate = Rate {
        limit: 2,
        window: Duration::from_millis(200),
    };
    let mut refused = 0;
    let taking = async {
        // On a slow machine the bucket may refill before it is empty; go on until it was.
        while refused < 5 {
            if let Taken::Refused { retry_after } = counter.take("k", 2, rate).await? {
                refused += 1;
                tokio::time::sleep(retry_after + Duration::from_millis(1)).await;
                let taken = counter.take("k", 2, rate).await?;
                ensure(
                    "it fits after the wait",
                    matches!(taken, Taken::Allowed { .. }),
                )?;
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, taking)
        .await
        .unwrap_or_else(|_| Err(Violation("nothing was ever refused".to_owned())))
}

/// A request that could never be allowed is an error, not a wait for ever.
pub async fn refuses_impossible_costs(fixture: &dyn Fixture) -> Checked {
    let counter = fixture.counter();
    let rate = |limit, window| Rate { limit, window };
    for (key, cost, rate) in [
        ("k", 6, rate(5, LONG)),
        ("k", 1, rate(0, LONG)),
        ("k", 1, rate(5, Duration::ZERO)),
        ("k", 1, rate(5, LONG * 24 * 400)),
        ("", 1, rate(5, LONG)),
    ] {
        let error = counter.take(key, cost, rate).await.err();
        ensure("refused", matches!(error, Some(LeaseError::Invalid { .. })))?;
    }
    // The largest numbers do not overflow.
    let most = rate(u64::MAX, LONG * 24 * 366);
    expect(
        "all",
        &counter.take("k", u64::MAX, most).await?,
        &Taken::Allowed { remaining: 0 },
    )
}
