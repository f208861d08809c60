//! Numbers about the gateway, for dashboards.
//!
//! Requests are counted in plain atomics where they pass, and carried over to the
//! instruments every few seconds: a notebook request must not pay for labels.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cnlab_service::{
    Next,
    metrics::{Count, Level},
};
use tokio_util::task::TaskTracker;

use crate::layers::shed::{Cap, ShedLayer};

const EVERY: Duration = Duration::from_secs(5);

/// The instruments. Made once, when the service is built.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Count,
    shed: Count,
    in_flight: Level,
    open: Level,
    api: Carried,
    notebooks: Carried,
    connections: TaskTracker,
}

/// A cap and how much of its counts was carried over.
#[derive(Debug)]
struct Carried {
    site: &'static str,
    cap: Arc<Cap>,
    requests: AtomicU64,
    shed: AtomicU64,
}

impl Carried {
    fn new(site: &'static str, cap: &Arc<Cap>) -> Self {
        Self {
            site,
            cap: Arc::clone(cap),
            requests: AtomicU64::new(0),
            shed: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    pub(crate) fn new(caps: &ShedLayer, connections: TaskTracker) -> Self {
        Self {
            requests: Count::named("cnlab_gateway_requests_total", "requests, by site"),
            shed: Count::named(
                "cnlab_gateway_shed_requests_total",
                "requests refused because too many were under way, by site",
            ),
            in_flight: Level::named(
                "cnlab_gateway_in_flight_requests",
                "requests under way, by site",
            ),
            open: Level::named(
                "cnlab_gateway_open_connections",
                "open connections, WebSockets included",
            ),
            api: Carried::new("api", caps.api()),
            notebooks: Carried::new("notebook", caps.notebooks()),
            connections,
        }
    }

    /// Carries the counts over.
    pub(crate) fn tick(&self) -> Next {
        for carried in [&self.api, &self.notebooks] {
            let labels = [("site", carried.site)];
            let cap = &carried.cap;
            let more = |now: u64, before: &AtomicU64| {
                now.saturating_sub(before.swap(now, Ordering::Relaxed))
            };
            self.requests
                .add(more(cap.entered(), &carried.requests), &labels);
            self.shed.add(more(cap.refused(), &carried.shed), &labels);
            self.in_flight.set(cap.used() as u64, &labels);
        }
        self.open.set(self.connections.len() as u64, &[]);
        Next::After(EVERY)
    }
}
