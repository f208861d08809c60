//! The accept loop of the services behind the gateway: HTTP/1.1 (with upgrades) and HTTP/2
//! without TLS on one port, with limits from the first day and a polite end.
//!
//! The gateway has a loop of its own, since its connections change threads and come back out
//! as WebSockets; it shares what counts connections and what waits out a shortage.

mod doors;

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

pub use doors::{Doors, Ticket};

/// What may be under way to us on one HTTP/2 stream, in bytes.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// And on all streams of a connection.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// What one listener allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// A request's headers must arrive within this time.
    pub header_read: Duration,
    /// Header fields of one request.
    pub max_headers: usize,
    /// Bytes of one request's headers.
    pub max_header_bytes: u32,
    /// Concurrent requests of one HTTP/2 connection.
    pub max_streams: u32,
    /// Open connections in all.
    pub connections: usize,
    /// Open connections of one address.
    pub per_ip: usize,
    /// How long open requests may take at shutdown.
    pub drain: Duration,
}

impl Limits {
    /// For ports that only services of ours reach.
    #[must_use]
    pub const fn internal() -> Self {
        Self {
            header_read: Duration::from_secs(10),
            max_headers: 100,
            max_header_bytes: 16 * 1024,
            max_streams: 10_000,
            connections: 10_000,
            per_ip: 10_000,
            drain: Duration::from_secs(10),
        }
    }
}

/// The other end of a connection: an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Serves until `stop`, then waits for open requests as long as the limits allow. Upgraded
/// connections (WebSockets) end with the service that holds them.
///
/// # Errors
/// When the listener cannot accept at all; a lack of file handles is waited out.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: Limits,
    stop: CancellationToken,
) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let builder = Arc::new(builder(&limits));
    let doors = Doors::new(limits.connections, limits.per_ip);
    let connections = TaskTracker::new();
    let closing = CancellationToken::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    wait_out(&error).await?;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        let Some(ticket) = doors.admit(peer.ip()) else {
            // Dropping the stream closes it: cheaper than an answer, and a flood gets no work.
            tracing::debug!(%peer, "connection refused: too many");
            continue;
        };
        let connection = Connection {
            builder: Arc::clone(&builder),
            service: service.clone(),
            closing: closing.clone(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "connections are tracked here, and tasks of the kit start here"
        )]
        tokio::spawn(connections.track_future(async move {
            connection.run(stream, peer).await;
            drop(ticket);
        }));
    }
    drop(listener);
    closing.cancel();
    connections.close();
    if tokio::time::timeout(limits.drain, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            open = connections.len(),
            "connections were still open at the end of the drain time"
        );
    }
    Ok(())
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_headers(limits.max_headers)
        .max_buf_size(
            usize::try_from(limits.max_header_bytes)
                .unwrap_or(usize::MAX)
                .max(8_192),
        )
        .half_close(false)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(limits.max_header_bytes)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        // Fixed windows: measuring the line would send a ping beside every message.
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

struct Connection<S> {
    builder: Arc<auto::Builder<TokioExecutor>>,
    service: S,
    closing: CancellationToken,
}

impl<S, B> Connection<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    async fn run(self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection ended before it began");
            return;
        }
        let mut service = self.service;
        let service = tower::util::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            service.call(request)
        });
        let mut serving = pin!(self.builder.serve_connection_with_upgrades(
            TokioIo::new(stream),
            TowerToHyperService::new(service)
        ));
        let mut asked = false;
        let ended = loop {
            tokio::select! {
                ended = serving.as_mut() => break ended,
                () = self.closing.cancelled(), if !asked => {
                    asked = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }
}

/// Waits out what passes after an `accept` that failed; anything else is final.
///
/// # Errors
/// The error itself, when it does not pass.
pub async fn wait_out(error: &io::Error) -> io::Result<()> {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    match error.raw_os_error() {
        Some(ENFILE | EMFILE | ENOBUFS | ENOMEM) => {
            tracing::warn!(%error, "no resources for a new connection, waiting");
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(())
        }
        _ if matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted
        ) =>
        {
            Ok(())
        }
        _ => Err(io::Error::new(error.kind(), error.to_string())),
    }
}
