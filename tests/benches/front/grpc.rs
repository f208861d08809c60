//! A call through the gateway beside the same call without it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cnlab_proto::billing::v1::{WhoAmIRequest, account_service_client::AccountServiceClient};
use cnlab_service::{Runtime, Secret, channel};
use tokio::time::Instant;
use tonic::{Request, metadata::MetadataMap};

use crate::{
    Extent,
    figures::{median, micros, quantile},
    gateway::Gateway,
    machine, peers,
    rows::{Row, say},
    upstream,
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Calls in turns: directly, with the internal key and the caller that the gateway would name;
/// through the gateway, with a token.
pub(crate) async fn measure(extent: Extent) -> Result<Vec<Row>> {
    let runtime = Runtime::system();
    let key = Secret::new(runtime.ids.ulid().to_string().repeat(2));
    let node = upstream::serve(&runtime.tasks).await?;
    let peers = peers::start(&key, node).await?;
    let gateway = Gateway::start(&machine::cores()?, &key, &peers.endpoint()).await?;

    let mut direct =
        AccountServiceClient::new(channel::connect(&peers.endpoint(), &key, DEADLINE)?);
    let mut named = http::HeaderMap::new();
    peers::caller()?.write_to(&mut named);
    let named = MetadataMap::from_headers(named);

    let endpoint = format!("http://{}", gateway.address());
    let mut through = AccountServiceClient::new(channel::plain(&endpoint)?);
    let mut token = MetadataMap::new();
    token.insert("authorization", format!("Bearer {}", peers::TOKEN).parse()?);

    let (warm_up, counted): (u32, u32) = extent.pick((500, 5_000), (50, 300));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut used = 0;
    for call in 0..warm_up + counted {
        if call == warm_up {
            used = machine::cpu_nanos(gateway.pid())?;
        }
        let began = Instant::now();
        let answer = direct.who_am_i(request(&named)).await;
        let took = began.elapsed();
        let user = answer.context("a direct call")?.into_inner().user_id;
        ensure!(
            user == peers::user().to_string(),
            "a direct call named {user:?}"
        );
        let began = Instant::now();
        let answer = through.who_am_i(request(&token)).await;
        let took_through = began.elapsed();
        let user = answer
            .context("a call through the gateway")?
            .into_inner()
            .user_id;
        ensure!(
            user == peers::user().to_string(),
            "a call through the gateway named {user:?}"
        );
        if call >= warm_up {
            without.push(micros(took));
            with.push(micros(took_through));
        }
    }
    let used = machine::cpu_nanos(gateway.pid())?.saturating_sub(used);
    let used_each = micros(Duration::from_nanos(used)) / f64::from(counted);
    drop(gateway);
    peers.stop().await;
    runtime.tasks.stop(DEADLINE).await;
    say(&format!("gRPC: {counted} calls each"));

    let p50 = |calls: &[f64]| median(calls).context("no calls");
    let p99 = |calls: &[f64]| quantile(calls, 0.99).context("no calls");
    let each = format!("{counted} calls, one at a time");
    let row = |name: &str, value| Row::new(format!("(d) gRPC unary: {name}"), value, "us", &each);
    Ok(vec![
        row("direct, p50", p50(&without)?),
        row("direct, p99", p99(&without)?),
        row("through the gateway, p50", p50(&with)?),
        row("through the gateway, p99", p99(&with)?),
        row("gateway, processor time each", used_each),
        Row::new(
            "(d) gRPC unary: added p50",
            p50(&with)? - p50(&without)?,
            "us",
            format!("the direct call, {each}, in turns"),
        )
        .target("<= 100"),
    ])
}

fn request(metadata: &MetadataMap) -> Request<WhoAmIRequest> {
    let mut request = Request::new(WhoAmIRequest {});
    *request.metadata_mut() = metadata.clone();
    request
}
