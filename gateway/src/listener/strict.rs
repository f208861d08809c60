//! Watches the bytes of an HTTP/1.1 connection and ends it where two readers could disagree
//! about where a message ends.
//!
//! hyper reads such messages in one of the allowed ways; a proxy in front of us may have
//! chosen the other. So a head is refused that has both lengths, a length twice, a transfer
//! coding other than plain `chunked`, a folded line, a bare CR or LF, or a zero byte. What
//! passes has one reading only, and hyper's is it.
//!
//! ```text
//! Start ─▶ Head ─▶ Body(n) ─▶ Head …          Start ─▶ Opaque (HTTP/2)
//!            ├───▶ Chunk* ──▶ Head …
//!            └───▶ Upgrading ─▶ Opaque (after our 101), or Head
//! ```

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use cnlab_service::net::Ticket;

const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A line longer than this is no header of ours; hyper's own limit comes first.
const LONGEST_LINE: usize = 64 * 1024;
/// Sizes and extensions of chunks, and trailers, are short where they are honest.
const LONGEST_CHUNK_LINE: usize = 4096;

/// What is wrong with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Violation {
    BareLineEnd,
    FoldedLine,
    ZeroByte,
    Length,
    TwoLengths,
    TransferCoding,
    FieldName,
    LineTooLong,
    Chunk,
    Method,
    EarlyUpgrade,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// How much of the HTTP/2 preface was seen.
    Start(usize),
    /// Before or in a head.
    Head,
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    /// The head asked for another protocol; the answer decides.
    Upgrading,
    /// Not ours to read.
    Opaque,
    Violated,
}

/// What the present head has said so far.
#[derive(Debug, Default)]
struct Head {
    lines: usize,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

/// The reading of one connection's bytes.
#[derive(Debug)]
struct Scanner {
    state: State,
    head: Head,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
}

impl Scanner {
    const fn new() -> Self {
        Self {
            state: State::Start(0),
            head: Head {
                lines: 0,
                length: None,
                chunked: false,
                upgrade: false,
            },
            line: Vec::new(),
        }
    }

    /// Reads on.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        while !bytes.is_empty() {
            match self.state {
                State::Opaque => return Ok(()),
                State::Violated => return Err(Violation::Chunk),
                State::Upgrading => return Err(Violation::EarlyUpgrade),
                State::Start(seen) => {
                    let rest = &H2_PREFACE[seen..];
                    let same = rest.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                    if same == rest.len() {
                        self.state = State::Opaque;
                    } else if same == bytes.len() {
                        self.state = State::Start(seen + same);
                        bytes = &[];
                    } else {
                        self.state = State::Head;
                        // What looked like the preface was the beginning of a head.
                        self.feed(&H2_PREFACE[..seen])?;
                    }
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    bytes = self.take_line(bytes)?;
                }
                State::Body(left) => bytes = self.skip(left, bytes, State::Body, State::Head),
                State::ChunkData(left) => {
                    bytes = self.skip(left, bytes, State::ChunkData, State::ChunkEnd);
                }
                State::ChunkEnd => bytes = self.take_line(bytes)?,
            }
        }
        Ok(())
    }

    fn skip<'a>(
        &mut self,
        left: u64,
        bytes: &'a [u8],
        more: fn(u64) -> State,
        after: State,
    ) -> &'a [u8] {
        let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - skipped as u64;
        self.state = if left == 0 { after } else { more(left) };
        &bytes[skipped..]
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        let longest = if self.state == State::Head {
            LONGEST_LINE
        } else {
            LONGEST_CHUNK_LINE
        };
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            if self.line.len() + bytes.len() > longest {
                return Err(Violation::LineTooLong);
            }
            self.line.extend_from_slice(bytes);
            return Ok(&[]);
        };
        let (here, rest) = bytes.split_at(end + 1);
        if self.line.len() + here.len() > longest {
            return Err(Violation::LineTooLong);
        }
        if self.line.is_empty() {
            self.line(here)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(here);
            self.line(&line)?;
            line.clear();
            self.line = line;
        }
        Ok(rest)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let line = line.strip_suffix(b"\r\n").ok_or(Violation::BareLineEnd)?;
        if line.contains(&b'\r') {
            return Err(Violation::BareLineEnd);
        }
        if line.contains(&0) {
            return Err(Violation::ZeroByte);
        }
        match self.state {
            State::ChunkSize => self.chunk_size(line),
            State::ChunkEnd if line.is_empty() => {
                self.state = State::ChunkSize;
                Ok(())
            }
            State::Trailers => {
                if line.is_empty() {
                    self.state = State::Head;
                    return Ok(());
                }
                field(line).map(|_| ())
            }
            State::Head => self.head_line(line),
            _ => Err(Violation::Chunk),
        }
    }

    fn head_line(&mut self, line: &[u8]) -> Result<(), Violation> {
        if self.head.lines == 0 {
            if line.is_empty() {
                // Allowed before a request, and what some clients leave after a body.
                return Ok(());
            }
            if line.starts_with(b"CONNECT ") {
                return Err(Violation::Method);
            }
            self.head.lines = 1;
            return Ok(());
        }
        if line.is_empty() {
            return self.head_end();
        }
        self.head.lines += 1;
        let (name, value) = field(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = digits(value).ok_or(Violation::Length)?;
            if self.head.length.replace(length).is_some() {
                return Err(Violation::TwoLengths);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let twice = std::mem::replace(&mut self.head.chunked, true);
            if twice || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::TransferCoding);
            }
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.head.upgrade = true;
        }
        Ok(())
    }

    fn head_end(&mut self) -> Result<(), Violation> {
        let head = std::mem::take(&mut self.head);
        self.state = match (head.length, head.chunked) {
            (Some(_), true) => return Err(Violation::TwoLengths),
            (None, true) => State::ChunkSize,
            (Some(1..), false) if head.upgrade => return Err(Violation::EarlyUpgrade),
            (Some(length @ 1..), false) => State::Body(length),
            (Some(0) | None, false) if head.upgrade => State::Upgrading,
            (Some(0) | None, false) => State::Head,
        };
        Ok(())
    }

    fn chunk_size(&mut self, line: &[u8]) -> Result<(), Violation> {
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
        if size.is_empty() || size.len() > 15 {
            return Err(Violation::Chunk);
        }
        let mut length = 0_u64;
        for digit in size {
            let digit = char::from(*digit).to_digit(16).ok_or(Violation::Chunk)?;
            length = length << 4 | u64::from(digit);
        }
        self.state = if length == 0 {
            State::Trailers
        } else {
            State::ChunkData(length)
        };
        Ok(())
    }

    /// Whether a head is on its way, or the first byte of all.
    const fn is_waiting(&self) -> bool {
        match self.state {
            State::Start(_) => true,
            State::Head => self.head.lines > 0 || !self.line.is_empty(),
            State::Body(_)
            | State::ChunkSize
            | State::ChunkData(_)
            | State::ChunkEnd
            | State::Trailers
            | State::Upgrading
            | State::Opaque
            | State::Violated => false,
        }
    }

    /// Our own answer to a head that asked for another protocol begins so.
    fn answered(&mut self, bytes: &[u8]) {
        if self.state == State::Upgrading && !bytes.is_empty() {
            let agreed = bytes.starts_with(b"HTTP/1.1 101");
            self.state = if agreed { State::Opaque } else { State::Head };
        }
    }
}

