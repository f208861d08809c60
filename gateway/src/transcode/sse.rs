//! A stream of messages as server-sent events: `data` per message, a comment while nothing
//! happens, and `event: end` or `event: error` last.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::Stream as _;
use http_body::Frame;
use prost_reflect::MessageDescriptor;
use tokio::time::Sleep;
use tonic::{Status, Streaming};

use crate::{error::Problem, transcode::encode};

/// Shorter than what proxies and browsers take for a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The body of an event stream.
#[derive(Debug)]
pub struct EventStream {
    messages: Streaming<Bytes>,
    descriptor: MessageDescriptor,
    heartbeat: Pin<Box<Sleep>>,
    ended: bool,
}

impl EventStream {
    /// Events of the messages of this stream, which are of this type.
    #[must_use]
    pub fn new(messages: Streaming<Bytes>, descriptor: MessageDescriptor) -> Self {
        Self {
            messages,
            descriptor,
            heartbeat: Box::pin(tokio::time::sleep(HEARTBEAT)),
            ended: false,
        }
    }

    fn event(&mut self, message: Option<Result<Bytes, Status>>) -> Bytes {
        let problem = match message {
            Some(Ok(message)) => {
                let mut text = BytesMut::with_capacity(message.len() * 4 + 64);
                text.extend_from_slice(b"data: ");
                // Canonical JSON is one line, so one data field holds it.
                match encode::to_json(&self.descriptor, message, &mut text) {
                    Ok(()) => {
                        text.extend_from_slice(b"\n\n");
                        return text.freeze();
                    }
                    Err(error) => {
                        tracing::error!(error, "a streamed message does not match its descriptor");
                        Problem::of_status(&Status::internal("internal error"))
                    }
                }
            }
            Some(Err(status)) => Problem::of_status(&status),
            None => {
                self.ended = true;
                return Bytes::from_static(b"event: end\ndata: {}\n\n");
            }
        };
        self.ended = true;
        format!("event: error\ndata: {}\n\n", problem.to_json()).into()
    }
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match Pin::new(&mut self.messages).poll_next(cx) {
            Poll::Ready(message) => self.event(message),
            Poll::Pending => {
                if self.heartbeat.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Bytes::from_static(b": still here\n\n")
            }
        };
        let next = tokio::time::Instant::now() + HEARTBEAT;
        self.heartbeat.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}
