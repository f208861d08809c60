//! Checks of leases that live: who gets one, keeps it and gives it back.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Checked, Fixture, LONG, Violation, claim, ensure, expect};
use crate::{Acquired, Claim, LeaseError, Lost, MAX_BATCH, MAX_NAME, Renewal};

/// The same request twice is one lease, and others are told who has it.
pub async fn repeats_without_harm(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mine = claim("k", "a", 7);
    expect("nobody holds it", &leases.get("k").await?, &None)?;
    expect(
        "first",
        &leases.acquire(&mine, LONG).await?,
        &Acquired::Acquired,
    )?;
    expect(
        "repeated",
        &leases.acquire(&mine, LONG).await?,
        &Acquired::Acquired,
    )?;
    let other = leases.acquire(&claim("k", "b", 8), LONG).await?;
    match other {
        Acquired::Held {
            holder,
            fence: 7,
            ttl_left,
        } if holder == "a" => {
            ensure(
                "time is left",
                ttl_left > Duration::ZERO && ttl_left <= LONG,
            )?;
        }
        answer => return Err(Violation(format!("a second holder was told {answer:?}"))),
    }
    let same_fence = leases.acquire(&claim("k", "b", 7), LONG).await?;
    ensure(
        "another holder with the fence",
        matches!(same_fence, Acquired::Held { .. }),
    )?;
    let lease = leases.get("k").await?;
    let seen = lease.map(|lease| (lease.holder, lease.fence));
    expect("the holder", &seen, &Some(("a".to_owned(), 7)))?;
    // Another key has nothing to do with it.
    expect(
        "other key",
        &leases.acquire(&claim("l", "b", 1), LONG).await?,
        &Acquired::Acquired,
    )
}

/// A fence below the highest one is refused, whoever comes with it.
pub async fn stale_fences_are_refused(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    // Also where a double would round.
    for highest in [7, (1 << 53) + 1, u64::MAX] {
        let key = format!("k{highest}");
        let stale = Acquired::StaleFence { highest };
        let mine = claim(&key, "a", highest);
        let lower = claim(&key, "b", highest - 1);
        leases.acquire(&mine, LONG).await?;
        expect("while held", &leases.acquire(&lower, LONG).await?, &stale)?;
        let own = claim(&key, "a", highest - 1);
        expect("own lower one", &leases.acquire(&own, LONG).await?, &stale)?;
        expect("release", &leases.release(&mine).await?, &true)?;
        expect(
            "after release",
            &leases.acquire(&lower, LONG).await?,
            &stale,
        )?;
        let renewed = leases.renew(std::slice::from_ref(&lower), LONG).await?;
        let lost = Lost::Superseded {
            holder: String::new(),
            fence: highest,
        };
        expect("renewal", &renewed, &vec![Renewal::Lost(lost)])?;
    }
    Ok(())
}

/// A fence that was released is used up, even when its request to acquire arrives afterwards.
pub async fn a_fence_has_one_life(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mine = claim("k", "a", 7);
    let stale = Acquired::StaleFence { highest: 7 };
    leases.acquire(&mine, LONG).await?;
    leases.release(&mine).await?;
    expect("same holder", &leases.acquire(&mine, LONG).await?, &stale)?;
    expect(
        "other holder",
        &leases.acquire(&claim("k", "b", 7), LONG).await?,
        &stale,
    )?;
    let ended = leases.renew(std::slice::from_ref(&mine), LONG).await?;
    expect("renewal", &ended, &vec![Renewal::Lost(Lost::Ended)])?;
    let next = claim("k", "b", 8);
    expect(
        "a higher one",
        &leases.acquire(&next, LONG).await?,
        &Acquired::Acquired,
    )?;
    // A release that overtakes its own acquire.
    let late = claim("l", "a", 3);
    expect("not held yet", &leases.release(&late).await?, &false)?;
    let stale = Acquired::StaleFence { highest: 3 };
    expect("late acquire", &leases.acquire(&late, LONG).await?, &stale)
}

/// A holder that was given a newer grant moves its own lease to it.
pub async fn a_holder_moves_to_a_higher_fence(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let (old, new) = (claim("k", "a", 7), claim("k", "a", 9));
    leases.acquire(&old, LONG).await?;
    expect(
        "the move",
        &leases.acquire(&new, LONG).await?,
        &Acquired::Acquired,
    )?;
    let superseded = Renewal::Lost(Lost::Superseded {
        holder: "a".to_owned(),
        fence: 9,
    });
    let answers = leases.renew(&[old.clone(), new], LONG).await?;
    expect("renewals", &answers, &vec![superseded, Renewal::Renewed])?;
    expect("release of the old", &leases.release(&old).await?, &false)?;
    ensure("the new one lives", leases.get("k").await?.is_some())
}

