//! Where servers are, remembered for about a second.
//!
//! A stale route leads to a node that refuses by workload and fence, never to another
//! tenant: the address alone is not believed.

use std::{sync::Arc, time::Duration};

use cnlab_model::id::{ServerId, UserId};
use cnlab_service::runtime::Tasks;
use http::HeaderValue;
use tokio::time::Instant;

use crate::{
    cache::{Cache, Lookup},
    ports::{Location, PortError, Routes},
};

const FRESH: Duration = Duration::from_secs(1);
const VALID: Duration = Duration::from_secs(2);
const CAPACITY: usize = 50_000;

/// A server's place.
#[derive(Debug)]
pub struct Route {
    /// Whose it is.
    pub owner: UserId,
    /// What to tell a visitor while it is not ready.
    pub state_text: String,
    /// Where requests go; none while it is not ready.
    pub target: Option<Target>,
}

/// Where requests go, and what they say there.
#[derive(Debug)]
pub struct Target {
    /// The node's `http://host:port`.
    pub endpoint: Arc<str>,
    /// The server's id as header value.
    pub workload: HeaderValue,
    /// The fence as header value.
    pub fence: HeaderValue,
}

/// Finds routes.
pub struct RouteTable {
    port: Arc<dyn Routes>,
    known: Cache<ServerId, Arc<Route>>,
    tasks: Tasks,
}

impl std::fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RouteTable")
    }
}

impl RouteTable {
    /// Asks this port.
    #[must_use]
    pub fn new(port: Arc<dyn Routes>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            port,
            known: Cache::new(FRESH, VALID, CAPACITY),
            tasks,
        })
    }

    /// The route of a server.
    ///
    /// # Errors
    /// [`PortError::Refused`] when there is no such server.
    pub async fn find(self: &Arc<Self>, server: ServerId) -> Result<Arc<Route>, PortError> {
        match self.known.get(&server, Instant::now()) {
            Lookup::Fresh(route) => Ok(route),
            Lookup::Aging(route) => {
                let table = Arc::clone(self);
                self.tasks.spawn("route refresh", async move {
                    if table.ask(server).await.is_err() {
                        table.known.refresh_failed(&server);
                    }
                });
                Ok(route)
            }
            Lookup::Nothing => self.ask(server).await,
        }
    }

    /// Asks again: the route that was known led nowhere.
    ///
    /// # Errors
    /// As [`RouteTable::find`].
    pub async fn find_again(&self, server: ServerId) -> Result<Arc<Route>, PortError> {
        self.known.forget(&server);
        self.ask(server).await
    }

    /// Forgets a route that led nowhere.
    pub fn forget(&self, server: ServerId) {
        self.known.forget(&server);
    }

    async fn ask(&self, server: ServerId) -> Result<Arc<Route>, PortError> {
        let asked_at = Instant::now();
        match self.port.resolve(server).await {
            Ok(location) => {
                let route = Arc::new(route(server, location));
                // Only a good place is remembered: who waits for one shall not wait longer
                // than it takes.
                if route.target.is_some() {
                    self.known.put(server, Arc::clone(&route), asked_at);
                } else {
                    self.known.forget(&server);
                }
                Ok(route)
            }
            Err(PortError::Refused) => {
                self.known.forget(&server);
                Err(PortError::Refused)
            }
            Err(PortError::Unavailable) => Err(PortError::Unavailable),
        }
    }
}

fn route(server: ServerId, location: Location) -> Route {
    let target = location
        .endpoint
        .filter(|_| location.ready)
        .zip(HeaderValue::try_from(server.to_string()).ok())
        .map(|(endpoint, workload)| Target {
            endpoint: endpoint.into(),
            workload,
            fence: HeaderValue::from(location.fence),
        });
    Route {
        owner: location.owner,
        state_text: location.state_text,
        target,
    }
}
