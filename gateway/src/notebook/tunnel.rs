//! WebSockets as what they are once both sides agreed: raw bytes.
//!
//! Nothing is read, so subprotocols and extensions are between the browser and the
//! notebook. A tunnel may be idle for ever and ends when a side ends, when the session is
//! revoked, or when the gateway has drained.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cnlab_model::id::{ServerId, UserId};
use cnlab_service::{net::Ticket, runtime::Tasks};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{listener::Io, notebook::sessions::SessionTable, ports::PortError};

/// Together with the memory of sessions less than five seconds.
const RECHECK: Duration = Duration::from_secs(1);
/// An answer that takes longer is none.
const ASK_WITHIN: Duration = Duration::from_secs(5);
const BUFFER: usize = 16 * 1024;

/// By which right a tunnel is open.
#[derive(Clone)]
pub struct Right {
    /// The session's secret.
    pub session: String,
    /// For this server.
    pub server: ServerId,
    /// Of this account.
    pub owner: UserId,
}

impl std::fmt::Debug for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Right")
            .field("server", &self.server)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// The open tunnels.
#[derive(Debug, Clone)]
pub struct Tunnels {
    sessions: Arc<SessionTable>,
    unchecked: Duration,
    open: TaskTracker,
    closing: CancellationToken,
    tasks: Tasks,
}

impl Tunnels {
    /// Tunnels that count themselves as open, and end with this token, or when nobody could
    /// say for `unchecked` that their session is still valid.
    #[must_use]
    pub const fn new(
        sessions: Arc<SessionTable>,
        unchecked: Duration,
        open: TaskTracker,
        closing: CancellationToken,
        tasks: Tasks,
    ) -> Self {
        Self {
            sessions,
            unchecked,
            open,
            closing,
            tasks,
        }
    }

    /// Joins the two sides once both have changed over.
    pub fn open(&self, browser: OnUpgrade, node: OnUpgrade, right: Right) {
        let tunnels = self.clone();
        self.tasks.spawn("websocket", self.open.track_future(async move {
            let joined = async {
                let (browser, node) = tokio::try_join!(browser, node)?;
                tunnels.join(browser, node).await
            };
            let server = right.server;
            tokio::select! {
                ended = joined => {
                    if let Err(error) = ended {
                        tracing::debug!(%server, error, "a websocket ended");
                    }
                }
                () = tunnels.until_revoked(&right) => tracing::info!(%server, "a websocket was closed: its session ended"),
                () = tunnels.closing.cancelled() => {}
            }
        }));
    }

    async fn join(
        &self,
        browser: Upgraded,
        node: Upgraded,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (mut browser, from_browser, _counted) = browser_stream(browser)?;
        let (mut node, from_node) = node_stream(node)?;
        node.write_all(&from_browser).await?;
        browser.write_all(&from_node).await?;
        tokio::io::copy_bidirectional_with_sizes(&mut browser, &mut node, BUFFER, BUFFER).await?;
        Ok(())
    }

    async fn until_revoked(&self, right: &Right) {
        let mut valid_at = Instant::now();
        while valid_at.elapsed() <= self.unchecked {
            tokio::time::sleep(RECHECK).await;
            let check = self.sessions.check(&right.session, right.server);
            match tokio::time::timeout(ASK_WITHIN, check).await {
                Ok(Ok(user)) if user == right.owner => valid_at = Instant::now(),
                Ok(Ok(_) | Err(PortError::Refused)) => return,
                // While nobody can be asked, nobody can have revoked it either; but a session
                // also ends by its age, so this cannot last.
                Ok(Err(PortError::Unavailable)) | Err(_) => {}
            }
        }
    }
}

fn browser_stream(upgraded: Upgraded) -> Result<(TcpStream, Bytes, Ticket), &'static str> {
    let parts = auto::upgrade::downcast::<Io>(upgraded)
        .map_err(|_| "the browser's side is of an unknown type")?;
    let (stream, ticket) = parts.io.into_inner().into_parts();
    Ok((stream, parts.read_buf, ticket))
}

fn node_stream(upgraded: Upgraded) -> Result<(TcpStream, Bytes), &'static str> {
    let parts = upgraded
        .downcast::<TokioIo<TcpStream>>()
        .map_err(|_| "the node's side is of an unknown type")?;
    Ok((parts.io.into_inner(), parts.read_buf))
}
