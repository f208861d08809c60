//! The Unix socket of one notebook, as an HTTP client with a few kept connections.
//!
//! **Invariant**: the socket's folder belongs to the workload, which may put anything there. So the
//! file is opened first, without following a link; it must be a socket of the workload's user;
//! and the connection goes to that opened file, whatever its name means by then.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Either, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        Client, Error,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::net::UnixStream;
use tower::Service;

use crate::adapters::run_process::{SOCKET, runtime_folder};

/// The page that is asked for to see whether the notebook answers.
const PAGE: &str = "/lab";
/// JupyterLab's page is a few kilobytes.
const LONGEST_PAGE: usize = 1 << 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(25);
const ONE_TRY: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(30);
const KEPT: usize = 32;

type UpstreamBody = Either<Incoming, Empty<Bytes>>;

/// One notebook.
pub(crate) struct Peer {
    client: Client<Connector, UpstreamBody>,
    authorization: HeaderValue,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}

impl Peer {
    /// The notebook of a life's folder, whose processes run as `uid`.
    pub(crate) fn new(folder: &Path, uid: u32, token: &str) -> Self {
        let connector = Connector {
            socket: runtime_folder(folder).join(SOCKET),
            uid,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(KEPT)
            .build(connector);
        // A token is hexadecimal, so this is always a header value.
        let mut authorization = HeaderValue::try_from(format!("token {token}"))
            .unwrap_or_else(|_| HeaderValue::from_static("token"));
        authorization.set_sensitive(true);
        Self {
            client,
            authorization,
        }
    }

    /// Passes a request on, with the notebook's own token.
    pub(crate) async fn send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, Error> {
        self.request(request.map(Either::Left)).await
    }

    async fn request(
        &self,
        mut request: Request<UpstreamBody>,
    ) -> Result<Response<Incoming>, Error> {
        let path = request
            .uri()
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        *request.uri_mut() = address(path);
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, self.authorization.clone());
        self.client.request(request).await
    }

    /// Waits until the page answers.
    pub(crate) async fn answers(&self) {
        loop {
            let once = tokio::time::timeout(ONE_TRY, self.answers_now()).await;
            if once.unwrap_or(false) {
                return;
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
    }

    async fn answers_now(&self) -> bool {
        let mut request = Request::new(Either::Right(Empty::new()));
        *request.uri_mut() = Uri::from_static(PAGE);
        request
            .headers_mut()
            .insert(header::HOST, HeaderValue::from_static("localhost"));
        match self.request(request).await {
            Ok(response) if response.status() == StatusCode::OK => {
                // What answers there is the tenant's: it must not fill our memory.
                Limited::new(response.into_body(), LONGEST_PAGE)
                    .collect()
                    .await
                    .is_ok()
            }
            Ok(_) | Err(_) => false,
        }
    }
}

fn address(path: PathAndQuery) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("localhost"));
    parts.path_and_query = Some(path);
    // All three parts are there, so this is always an address.
    Uri::from_parts(parts).unwrap_or_default()
}

/// Opens connections to one socket.
#[derive(Debug, Clone)]
struct Connector {
    socket: PathBuf,
    uid: u32,
}

impl Connector {
    async fn connect(self) -> io::Result<Pipe> {
        let file = self.open()?;
        // Through the descriptor: immune against renames, and without the limit of 108 bytes.
        let stream = UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await?;
        let owner = stream.peer_cred()?.uid();
        if owner != self.uid {
            return Err(foreign());
        }
        Ok(Pipe(TokioIo::new(stream)))
    }

    fn open(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&self.socket)?;
        let meta = file.metadata()?;
        if !meta.file_type().is_socket() || meta.uid() != self.uid {
            return Err(foreign());
        }
        Ok(file)
    }
}

fn foreign() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the socket is not the workload's own",
    )
}

impl Service<Uri> for Connector {
    type Response = Pipe;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Pipe>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// A connection to a notebook.
#[derive(Debug)]
struct Pipe(TokioIo<UnixStream>);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

    fn connector(folder: &Path) -> Connector {
        Connector {
            socket: folder.join(SOCKET),
            uid: geteuid().as_raw(),
        }
    }

    #[tokio::test]
    async fn a_link_to_a_foreign_socket_is_not_followed() {
        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().join("host.sock");
        let _listener = tokio::net::UnixListener::bind(&target).unwrap();
        std::os::unix::fs::symlink(&target, inside.path().join(SOCKET)).unwrap();
        let error = connector(inside.path()).connect().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        std::fs::remove_file(inside.path().join(SOCKET)).unwrap();
        std::fs::write(inside.path().join(SOCKET), "a file").unwrap();
        assert!(connector(inside.path()).connect().await.is_err());
    }

    #[tokio::test]
    async fn a_socket_in_a_deep_folder_is_reached() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        // Bound by a short name, as it is inside a mount namespace.
        let short = base.path().join("s");
        std::os::unix::fs::symlink(&deep, &short).unwrap();
        let _listener = tokio::net::UnixListener::bind(short.join(SOCKET)).unwrap();
        connector(&deep).connect().await.unwrap();
        let other = Connector {
            uid: geteuid().as_raw() + 1,
            ..connector(&deep)
        };
        assert!(other.connect().await.is_err());
    }
}
