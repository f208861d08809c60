//! Kept-alive HTTP/1.1 connections to nodes.
//!
//! A connection carries one request at a time and comes back when the answer is read to its
//! end, so no byte of one answer can become part of another.
//!
//! **Invariant**: a connection whose answer was not read completely is never used again.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use cnlab_service::runtime::Tasks;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{net::TcpStream, time::Instant};

use crate::body::RequestBody;

const CONNECT: Duration = Duration::from_secs(5);
/// A node that has not acknowledged anything for about twice this long is taken for gone.
const NODE_SILENCE: Duration = Duration::from_secs(15);
/// Shorter than the time after which the node closes an idle connection, so that a request
/// hardly ever meets that close.
const IDLE: Duration = Duration::from_secs(5);
const MOST_IDLE: usize = 256;
/// How many idle connections are looked at for one that is ready.
const LOOK_AT: usize = 8;
const READ_BUFFER: usize = 64 * 1024;

type Sender = SendRequest<RequestBody>;

/// Connections to every node, those of one thread.
#[derive(Debug)]
pub struct Pools {
    by_endpoint: Mutex<HashMap<Arc<str>, Arc<Pool>>>,
    tasks: Tasks,
}

impl Pools {
    /// No connections yet.
    #[must_use]
    pub fn new(tasks: Tasks) -> Self {
        Self {
            by_endpoint: Mutex::default(),
            tasks,
        }
    }

    /// The connections to a node; none when its endpoint is no `http://host:port`.
    #[must_use]
    pub fn to(&self, endpoint: &Arc<str>) -> Option<Arc<Pool>> {
        let mut pools = self
            .by_endpoint
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(endpoint) {
            return Some(Arc::clone(pool));
        }
        let Some(pool) = Pool::to(endpoint, self.tasks.clone()) else {
            tracing::warn!(%endpoint, "a node's endpoint is no http://host:port");
            return None;
        };
        let pool = Arc::new(pool);
        // A new node is the moment to forget those that are gone.
        pools.retain(|_, pool| Arc::strong_count(pool) > 1 || pool.is_connected());
        pools.insert(Arc::clone(endpoint), Arc::clone(&pool));
        Some(pool)
    }
}

/// Connections to one node.
#[derive(Debug)]
pub struct Pool {
    /// `host:port`. A name is looked up when a connection is made, not per request.
    address: String,
    idle: Mutex<Vec<(Sender, Instant)>>,
    tasks: Tasks,
}

/// Why a request got no answer.
#[derive(Debug, Error)]
pub enum SendError {
    /// No connection: the request was not sent and may go elsewhere.
    #[error("no connection to the node")]
    NotSent(Box<Request<RequestBody>>, #[source] std::io::Error),
    /// The connection broke with the request under way.
    #[error("the node broke the connection")]
    Broken(#[source] hyper::Error),
}

impl Pool {
    /// Connections to `http://host:port`.
    #[must_use]
    pub fn to(endpoint: &str, tasks: Tasks) -> Option<Self> {
        let uri: http::Uri = endpoint.parse().ok()?;
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let address = format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(80));
        Some(Self {
            address,
            idle: Mutex::default(),
            tasks,
        })
    }

    /// Sends a request, on a kept connection where there is one.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
    ) -> Result<Response<PooledBody>, SendError> {
        while let Some(mut sender) = self.take() {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.lend(response, sender)),
                Err(mut error) => match error.take_message() {
                    // The node had closed it; nothing was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Broken(error.into_error())),
                },
            }
        }
        let mut sender = match self.connect().await {
            Ok(sender) => sender,
            Err(error) => return Err(SendError::NotSent(Box::new(request), error)),
        };
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.lend(response, sender)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => Err(SendError::NotSent(
                    Box::new(unsent),
                    std::io::Error::other(error.into_error()),
                )),
                None => Err(SendError::Broken(error.into_error())),
            },
        }
    }

    fn lend(
        self: &Arc<Self>,
        response: Response<Incoming>,
        sender: Sender,
    ) -> Response<PooledBody> {
        let pool = Arc::clone(self);
        response.map(|inner| PooledBody::new(inner, Loan { sender, pool }))
    }

    fn take(&self) -> Option<Sender> {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = idle.len();
        let last = at.saturating_sub(LOOK_AT);
        while at > last {
            at -= 1;
            let (sender, since) = &idle[at];
            if sender.is_closed() || now.saturating_duration_since(*since) > IDLE {
                idle.swap_remove(at);
            } else if sender.is_ready() {
                // Those that came back last are used first, so that the others may end.
                return Some(idle.remove(at).0);
            }
        }
        None
    }

    fn is_connected(&self) -> bool {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.iter().any(|(sender, _)| !sender.is_closed())
    }

    fn give_back(&self, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push((sender, Instant::now()));
        }
    }

    async fn connect(&self) -> std::io::Result<Sender> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(self.address.as_str()))
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        // A node that lost its power says nothing: its answers and tunnels must end all the same.
        let keep_alive = socket2::TcpKeepalive::new()
            .with_time(NODE_SILENCE)
            .with_interval(NODE_SILENCE / 3);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
        let (sender, connection) = http1::Builder::new()
            // As towards the browser: one buffer, one plain write.
            .writev(false)
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        let stop = self.tasks.token().clone();
        self.tasks.spawn("node connection", async move {
            tokio::select! {
                ended = connection.with_upgrades() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to a node ended");
                    }
                }
                // Every request has ended before: what is left here is idle.
                () = stop.cancelled() => {}
            }
        });
        Ok(sender)
    }
}

#[derive(Debug)]
struct Loan {
    sender: Sender,
    pool: Arc<Pool>,
}

/// An answer's body; at its end the connection goes back.
#[derive(Debug)]
pub struct PooledBody {
    inner: Incoming,
    loan: Option<Loan>,
}

impl PooledBody {
    fn new(inner: Incoming, loan: Loan) -> Self {
        let mut body = Self {
            inner,
            loan: Some(loan),
        };
        body.give_back_at_end();
        body
    }

    fn give_back_at_end(&mut self) {
        if self.inner.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(Loan { sender, pool }) = self.loan.take() {
            pool.give_back(sender);
        }
    }
}

impl http_body::Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.loan = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
