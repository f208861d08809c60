//! HTTP/1.1 load in a closed loop: every connection sends its next request when it has read
//! and compared the answer to the last one.
//!
//! It reads sockets itself instead of using a client library, so that the processor that it
//! shares with the upstream is not what limits the comparison.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use crate::{
    figures::{micros, quantile},
    machine,
};

/// Longer heads are none of ours.
const LONGEST_HEAD: usize = 8 * 1024;

/// How the load is put on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Kept-alive connections.
    pub(crate) connections: usize,
    /// Before anything counts.
    pub(crate) warm_up: Duration,
    /// While answers count.
    pub(crate) measure: Duration,
}

/// What a run over a plan gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// Answers a second.
    pub(crate) per_second: f64,
    /// Latency in microseconds that half of the answers do not exceed.
    pub(crate) p50: f64,
    /// Latency in microseconds that 99 % of the answers do not exceed.
    pub(crate) p99: f64,
    /// Processor time of the proxy per answer, in microseconds; 0 where there is none.
    pub(crate) proxy_cpu: f64,
}

/// The time in which answers count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    begin: Instant,
    end: Instant,
}

impl Window {
    /// Whether the load has to go on.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        now < self.end
    }

    /// Keeps the latency of an answer that was complete at this time, if it counts.
    pub(crate) fn note(&self, latencies: &mut Vec<f64>, sent: Instant, complete: Instant) {
        if complete >= self.begin && complete < self.end {
            latencies.push(micros(complete - sent));
        }
    }
}

/// Puts a load on: `one` is a connection from its beginning to the end of the window.
pub(crate) async fn put_on<F>(
    plan: Plan,
    proxy: Option<u32>,
    one: impl Fn(Window) -> F,
) -> Result<Measured>
where
    F: Future<Output = Result<Vec<f64>>> + Send + 'static,
{
    let begin = Instant::now() + plan.warm_up;
    let window = Window {
        begin,
        end: begin + plan.measure,
    };
    let mut connections = JoinSet::new();
    for _ in 0..plan.connections {
        connections.spawn(one(window));
    }
    let used = || proxy.map_or(Ok(0), machine::cpu_nanos);
    tokio::time::sleep_until(window.begin).await;
    let before = used()?;
    tokio::time::sleep_until(window.end).await;
    let after = used()?;
    let mut latencies = Vec::new();
    while let Some(connection) = connections.join_next().await {
        latencies.extend(connection??);
    }
    let (Some(p50), Some(p99)) = (quantile(&latencies, 0.5), quantile(&latencies, 0.99)) else {
        bail!("no answer came in {:?}", plan.measure);
    };
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and nanoseconds of seconds are far below 2^52"
    )]
    let (count, cpu) = (
        latencies.len() as f64,
        after.saturating_sub(before) as f64 / 1e3,
    );
    Ok(Measured {
        per_second: count / plan.measure.as_secs_f64(),
        p50,
        p99,
        proxy_cpu: cpu / count,
    })
}

/// A request and the body that must answer it.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The whole request.
    pub(crate) request: Bytes,
    /// The whole body of the answer.
    pub(crate) body: Bytes,
}

/// One connection that repeats an exchange.
pub(crate) async fn repeat(
    address: SocketAddr,
    exchange: Arc<Exchange>,
    window: Window,
) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut latencies = Vec::new();
    let mut buffer = vec![0; LONGEST_HEAD + exchange.body.len()];
    loop {
        let sent = Instant::now();
        if !window.is_open(sent) {
            return Ok(latencies);
        }
        stream.write_all(&exchange.request).await?;
        answer(&mut stream, &mut buffer, &exchange.body).await?;
        window.note(&mut latencies, sent, Instant::now());
    }
}

async fn answer(stream: &mut TcpStream, buffer: &mut [u8], body: &[u8]) -> Result<()> {
    let mut filled = 0;
    let mut whole = None;
    while whole.is_none_or(|whole| filled < whole) {
        ensure!(filled < buffer.len(), "an answer is too long");
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the connection was closed instead of kept alive");
        filled += read;
        if whole.is_none()
            && let Some(end) = end_of_head(&buffer[..filled])
        {
            let length = content_length(&buffer[..end])?;
            ensure!(length == body.len(), "an answer has {length} bytes");
            whole = Some(end + length);
        }
    }
    let whole = whole.context("no answer")?;
    ensure!(filled == whole, "more came than was asked for");
    ensure!(
        &buffer[whole - body.len()..whole] == body,
        "an answer has another body"
    );
    Ok(())
}

/// Where the body begins, when the head is complete.
pub(crate) fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .map(|at| at + 4)
}

/// The length that a good head gives.
fn content_length(head: &[u8]) -> Result<usize> {
    let shown = || String::from_utf8_lossy(head).into_owned();
    if !head.starts_with(b"HTTP/1.1 200 ") {
        bail!("another answer than 200: {}", shown());
    }
    head.split(|byte| *byte == b'\n')
        .find_map(|line| {
            let (name, value) = line.split_at_checked(b"content-length:".len())?;
            name.eq_ignore_ascii_case(b"content-length:")
                .then_some(value)
        })
        .and_then(|value| str::from_utf8(value).ok()?.trim().parse().ok())
        .with_context(|| format!("an answer without a length: {}", shown()))
}
