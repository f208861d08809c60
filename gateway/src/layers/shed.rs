//! Refuses at once what would only wait, and counts what is under way.
//!
//! Notebooks, the API, and what is answered without a token have a cap each: a flood of one
//! must not take the others along.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::future::Either;
use pin_project_lite::pin_project;
use tower::Layer;

use crate::{
    error::GatewayError,
    http_types::{Call, Site},
    layers::{Answer, Checked, Inner, auth::OPEN_PREFIX, refuse},
};

/// How many requests may be under way.
#[derive(Debug)]
pub struct Cap {
    used: AtomicUsize,
    most: usize,
    entered: AtomicU64,
    refused: AtomicU64,
}

impl Cap {
    /// At most this many.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            most,
            entered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    fn enter(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.used.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(Arc::clone(self));
        if before >= self.most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.entered.fetch_add(1, Ordering::Relaxed);
        Some(entered)
    }

    /// How many were let in so far.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }

    /// How many were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many are under way.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// One request under way, until it is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Cap>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Caps concurrency.
#[derive(Debug, Clone)]
pub struct ShedLayer {
    api: Arc<Cap>,
    open: Arc<Cap>,
    notebooks: Arc<Cap>,
}

/// Health checks and reflection under way: anybody may ask for them, and a watch of a health
/// check never ends.
const OPEN_REQUESTS: usize = 64;

impl ShedLayer {
    /// Caps for the API and for notebooks.
    #[must_use]
    pub fn new(api: usize, notebooks: usize) -> Self {
        Self {
            api: Cap::new(api),
            open: Cap::new(OPEN_REQUESTS),
            notebooks: Cap::new(notebooks),
        }
    }
}

impl ShedLayer {
    /// The cap of the API and of our own pages.
    #[must_use]
    pub const fn api(&self) -> &Arc<Cap> {
        &self.api
    }

    /// The cap of notebooks.
    #[must_use]
    pub const fn notebooks(&self) -> &Arc<Cap> {
        &self.notebooks
    }
}

impl<S> Layer<S> for ShedLayer {
    type Service = Shed<S>;

    fn layer(&self, inner: S) -> Shed<S> {
        Shed {
            inner,
            caps: self.clone(),
        }
    }
}

/// See [`ShedLayer`].
#[derive(Debug, Clone)]
pub struct Shed<S> {
    inner: S,
    caps: ShedLayer,
}

impl<S: Inner> tower::Service<Call> for Shed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Checked<Counted<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let cap = match call.site {
            Site::Notebook(_) => &self.caps.notebooks,
            Site::Grpc if call.request.uri().path().starts_with(OPEN_PREFIX) => &self.caps.open,
            Site::Grpc | Site::Api | Site::Front => &self.caps.api,
        };
        match cap.enter() {
            Some(in_flight) => Either::Right(Counted {
                inner: self.inner.call(call),
                in_flight: Some(in_flight),
            }),
            None => refuse(call.site, GatewayError::Overloaded),
        }
    }
}

pin_project! {
    /// Hands the count over to the answer's body.
    #[derive(Debug)]
    pub struct Counted<F> {
        #[pin]
        inner: F,
        in_flight: Option<InFlight>,
    }
}

impl<F: Future<Output = Answer>> Future for Counted<F> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        Poll::Ready(answer.map(|mut response| {
            if let Some(in_flight) = this.in_flight.take() {
                response.body_mut().hold(in_flight);
            }
            response
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_counts_what_is_under_way() {
        let cap = Cap::new(2);
        let first = cap.enter().unwrap();
        let _second = cap.enter().unwrap();
        assert!(cap.enter().is_none());
        assert_eq!((cap.used(), cap.entered(), cap.refused()), (2, 2, 1));
        drop(first);
        assert!(cap.enter().is_some());
    }
}
