//! The gateway's notebook path beside nginx: the same requests, the same upstream, the same
//! processor, in turns.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use cnlab_service::{Runtime, Secret};

use crate::{
    Extent, echo,
    figures::median,
    gateway::Gateway,
    http_load::{Exchange, Measured, Plan, put_on, repeat},
    machine,
    nginx::Nginx,
    peers,
    rows::{Row, say},
    upstream,
};

const CONNECTIONS: usize = 64;
/// How long open requests and tasks may take when everything is over.
const STOP: Duration = Duration::from_secs(5);

/// Everything that takes part, and how it is asked.
struct Field {
    upstream: SocketAddr,
    nginx: Nginx,
    gateway: Gateway,
    plan: Plan,
    rounds: usize,
    exchange: Arc<Exchange>,
    handshake: Arc<Bytes>,
}

/// What is asked of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Http,
    Echo,
}

/// All rounds of one load, side by side.
#[derive(Debug, Default)]
struct Rounds {
    direct: Vec<Measured>,
    nginx: Vec<Measured>,
    gateway: Vec<Measured>,
}

/// Compares them, on a thread of its own that stays on one processor with the upstream and
/// the peers.
pub(crate) fn measure(extent: Extent) -> Result<Vec<Row>> {
    let (proxy, around) = machine::two_cores()?;
    let compare = move || {
        machine::pin(around)?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(compare(extent, proxy))
    };
    std::thread::Builder::new()
        .name("around the proxies".to_owned())
        .spawn(compare)?
        .join()
        .map_err(|_| anyhow!("the comparison panicked"))?
}

