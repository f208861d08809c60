//! Checks of what happens when the store forgets everything.

use super::{Checked, Fixture, LONG, PATIENCE, SHORT, Violation, claim, ensure, expect};
use crate::{Acquired, ExpiryWatch, LeaseEvent, LeaseExpired, Lost, Renewal};

/// Lost data are another epoch, which a watcher is told; holders then come back as they were.
pub async fn lost_data_are_noticed(fixture: &dyn Fixture) -> Checked {
    let leases = fixture.leases();
    let before = leases.epoch().await?;
    expect("the epoch stays", &leases.epoch().await?, &before)?;
    let mut watch = ExpiryWatch::new(fixture.leases());
    // Some events, so that the watcher's place in them is beyond what the new life has.
    for n in 0..5 {
        leases
            .acquire(&claim(&format!("k{n}"), "a", 1), SHORT)
            .await?;
    }
    let mut expired = 0;
    while expired < 5 {
        let events = tokio::time::timeout(PATIENCE, watch.next()).await;
        let events = events.map_err(|_| Violation("no expiry was noticed".to_owned()))??;
        expired += events
            .iter()
            .filter(|one| matches!(one, LeaseEvent::Expired(_)))
            .count();
    }
    let mine = claim("k", "a", 7);
    leases.acquire(&mine, LONG).await?;

    fixture.lose_data().await;

    let answers = leases.renew(std::slice::from_ref(&mine), LONG).await?;
    expect("renewal", &answers, &vec![Renewal::Lost(Lost::Absent)])?;
    expect(
        "back again",
        &leases.acquire(&mine, LONG).await?,
        &Acquired::Acquired,
    )?;
    leases.acquire(&claim("short", "a", 3), SHORT).await?;
    let after = leases.epoch().await?;
    ensure("the epoch is another", after != before)?;
    let mut seen = Vec::new();
    let wanted = LeaseEvent::Expired(LeaseExpired {
        key: "short".to_owned(),
        fence: 3,
    });
    while !seen.contains(&wanted) {
        let events = tokio::time::timeout(PATIENCE, watch.next()).await;
        seen.extend(events.map_err(|_| Violation("no expiry was noticed".to_owned()))??);
    }
    let reset = LeaseEvent::Reset { epoch: after };
    expect("what was seen", &seen, &vec![reset, wanted])
}
