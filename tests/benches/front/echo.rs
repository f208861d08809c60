//! WebSocket load in a closed loop: every socket sends its next message when it has read and
//! compared the echo of the last one.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use crate::http_load::{Window, end_of_head};

/// Bytes of a message: what a notebook's small messages have.
pub(crate) const MESSAGE_BYTES: usize = 256;
/// The key of every handshake, and what answers it (the example of RFC 6455).
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
/// A final frame with a binary message.
const BINARY: u8 = 0x82;
/// The length stands in the two bytes that follow.
const LENGTH_FOLLOWS: u8 = 126;
const MASKED: u8 = 0x80;

/// One socket that echoes until the window closes.
pub(crate) async fn repeat(
    address: SocketAddr,
    handshake: Arc<Bytes>,
    window: Window,
) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&handshake).await?;
    open(&mut stream).await?;
    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(MESSAGE_BYTES).collect();
    let length = u16::try_from(MESSAGE_BYTES)?.to_be_bytes();
    let mut sends = vec![BINARY, MASKED | LENGTH_FOLLOWS, length[0], length[1]];
    sends.extend(MASK);
    sends.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    let mut expects = vec![BINARY, LENGTH_FOLLOWS, length[0], length[1]];
    expects.extend(payload);
    let mut echo = vec![0; expects.len()];
    let mut latencies = Vec::new();
    loop {
        let sent = Instant::now();
        if !window.is_open(sent) {
            return Ok(latencies);
        }
        stream.write_all(&sends).await?;
        stream.read_exact(&mut echo).await?;
        ensure!(echo == expects, "an echo differs from what was sent");
        window.note(&mut latencies, sent, Instant::now());
    }
}

async fn open(stream: &mut TcpStream) -> Result<()> {
    let mut head = Vec::with_capacity(1024);
    let end = loop {
        ensure!(
            stream.read_buf(&mut head).await? > 0,
            "no answer to a handshake"
        );
        if let Some(end) = end_of_head(&head) {
            break end;
        }
    };
    ensure!(end == head.len(), "a message before the first one was sent");
    let head = String::from_utf8_lossy(&head).into_owned();
    ensure!(
        head.starts_with("HTTP/1.1 101 "),
        "a handshake was refused: {head}"
    );
    let accept = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"))
        .map(|(_, value)| value.trim())
        .context("a handshake without an acceptance")?;
    ensure!(accept == ACCEPT, "a handshake with a wrong acceptance");
    Ok(())
}