/// Name and value of a header line.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Violation::FoldedLine);
    }
    let colon = line
        .iter()
        .position(|byte| *byte == b':')
        .ok_or(Violation::FieldName)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || name.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return Err(Violation::FieldName);
    }
    Ok((name, value.trim_ascii()))
}

/// A length is digits and nothing else: no sign, no list, no space inside.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// A stream whose incoming bytes are watched.
#[derive(Debug)]
pub struct Strict<S> {
    inner: S,
    scanner: Scanner,
    ticket: Ticket,
    head_time: Duration,
    /// Runs while a head is on its way, and until it is clear which protocol is spoken.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Strict<S> {
    /// A head must arrive within `head_time`.
    pub(super) const fn new(inner: S, ticket: Ticket, head_time: Duration) -> Self {
        Self {
            inner,
            scanner: Scanner::new(),
            ticket,
            head_time,
            waiting: None,
        }
    }

    /// The stream alone, and what counts it as open.
    pub fn into_parts(self) -> (S, Ticket) {
        (self.inner, self.ticket)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.scanner.state == State::Violated {
            // The rest of such a connection is nobody's.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_read(cx, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending if !this.scanner.is_waiting() => return Poll::Pending,
            Poll::Pending => {
                let time = this.head_time;
                let waiting = this
                    .waiting
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
                ready!(waiting.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        let in_body = matches!(
            self.scanner.state,
            State::Body(_)
                | State::ChunkSize
                | State::ChunkData(_)
                | State::ChunkEnd
                | State::Trailers
        );
        if let Err(violation) = self.scanner.feed(&buffer.filled()[before..]) {
            tracing::debug!(?violation, "a connection was ended");
            self.scanner.state = State::Violated;
            buffer.set_filled(before);
            if in_body {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            // No head can hold a zero byte: hyper answers 400 and closes.
            buffer.put_slice(b"\0");
        }
        if !self.scanner.is_waiting() {
            self.waiting = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.scanner.answered(bytes);
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = slices.iter().find(|slice| !slice.is_empty()) {
            self.scanner.answered(first);
        }
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
