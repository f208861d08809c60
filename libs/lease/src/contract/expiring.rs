//! Checks of leases that run out, and of those who watch them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Checked, Fixture, LONG, PATIENCE, SHORT, Violation, claim, ensure, expect, until_free,
};
use crate::{Acquired, ExpiryWatch, LeaseEvent, LeaseExpired, Lost, Renewal, SWEEP_EVERY};

/// A watch that has had its first tick, and all that it saw since.
struct Watched {
    watch: ExpiryWatch,
    seen: BTreeMap<LeaseExpired, usize>,
}

impl Watched {
    async fn start(fixture: &dyn Fixture) -> Result<Self, Violation> {
        let mut watch = ExpiryWatch::new(fixture.leases());
        let (first, wait) = watch.tick().await?;
        let reset = matches!(first.as_slice(), [LeaseEvent::Reset { .. }]);
        ensure("a watch starts with a reset and nothing else", reset)?;
        ensure("the next sweep is soon", wait <= SWEEP_EVERY)?;
        let seen = BTreeMap::new();
        Ok(Self { watch, seen })
    }

    /// Follows the events until `count` different leases have run out.
    async fn until(&mut self, count: usize) -> Checked {
        let wait = async {
            while self.seen.len() < count {
                self.note().await?;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| Err(Violation("an expiry was never noticed".to_owned())))
    }

    async fn note(&mut self) -> Checked {
        for event in self.watch.next().await? {
            match event {
                LeaseEvent::Expired(expired) => *self.seen.entry(expired).or_default() += 1,
                LeaseEvent::Reset { epoch } => {
                    return Err(Violation(format!("a reset to {epoch} without a cause")));
                }
            }
        }
        Ok(())
    }

    fn times(&self, key: &str, fence: u64) -> usize {
        let expired = LeaseExpired {
            key: key.to_owned(),
            fence,
        };
        self.seen.get(&expired).copied().unwrap_or(0)
    }
}

/// What runs out is reported once; what was released or lives is not.
pub async fn expiry_is_reported_once(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mut watched = Watched::start(fixture).await?;
    let released = claim("released", "a", 1);
    leases.acquire(&released, SHORT).await?;
    leases.release(&released).await?;
    leases.acquire(&claim("living", "a", 1), LONG).await?;
    leases.acquire(&claim("silent", "a", 4), SHORT).await?;
    watched.until(1).await?;
    leases.acquire(&claim("later", "a", 5), SHORT).await?;
    watched.until(2).await?;
    expect("silent", &watched.times("silent", 4), &1)?;
    expect("later", &watched.times("later", 5), &1)?;
    expect("silent is gone", &leases.get("silent").await?, &None)?;
    ensure("living lives", leases.get("living").await?.is_some())
}

/// After the time ran out its holder may come back, another needs a higher fence.
pub async fn fences_grow_over_expiry(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mine = claim("k", "a", 7);
    for swept in [false, true] {
        leases.acquire(&mine, SHORT).await?;
        until_free(&*leases, "k").await?;
        if swept {
            ExpiryWatch::new(fixture.leases()).tick().await?;
        }
        let ended = leases.renew(std::slice::from_ref(&mine), LONG).await?;
        expect("not revived", &ended, &vec![Renewal::Lost(Lost::Ended)])?;
        let thief = leases.acquire(&claim("k", "b", 7), LONG).await?;
        expect("same fence", &thief, &Acquired::StaleFence { highest: 7 })?;
        let thief = leases.acquire(&claim("k", "b", 6), LONG).await?;
        expect("lower fence", &thief, &Acquired::StaleFence { highest: 7 })?;
    }
    expect(
        "came back",
        &leases.acquire(&mine, SHORT).await?,
        &Acquired::Acquired,
    )?;
    until_free(&*leases, "k").await?;
    let next = claim("k", "b", 8);
    expect(
        "a higher fence",
        &leases.acquire(&next, LONG).await?,
        &Acquired::Acquired,
    )?;
    let stale = leases.acquire(&mine, LONG).await?;
    expect(
        "the old holder",
        &stale,
        &Acquired::StaleFence { highest: 8 },
    )?;
    let lost = Lost::Superseded {
        holder: "b".to_owned(),
        fence: 8,
    };
    let renewed = leases.renew(std::slice::from_ref(&mine), LONG).await?;
    expect("its renewal", &renewed, &vec![Renewal::Lost(lost)])?;
    expect("its release", &leases.release(&mine).await?, &false)?;
    ensure("the new one lives", leases.get("k").await?.is_some())
}

/// A lease that is taken over before any sweep saw it run out is reported all the same.
pub async fn taking_over_reports_the_lapsed_lease(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mut watched = Watched::start(fixture).await?;
    leases.acquire(&claim("acquired", "a", 1), SHORT).await?;
    leases.acquire(&claim("released", "a", 1), SHORT).await?;
    until_free(&*leases, "acquired").await?;
    until_free(&*leases, "released").await?;
    leases.acquire(&claim("acquired", "b", 2), LONG).await?;
    leases.release(&claim("released", "b", 2)).await?;
    watched.until(2).await?;
    expect("acquired", &watched.times("acquired", 1), &1)?;
    expect("released", &watched.times("released", 1), &1)
}

/// Two watchers of one store each see everything.
pub async fn each_watcher_sees_each_expiry(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mut one = Watched::start(fixture).await?;
    let mut two = Watched::start(fixture).await?;
    for n in 0..20 {
        leases
            .acquire(&claim(&format!("k{n}"), "a", n), SHORT)
            .await?;
    }
    one.until(20).await?;
    two.until(20).await?;
    ensure(
        "each once",
        one.seen
            .values()
            .chain(two.seen.values())
            .all(|times| *times == 1),
    )
}

/// More events than one sweep returns reach a watcher that did not look for a while; one that
/// slept through more than the store keeps is told so.
pub async fn a_lagging_watcher_catches_up(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let mut lagging = Watched::start(fixture).await?;
    let mut asleep = ExpiryWatch::new(Arc::clone(&leases));
    asleep.tick().await?;
    let mut busy = Watched::start(fixture).await?;
    for n in 0..2500 {
        leases
            .acquire(&claim(&format!("k{n}"), "a", 1), SHORT)
            .await?;
    }
    busy.until(2500).await?;
    lagging.until(2500).await?;
    ensure("each once", lagging.seen.values().all(|times| *times == 1))?;
    // Many lives of a few keys: each superseded after it ran out, hence reported.
    let brief = Duration::from_millis(1);
    for n in 0..11_000 {
        let mine = claim(&format!("m{}", n % 500), "a", 2 + n);
        leases.acquire(&mine, brief).await?;
        if n % 500 == 499 {
            tokio::time::sleep(brief * 2).await;
        }
    }
    let mut resets = 0;
    while resets == 0 {
        let (events, _) = asleep.tick().await?;
        ensure("events come", !events.is_empty())?;
        resets += events
            .iter()
            .filter(|event| matches!(event, LeaseEvent::Reset { .. }))
            .count();
    }
    Ok(())
}
