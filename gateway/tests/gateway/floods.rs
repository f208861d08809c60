//! HTTP/2 that costs its sender nothing and a careless server a lot, frame by frame.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::world::{GENEROUS, World};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET /` (or `POST`) to localhost, from HPACK's static table.
fn head(method: u8) -> Vec<u8> {
    [&[method, 0x86, 0x84, 0x41, 9][..], b"localhost"].concat()
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// Sends frames until the gateway hangs up, and fails when it never does.
async fn must_be_cut_off(world: &World, what: &str, next: impl Fn(u32) -> Vec<u8>) {
    let stream = TcpStream::connect(world.addr()).await.unwrap();
    let (mut reads, mut writes) = stream.into_split();
    let reading = world.tasks().spawn("test reader", async move {
        let mut all = Vec::new();
        reads.read_to_end(&mut all).await.ok();
    });
    let flood = async {
        writes.write_all(PREFACE).await?;
        writes.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        for number in 0..1_000_000 {
            writes.write_all(&next(number)).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    let flooded = tokio::time::timeout(GENEROUS, flood).await;
    assert!(matches!(flooded, Ok(Err(_))), "{what}: nobody objected");
    tokio::time::timeout(GENEROUS, reading)
        .await
        .unwrap()
        .unwrap();
    let healthy = world
        .raw(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    assert!(healthy.starts_with("HTTP/1.1 200"), "{what}: {healthy}");
}

#[tokio::test]
async fn floods_are_cut_off_and_everybody_else_is_served() {
    let world = World::start().await;
    let stream = |number: u32| number * 2 + 1;
    must_be_cut_off(&world, "opened and reset", |number| {
        let open = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            stream(number),
            &head(GET),
        );
        let reset = frame(RESET, 0, stream(number), &8_u32.to_be_bytes());
        [open, reset].concat()
    })
    .await;
    must_be_cut_off(&world, "made to reset", |number| {
        let open = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            stream(number),
            &head(GET),
        );
        let wrong = frame(WINDOW_UPDATE, 0, stream(number), &0_u32.to_be_bytes());
        [open, wrong].concat()
    })
    .await;
    must_be_cut_off(&world, "headers without end", |number| match number {
        0 => frame(HEADERS, END_STREAM, 1, &head(GET)),
        _ => frame(
            CONTINUATION,
            0,
            1,
            &[b"\x00\x01a\x7e".as_slice(), &[b'b'; 126]].concat(),
        ),
    })
    .await;
    must_be_cut_off(&world, "empty data", |number| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &head(POST)),
        _ => frame(DATA, 0, 1, &[]),
    })
    .await;
    world.stop().await;
}
