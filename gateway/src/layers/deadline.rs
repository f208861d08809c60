//! Bounds the time until an API answer begins. A stream may then go on for ever.
//!
//! Notebooks have none: only their owner knows how long a request of his may take.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::HeaderMap;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower::Layer;

use crate::{
    error::GatewayError,
    http_types::{Call, Site},
    layers::{Answer, Inner, refusal},
};

/// Sets deadlines.
#[derive(Debug, Clone, Copy)]
pub struct DeadlineLayer {
    most: Duration,
}

impl DeadlineLayer {
    /// At most this long; a gRPC caller may ask for less.
    #[must_use]
    pub const fn new(most: Duration) -> Self {
        Self { most }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline {
            inner,
            most: self.most,
        }
    }
}

/// See [`DeadlineLayer`].
#[derive(Debug, Clone)]
pub struct Deadline<S> {
    inner: S,
    most: Duration,
}

impl<S: Inner> tower::Service<Call> for Deadline<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Bounded<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let site = call.site;
        let deadline = match site {
            Site::Notebook(_) => None,
            Site::Grpc => {
                Some(asked(call.request.headers()).map_or(self.most, |asked| asked.min(self.most)))
            }
            Site::Api | Site::Front => Some(self.most),
        };
        Bounded {
            inner: self.inner.call(call),
            deadline: deadline.map(tokio::time::sleep),
            site,
        }
    }
}

/// What `grpc-timeout` asks for: at most eight digits and a unit.
fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

pin_project! {
    /// Ends with an error when the deadline passes first.
    #[derive(Debug)]
    pub struct Bounded<F> {
        #[pin]
        inner: F,
        #[pin]
        deadline: Option<Sleep>,
        site: Site,
    }
}

impl<F: Future<Output = Answer>> Future for Bounded<F> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let this = self.project();
        if let Poll::Ready(answer) = this.inner.poll(cx) {
            return Poll::Ready(answer);
        }
        let Some(deadline) = this.deadline.as_pin_mut() else {
            return Poll::Pending;
        };
        ready!(deadline.poll(cx));
        Poll::Ready(Ok(refusal(*this.site, GatewayError::DeadlineExceeded)))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        for (text, expected) in [
            ("1H", Some(3_600_000)),
            ("20S", Some(20_000)),
            ("250m", Some(250)),
            ("99999999S", Some(99_999_999_000)),
            ("100000000S", None),
            ("S", None),
            ("", None),
            ("+5S", None),
            ("5s", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            assert_eq!(
                asked(&headers),
                expected.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}