async fn compare(extent: Extent, core: usize) -> Result<Vec<Row>> {
    let runtime = Runtime::system();
    let key = Secret::new(runtime.ids.ulid().to_string().repeat(2));
    let upstream = upstream::serve(&runtime.tasks).await?;
    let peers = peers::start(&key, upstream).await?;
    let gateway = Gateway::start(&[core], &key, &peers.endpoint()).await?;
    let nginx = Nginx::start(core, upstream).await?;
    let host = format!("{}.localhost:8080", peers::server().host_label());
    let field = Field {
        upstream,
        nginx,
        gateway,
        plan: Plan {
            connections: CONNECTIONS,
            warm_up: Duration::from_millis(extent.pick(1_000, 300)),
            measure: Duration::from_millis(extent.pick(4_000, 700)),
        },
        rounds: extent.pick(7, 1),
        exchange: Arc::new(Exchange {
            request: request(&host),
            body: upstream::body(),
        }),
        handshake: Arc::new(handshake(&host)),
    };
    // A processor that sleeps has to be woken, which the kernel does at the expense of whoever
    // sends to it: a proxy would be charged for how long the load's processor had nothing to do.
    let awake = runtime.tasks.spawn("awake", async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let mut rows = Vec::new();
    for load in [Load::Http, Load::Echo] {
        rows.extend(field.rounds_of(load).await?);
    }
    awake.abort();
    drop(field);
    peers.stop().await;
    runtime.tasks.stop(STOP).await;
    Ok(rows)
}

/// What a browser sends for a file of the notebook's page.
fn request(host: &str) -> Bytes {
    format!(
        "GET /static/lab/style.js?v=1 HTTP/1.1\r\n\
         Host: {host}\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\n\
         Accept: */*\r\n\
         Accept-Encoding: gzip, deflate\r\n\
         Accept-Language: en-GB,en;q=0.9\r\n\
         Sec-Fetch-Mode: no-cors\r\n\
         Referer: http://{host}/lab\r\n\
         Cookie: _xsrf=2|0123abcd|0123456789abcdef0123456789abcdef|1700000000; __Host-cnlab={session}\r\n\
         \r\n",
        session = peers::SESSION
    )
    .into()
}

/// What a browser sends for a kernel's channel.
fn handshake(host: &str) -> Bytes {
    format!(
        "GET /api/kernels/0/channels HTTP/1.1\r\n\
         Host: {host}\r\n\
         Origin: http://{host}\r\n\
         Connection: Upgrade\r\n\
         Upgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {key}\r\n\
         Cookie: __Host-cnlab={session}\r\n\
         \r\n",
        key = echo::KEY,
        session = peers::SESSION
    )
    .into()
}

impl Field {
    async fn rounds_of(&self, load: Load) -> Result<Vec<Row>> {
        let mut rounds = Rounds::default();
        for round in 0..self.rounds {
            let direct = self.run(load, self.upstream, None).await;
            rounds
                .direct
                .push(direct.context("asking the upstream itself")?);
            // Whoever comes second may find a warmer machine: they take turns at that, too.
            let nginx_first = round % 2 == 0;
            for nginx in [nginx_first, !nginx_first] {
                if nginx {
                    let measured = self
                        .run(load, self.nginx.address(), Some(self.nginx.pid()))
                        .await;
                    rounds.nginx.push(measured.context("through nginx")?);
                } else {
                    let measured = self
                        .run(load, self.gateway.address(), Some(self.gateway.pid()))
                        .await;
                    rounds
                        .gateway
                        .push(measured.context("through the gateway")?);
                }
            }
            say(&format!(
                "{load:?} round {} of {}: {}",
                round + 1,
                self.rounds,
                rounds.last()
            ));
        }
        rounds.rows(load, self.nginx.version())
    }

    async fn run(&self, load: Load, to: SocketAddr, proxy: Option<u32>) -> Result<Measured> {
        match load {
            Load::Http => {
                let one = |window| repeat(to, Arc::clone(&self.exchange), window);
                put_on(self.plan, proxy, one).await
            }
            Load::Echo => {
                let one = |window| echo::repeat(to, Arc::clone(&self.handshake), window);
                put_on(self.plan, proxy, one).await
            }
        }
    }
}

impl Rounds {
    fn last(&self) -> String {
        [
            ("direct", &self.direct),
            ("nginx", &self.nginx),
            ("gateway", &self.gateway),
        ]
        .into_iter()
        .filter_map(|(name, measured)| {
            let last = measured.last()?;
            Some(format!(
                "{name} {:.0}/s p99 {:.0} us, {:.1} us of processor",
                last.per_second, last.p99, last.proxy_cpu
            ))
        })
        .collect::<Vec<_>>()
        .join("; ")
    }

    fn rows(&self, load: Load, nginx: &str) -> Result<Vec<Row>> {
        let what = match load {
            Load::Http => "(c) HTTP/1.1 1 KiB",
            Load::Echo => "(c) WebSocket echo",
        };
        let each = format!("median of {} rounds", self.gateway.len());
        let mut rows = Vec::new();
        for (who, measured) in [
            ("direct, no proxy", &self.direct),
            (nginx, &self.nginx),
            ("gateway", &self.gateway),
        ] {
            let middle = |figure: fn(&Measured) -> f64| {
                median(&measured.iter().map(figure).collect::<Vec<_>>()).context("no round")
            };
            let mut row = |figure: &str, value, unit| {
                rows.push(Row::new(
                    format!("{what}: {who}, {figure}"),
                    value,
                    unit,
                    &each,
                ));
            };
            row("throughput", middle(|one| one.per_second)?, "1/s");
            row("p50", middle(|one| one.p50)?, "us");
            row("p99", middle(|one| one.p99)?, "us");
            if who != "direct, no proxy" {
                row("processor time each", middle(|one| one.proxy_cpu)?, "us");
            }
        }
        let ratio = |figure: fn(&Measured) -> f64| {
            let ratios: Vec<f64> = self
                .gateway
                .iter()
                .zip(&self.nginx)
                .map(|(ours, theirs)| figure(ours) / figure(theirs))
                .collect();
            median(&ratios).context("no round")
        };
        let against = format!("{nginx}, {each}, pair by pair");
        rows.push(
            Row::new(
                format!("{what}: throughput ratio"),
                ratio(|one| one.per_second)?,
                "",
                &against,
            )
            .target(">= 1.0"),
        );
        rows.push(
            Row::new(
                format!("{what}: p99 ratio"),
                ratio(|one| one.p99)?,
                "",
                &against,
            )
            .target("<= 1.0"),
        );
        Ok(rows)
    }
}
