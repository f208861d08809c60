//! Checks of elections over a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::{Checked, Fixture, LONG, PATIENCE, Violation, ensure, expect};
use crate::{Election, FenceSource, Role, Step};

/// Stands in for the counter in a service's database.
#[derive(Debug, Default)]
struct Fences(AtomicU64);

#[async_trait]
impl FenceSource for Fences {
    async fn next_fence(&self) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

fn candidate(fixture: &dyn Fixture, name: &str, ttl: Duration) -> Election {
    Election::new(fixture.leases(), "scheduler", name, ttl)
}

async fn tick(election: &mut Election, fences: &Fences) -> Result<Step, Violation> {
    let mut step = election.tick(fences).await;
    step.trouble
        .take()
        .map_or(Ok(step), |trouble| Err(Violation(trouble.to_string())))
}

/// Of three candidates one leads, and stays leader under its fence.
pub async fn elects_one_leader(fixture: &dyn Fixture) -> Checked {
    let fences = Fences::default();
    let mut candidates = ["a", "b", "c"].map(|name| candidate(fixture, name, LONG));
    let mut terms = Vec::new();
    for _ in 0..3 {
        for election in &mut candidates {
            let step = tick(election, &fences).await?;
            ensure("it wakes within a third", step.wake_in <= LONG / 3)?;
            if let Role::Leader { fence, .. } = step.role {
                terms.push(fence);
            }
        }
    }
    expect("one leader, one term", &terms, &vec![1, 1, 1])?;
    let leading: Vec<_> = candidates.iter().filter_map(Election::leads).collect();
    expect("who believes to lead", &leading, &vec![1])
}

/// A leader that resigns is followed at once by another, under a higher fence.
pub async fn resigning_hands_over(fixture: &dyn Fixture) -> Checked {
    let fences = Fences::default();
    let (mut one, mut two) = (candidate(fixture, "a", LONG), candidate(fixture, "b", LONG));
    tick(&mut one, &fences).await?;
    expect(
        "a follower resigns for free",
        &two.resign().await.is_ok(),
        &true,
    )?;
    expect("one leads", &one.leads(), &Some(1))?;
    one.resign().await?;
    expect("one leads no more", &one.leads(), &None)?;
    tick(&mut two, &fences).await?;
    expect("two leads", &two.leads(), &Some(2))?;
    let step = tick(&mut one, &fences).await?;
    expect("one follows", &step.role, &Role::Follower)
}

/// A leader that falls silent loses its term, and knows it by its own clock.
pub async fn a_silent_leader_is_replaced(fixture: &dyn Fixture) -> Checked {
    let fences = Fences::default();
    let ttl = Duration::from_millis(300);
    let (mut silent, mut other) = (candidate(fixture, "a", ttl), candidate(fixture, "b", LONG));
    while silent.leads().is_none() {
        let step = tick(&mut silent, &fences).await?;
        tokio::time::sleep(step.wake_in.min(ttl / 10)).await;
    }
    let waiting = async {
        loop {
            let step = tick(&mut other, &fences).await?;
            if let Role::Leader { fence, .. } = step.role {
                return Ok(fence);
            }
            tokio::time::sleep(step.wake_in.min(ttl)).await;
        }
    };
    let fence = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| Err(Violation("nobody took over".to_owned())))?;
    expect("the silent one", &silent.leads(), &None)?;
    ensure("the fence grew", fence > 1)?;
    // It wakes up: first it sees that its term is over, then that somebody else leads.
    for _ in 0..2 {
        expect(
            "follows",
            &tick(&mut silent, &fences).await?.role,
            &Role::Follower,
        )?;
    }
    expect("the other still leads", &other.leads(), &Some(fence))
}
