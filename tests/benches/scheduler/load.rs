//! The load: as fast as it goes, then at a steady rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cnlab_model::id::{TeamId, Ulid, UserId};
use cnlab_proto::scheduler::v1::{
    CreateServerRequest, Server, ServerState, server_service_client::ServerServiceClient,
};
use cnlab_service::{Caller, channel::UpstreamChannel};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::Instant;
use tonic::{Request, metadata::MetadataMap};

use crate::{
    Extent, row,
    site::{GPUS, Site},
};

/// Submissions under way at once, when it goes as fast as it can.
const AT_ONCE: usize = 64;
/// How long each kind of load lasts.
const LASTS: Duration = Duration::from_secs(10);
/// Of the steady load, per second, as a share of what was reached.
const STEADY: f64 = 0.5;
/// Slices of the smallest profile that a GPU holds.
const SLICES: usize = 10;
const GIGABYTE: u64 = 1_000_000_000;

#[derive(Debug)]
struct Client {
    servers: ServerServiceClient<UpstreamChannel>,
    metadata: MetadataMap,
    next: AtomicU32,
}

impl Client {
    fn new(site: &Site) -> Result<Self> {
        let caller = Caller {
            user_id: UserId::from_ulid(Ulid(1)),
            user_name: "ada".to_owned(),
            team_id: TeamId::from_ulid(Ulid(2)),
            projects: vec!["ada/bench".parse()?],
        };
        let mut headers = http::HeaderMap::new();
        caller.write_to(&mut headers);
        Ok(Self {
            servers: ServerServiceClient::new(site.channel.clone()),
            metadata: MetadataMap::from_headers(headers),
            next: AtomicU32::new(0),
        })
    }

    async fn submit(&self) -> Result<Server> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut request = Request::new(CreateServerRequest {
            name: format!("bench-{number}"),
            image: "jupyter:minimal".to_owned(),
            profile: "tenth".to_owned(),
            storage_bytes: GIGABYTE,
            project: "ada/bench".to_owned(),
            install_heavy: false,
            gpus: None,
        });
        *request.metadata_mut() = self.metadata.clone();
        Ok(self
            .servers
            .clone()
            .create_server(request)
            .await?
            .into_inner())
    }
}

/// Submits until the time is over or the cell is full.
pub(crate) async fn measure(site: &Site, extent: Extent) -> Result<()> {
    let client = Arc::new(Client::new(site)?);
    let lasts = match extent {
        Extent::Full => LASTS,
        Extent::Quick => Duration::from_secs(1),
    };
    let room = usize::try_from(site.nodes)? * GPUS * SLICES;
    let before = site.processor_micros()?;
    let began = Instant::now();
    // Half of the room is left to the steady load.
    let granted = stream::iter(0..room / 2)
        .take_while(|_| std::future::ready(began.elapsed() < lasts))
        .map(|_| client.submit())
        .buffer_unordered(AT_ONCE)
        .try_fold(0_u32, |granted, server| {
            let placed = server.state() == ServerState::Provisioning && server.grant.is_some();
            std::future::ready(if placed {
                Ok(granted + 1)
            } else {
                Err(anyhow::anyhow!("not placed with room: {server:?}"))
            })
        })
        .await?;
    let took = began.elapsed().as_secs_f64();
    let used = site.processor_micros()? - before;
    let rate = f64::from(granted) / took;
    let cell = format!("{} nodes x {GPUS} GPUs", site.nodes);
    let anchor = format!("{granted} submissions, {AT_ONCE} at once, SQLite");
    row(
        &format!("(G3) gRPC to durable grant, {cell}"),
        rate,
        "1/s",
        if site.nodes == 10_000 { ">= 10000" } else { "" },
        &anchor,
    );
    row(
        &format!("(G3) scheduler-svc's processor time per grant, {cell}"),
        used / f64::from(granted),
        "us",
        "",
        &anchor,
    );

    let rate = (rate * STEADY).max(1.0);
    let all = (rate * lasts.as_secs_f64()).min(room as f64 / 2.0);
    let waits = steady(&client, rate, all).await?;
    let anchor = format!(
        "{} submissions at {rate:.0}/s, measured from when they were due",
        waits.len()
    );
    for (name, share, target) in [
        ("p50", 0.5, ""),
        ("p99", 0.99, "<= 5000"),
        ("p99.9", 0.999, ""),
    ] {
        let target = if site.nodes == 10_000 { target } else { "" };
        let value = quantile(&waits, share).context("nothing was submitted")?;
        row(
            &format!("(G4) gRPC to durable grant, {cell}, {name}"),
            value,
            "us",
            target,
            &anchor,
        );
    }
    Ok(())
}

/// Submits at this rate, whatever the answers do, and answers how long each took from the
/// moment at which it was due: who waits behind a slow answer counts its wait.
async fn steady(client: &Arc<Client>, rate: f64, all: f64) -> Result<Vec<f64>> {
    let tasks = cnlab_service::Runtime::system().tasks;
    let began = Instant::now();
    let mut answers = Vec::new();
    let mut number = 0.0;
    while number < all {
        let due = began + Duration::from_secs_f64(number / rate);
        tokio::time::sleep_until(due).await;
        let client = Arc::clone(client);
        answers.push(tasks.spawn("submission", async move {
            let server = client.submit().await?;
            ensure!(server.grant.is_some(), "not placed with room: {server:?}");
            Ok(due.elapsed().as_secs_f64() * 1e6)
        }));
        number += 1.0;
    }
    let mut waits = Vec::new();
    for answer in answers {
        waits.push(answer.await??);
    }
    Ok(waits)
}

/// The value that this share of all values does not exceed (nearest rank).
fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank among far fewer than 2^52 values"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
