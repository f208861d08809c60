//! The accept loop: HTTP/1.1 and HTTP/2 without TLS on one port, with the limits that a
//! port for everybody needs, and a polite end.
//!
//! It is the gateway's own and not the kit's because its connections pass through
//! [`strict::Strict`] and come back out of it when they become WebSockets.

pub mod strict;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cnlab_service::{
    net::{Doors, Ticket, wait_out},
    runtime::Tasks,
};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{http_types::Response, listener::strict::Strict};

/// What a connection is served on.
pub type Io = TokioIo<Strict<TcpStream>>;

/// Bytes read ahead, and the largest head of HTTP/1.1 that is looked at to be refused.
const READ_BUFFER: usize = 64 * 1024;
/// hyper's own limit of header fields; setting the same one costs it a slower way to hold them.
const HYPER_HEADER_FIELDS: usize = 100;
/// What may be under way to us on one HTTP/2 stream.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// And on all streams of a connection.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// A browser whose machine was switched off must not hold its WebSocket for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const H2_PING: Duration = Duration::from_secs(30);
const H2_PONG: Duration = Duration::from_secs(20);

/// What the port allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// A request's head must arrive within this time.
    pub header_read: Duration,
    /// A connection may be idle between requests for this long.
    pub keep_alive: Duration,
    /// Header fields of one request.
    pub header_fields: usize,
    /// Bytes of one request's header fields.
    pub header_bytes: u32,
    /// Concurrent requests of one HTTP/2 connection.
    pub streams: u32,
    /// Open connections in all.
    pub connections: usize,
    /// Open connections of one address.
    pub connections_per_address: usize,
    /// A connection is asked to end after this time.
    pub connection_age: Duration,
    /// How long open requests and WebSockets may take at shutdown.
    pub drain: Duration,
}

/// Where a connection is served, and by what.
#[derive(Debug)]
pub struct Seat<S> {
    /// Another tokio runtime than that of the accept loop.
    pub on: Option<Handle>,
    /// Answers its requests.
    pub service: S,
    /// Dropped when the connection has ended.
    pub held: Option<Held>,
}

/// Counts as one as long as it lives.
#[derive(Debug)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// One more.
    #[must_use]
    pub fn one_of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves until `stop`, then finishes what is `open`, at most as long as the limits allow.
/// `drained` is cancelled at the end of that time, or as soon as nothing is left to wait for.
/// Whoever takes a connection over counts itself as open.
///
/// # Errors
/// When the listener cannot accept at all; a lack of file handles is waited out.
pub async fn serve<F, S>(
    listener: TcpListener,
    seat: F,
    limits: Limits,
    tasks: Tasks,
    stop: CancellationToken,
    open: TaskTracker,
    drained: CancellationToken,
) -> io::Result<()>
where
    F: Fn(SocketAddr) -> Seat<S> + Send + Sync,
    S: hyper::service::Service<http::Request<Incoming>, Response = Response, Error = Infallible>
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let doors = Doors::new(limits.connections, limits.connections_per_address);
    let server = builder(&limits);
    let age = limits.connection_age;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                wait_out(&error).await?;
                continue;
            }
        };
        let Some(ticket) = doors.admit(peer.ip()) else {
            tracing::debug!(%peer, "a connection over the limit was closed");
            continue;
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "a connection ended before it began");
            continue;
        }
        let connection = Connection {
            server: server.clone(),
            head: limits.header_read,
            age,
            stop: stop.clone(),
            drained: drained.clone(),
            ticket,
        };
        let Seat { on, service, held } = seat(peer);
        let Some(on) = on else {
            tasks.spawn(
                "connection",
                open.track_future(connection.serve(stream, service)),
            );
            continue;
        };
        // Accepted here, read and written there: the stream changes its reactor.
        match stream.into_std() {
            Ok(stream) => {
                let served = async move {
                    let _held = held;
                    match TcpStream::from_std(stream) {
                        Ok(stream) => connection.serve(stream, service).await,
                        Err(error) => tracing::debug!(%peer, %error, "a connection was lost"),
                    }
                };
                tasks.spawn_on(&on, "connection", open.track_future(served));
            }
            Err(error) => tracing::debug!(%peer, %error, "a connection was lost"),
        }
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(limits.drain, open.wait())
        .await
        .is_err()
    {
        tracing::info!(open = open.len(), "closing what is still open");
    }
    drained.cancel();
    open.wait().await;
    Ok(())
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        // hyper's timer runs between requests too; a head alone is timed by `Strict`.
        .header_read_timeout(limits.keep_alive.max(limits.header_read))
        // Head and body in one buffer and one plain write: for the small answers of a notebook
        // that is cheaper than gathering them in the kernel.
        .writev(false)
        .max_buf_size(READ_BUFFER);
    if limits.header_fields != HYPER_HEADER_FIELDS {
        server.http1().max_headers(limits.header_fields);
    }
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        // Fixed windows: measuring the line would send a ping beside every message.
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PONG);
    server
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = socket2::TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE / 4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

/// One connection and its end.
struct Connection {
    server: auto::Builder<TokioExecutor>,
    head: Duration,
    age: Duration,
    stop: CancellationToken,
    drained: CancellationToken,
    ticket: Ticket,
}

impl Connection {
    async fn serve<S>(self, stream: TcpStream, service: S)
    where
        S: hyper::service::Service<
                http::Request<Incoming>,
                Response = Response,
                Error = Infallible,
            > + Send
            + 'static,
        S::Future: Send + 'static,
    {
        let ticket = self.ticket;
        let io = TokioIo::new(Strict::new(stream, ticket, self.head));
        let mut connection = pin!(self.server.serve_connection_with_upgrades(io, service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = self.stop.cancelled() => None,
            () = tokio::time::sleep(self.age) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = self.drained.cancelled() => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended with an error");
        }
    }
}