/// Only holder and fence together end a lease.
pub async fn releases_only_its_own(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mine = claim("k", "a", 7);
    leases.acquire(&mine, LONG).await?;
    for other in [
        claim("k", "b", 7),
        claim("k", "a", 6),
        claim("k", "a", 8),
        claim("k", "b", 8),
    ] {
        expect("somebody else's", &leases.release(&other).await?, &false)?;
        ensure("it lives on", leases.get("k").await?.is_some())?;
    }
    expect("its own", &leases.release(&mine).await?, &true)?;
    expect("nobody holds it", &leases.get("k").await?, &None)?;
    expect("repeated", &leases.release(&mine).await?, &false)
}

/// A batch of more than one round trip, with losses in between, is answered in its order.
pub async fn a_batch_is_renewed_in_order(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let batch: Vec<Claim> = (0..2 * MAX_BATCH + 500)
        .map(|n| claim(&format!("k{n}"), "node", 5))
        .collect();
    let short = LONG / 2;
    let mut wanted = Vec::new();
    for (n, one) in batch.iter().enumerate() {
        if n % 7 == 3 {
            wanted.push(Renewal::Lost(Lost::Absent));
            continue;
        }
        leases.acquire(one, short).await?;
        if n % 7 == 5 {
            leases.release(one).await?;
            wanted.push(Renewal::Lost(Lost::Ended));
        } else {
            wanted.push(Renewal::Renewed);
        }
    }
    expect("answers", &leases.renew(&batch, LONG).await?, &wanted)?;
    let last = leases.get("k0").await?;
    ensure(
        "it was prolonged",
        last.is_some_and(|lease| lease.ttl_left > short),
    )?;
    expect("none at all", &leases.renew(&[], LONG).await?, &Vec::new())
}

/// Of 64 that ask at once one wins, and all know it.
pub async fn one_of_many_acquirers_wins(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mut asking = JoinSet::new();
    for n in 0..64_u64 {
        let leases = Arc::clone(&leases);
        asking.spawn(async move {
            let mine = claim("k", &format!("holder-{n}"), 100 + n);
            (mine.clone(), leases.acquire(&mine, LONG).await)
        });
    }
    let mut winners = Vec::new();
    while let Some(asked) = asking.join_next().await {
        let (mine, answer) = asked.map_err(|error| Violation(error.to_string()))?;
        if answer? == Acquired::Acquired {
            winners.push(mine);
        }
    }
    expect("winners", &winners.len(), &1)?;
    let holder = leases
        .get("k")
        .await?
        .map(|lease| (lease.holder, lease.fence));
    let winner = winners.pop().map(|claim| (claim.holder, claim.fence));
    expect("the holder", &holder, &winner)
}

/// Names are opaque bytes to the store.
pub async fn names_may_hold_anything(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let long = "x".repeat(MAX_NAME);
    for key in ["a b", "{c}", "d\ne", "f:g", "ü€𝄞", "0", " ", long.as_str()] {
        for holder in ["a b", "{c}\n", long.as_str()] {
            let mine = claim(key, holder, 1);
            expect(
                "taken",
                &leases.acquire(&mine, LONG).await?,
                &Acquired::Acquired,
            )?;
            let seen = leases.get(key).await?.map(|lease| lease.holder);
            expect("the holder", &seen.as_deref(), &Some(holder))?;
            expect("given back", &leases.release(&mine).await?, &true)?;
            // The next round needs a fence of its own; a move of the key's data to it will do.
            let next = claim(key, holder, 2);
            leases.acquire(&next, LONG).await?;
            expect("given back", &leases.release(&next).await?, &true)?;
            fixture.lose_data().await;
        }
    }
    Ok(())
}

/// Arguments out of bounds are refused before anything happens.
pub async fn refuses_bad_arguments(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let invalid = |what: &str, error: Option<LeaseError>| {
        ensure(what, matches!(error, Some(LeaseError::Invalid { .. })))
    };
    let long = "x".repeat(MAX_NAME + 1);
    for bad in [
        claim("", "a", 1),
        claim("k", "", 1),
        claim(&long, "a", 1),
        claim("k", &long, 1),
    ] {
        invalid("acquire", leases.acquire(&bad, LONG).await.err())?;
        invalid(
            "renew",
            leases
                .renew(&[claim("l", "a", 1), bad.clone()], LONG)
                .await
                .err(),
        )?;
        invalid("release", leases.release(&bad).await.err())?;
    }
    let good = claim("k", "a", 1);
    for ttl in [Duration::ZERO, Duration::from_micros(10), LONG * 24 * 400] {
        invalid("ttl", leases.acquire(&good, ttl).await.err())?;
        invalid(
            "ttl",
            leases.renew(std::slice::from_ref(&good), ttl).await.err(),
        )?;
    }
    invalid("get", leases.get("").await.err())
}
