//! What must not get through, written byte by byte.

use std::{sync::atomic::Ordering, time::Duration};

use cnlab_service::Span;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    peers::server,
    world::{ALICE, GENEROUS, World, eventually},
};

#[tokio::test]
async fn messages_with_two_readings_are_refused_and_reach_nobody() {
    let world = World::start().await;
    world.session("alice", ALICE, server(7));
    let host = world.host(server(7));
    let head = format!("host: {host}\r\ncookie: __Host-cnlab=alice\r\n");
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    for (what, text) in [
        (
            "CL.TE",
            format!(
                "POST /a HTTP/1.1\r\n{head}content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "TE.CL",
            format!(
                "POST /a HTTP/1.1\r\n{head}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "two lengths",
            format!(
                "POST /a HTTP/1.1\r\n{head}content-length: 0\r\ncontent-length: 0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "differing lengths",
            format!(
                "POST /a HTTP/1.1\r\n{head}content-length: 1\r\ncontent-length: 0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "a list of lengths",
            format!("POST /a HTTP/1.1\r\n{head}content-length: 0, 0\r\n\r\n{smuggled}"),
        ),
        (
            "a signed length",
            format!("POST /a HTTP/1.1\r\n{head}content-length: +0\r\n\r\n{smuggled}"),
        ),
        (
            "another coding",
            format!(
                "POST /a HTTP/1.1\r\n{head}transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "a hidden coding",
            format!(
                "POST /a HTTP/1.1\r\n{head}transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n{smuggled}"
            ),
        ),
        (
            "a folded line",
            format!("GET /a HTTP/1.1\r\n{head}x: 1\r\n\ttransfer-encoding: chunked\r\n\r\n"),
        ),
        (
            "a space before the colon",
            format!("POST /a HTTP/1.1\r\n{head}content-length : 40\r\n\r\n{smuggled}"),
        ),
        (
            "bare line feeds",
            format!("GET /a HTTP/1.1\nhost: {host}\n\n"),
        ),
        (
            "a bare carriage return",
            format!("GET /a HTTP/1.1\r\n{head}x: a\rb: c\r\n\r\n"),
        ),
        (
            "a zero byte",
            format!("GET /a HTTP/1.1\r\n{head}x: a\0b\r\n\r\n"),
        ),
        (
            "two hosts",
            format!("GET /a HTTP/1.1\r\n{head}host: localhost\r\n\r\n"),
        ),
        ("no host", "GET /a HTTP/1.1\r\n\r\n".to_owned()),
        (
            "a target of another host",
            format!("GET http://localhost/v1/servers HTTP/1.1\r\n{head}\r\n"),
        ),
        (
            "connect",
            "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\n\r\n".to_owned(),
        ),
        (
            "a body in HTTP/1.0 pieces",
            format!("POST /a HTTP/1.0\r\n{head}transfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "dots",
            format!("GET /a/../_cnlab/session HTTP/1.1\r\n{head}\r\n"),
        ),
        (
            "escaped dots",
            format!("GET /a/%2e%2e/b HTTP/1.1\r\n{head}\r\n"),
        ),
        (
            "dots behind an escaped slash",
            format!("GET /a%2f..%2fb HTTP/1.1\r\n{head}\r\n"),
        ),
        (
            "a backslash",
            format!("GET /a\\..\\b HTTP/1.1\r\n{head}\r\n"),
        ),
    ] {
        let answer = world.raw(text.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400")
                || answer.starts_with("HTTP/1.0 400")
                || answer.is_empty(),
            "{what}: {answer}"
        );
        let answers = answer.matches("HTTP/1.").count();
        assert!(answers <= 1, "{what}: one answer at most: {answer}");
    }
    assert_eq!(
        world.node.requests.load(Ordering::SeqCst),
        0,
        "none of them reached the notebook"
    );
    world.stop().await;
}

#[tokio::test]
async fn wrong_chunks_end_the_request() {
    let world = World::start().await;
    world.session("alice", ALICE, server(7));
    let head = format!(
        "POST /upload HTTP/1.1\r\nhost: {}\r\ncookie: __Host-cnlab=alice\r\ntransfer-encoding: chunked\r\n\r\n",
        world.host(server(7))
    );
    for chunks in [
        "zz\r\n",
        "-1\r\n",
        "5\r\nabcdefg\r\n0\r\n\r\n",
        "ffffffffffffffff1\r\n",
        "1\na\n0\n\n",
        "3 \r\nabc\r\n0\r\n\r\n",
    ] {
        let answer = world.raw(format!("{head}{chunks}").as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{chunks:?}: {answer}");
    }
    world.stop().await;
}

#[tokio::test]
async fn heads_have_bounds() {
    let world = World::start().await;
    let long = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "a".repeat(20 << 10)
    );
    assert!(world.raw(long.as_bytes()).await.starts_with("HTTP/1.1 431"));
    let longer = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "a".repeat(200 << 10)
    );
    let answer = world.raw(longer.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 4") || answer.is_empty(),
        "{answer}"
    );
    let many = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n",
        "a: b\r\n".repeat(150)
    );
    assert!(world.raw(many.as_bytes()).await.starts_with("HTTP/1.1 431"));
    world.stop().await;
}

#[tokio::test]
async fn slow_clients_are_let_go() {
    let world = World::with(|config| {
        config.limits.header_read = Span(Duration::from_millis(300));
        config.limits.body_idle = Span(Duration::from_millis(300));
    })
    .await;
    // Nothing at all, the beginning of HTTP/2, half a head: each ends by itself.
    for text in ["", "PRI * HT", "G", "GET / HTTP/1.1\r\nhost: loc"] {
        let answer = world.raw(text.as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{text:?}: {answer}");
    }
    // The second head of a connection, too.
    let second = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nho";
    let answer = world.raw(second.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    let stalled = format!(
        "POST /v1/servers HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 10\r\n\r\n{{",
        crate::world::TOKEN
    );
    let answer = world.raw(stalled.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    world.session("alice", ALICE, server(7));
    let stalled = format!(
        "POST /upload HTTP/1.1\r\nhost: {}\r\ncookie: __Host-cnlab=alice\r\ncontent-length: 10\r\n\r\n{{",
        world.host(server(7))
    );
    let answer = world.raw(stalled.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    world.stop().await;
}

#[tokio::test]
async fn one_address_cannot_take_every_connection() {
    let world = World::with(|config| config.limits.connections_per_address = 3).await;
    let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(world.addr()).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        open.push(stream);
    }
    let mut over = TcpStream::connect(world.addr()).await.unwrap();
    over.write_all(request).await.ok();
    let mut answer = Vec::new();
    tokio::time::timeout(GENEROUS, over.read_to_end(&mut answer))
        .await
        .unwrap()
        .ok();
    assert_eq!(answer, b"");
    open.pop();
    eventually("there is room again", async || {
        let mut stream = TcpStream::connect(world.addr()).await.unwrap();
        stream.write_all(request).await.ok();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.is_ok() && &answer == b"HTTP/1.1 200"
    })
    .await;
    drop(open);
    world.stop().await;
}

#[tokio::test]
async fn a_path_that_looks_like_the_api_on_a_servers_origin_is_the_notebooks() {
    let world = World::start().await;
    let answer = world
        .browse(
            server(7),
            "/v1/servers",
            &[("authorization", "Bearer cnl_test_of_alice")],
        )
        .await;
    assert_eq!(answer.status, 401, "a token is no session");
    let grpc = world.request(
        server(7),
        "POST",
        "/cnlab.scheduler.v1.ServerService/ListServers",
        &[("content-type", "application/grpc")],
        "",
    );
    assert_eq!(world.send(grpc).await.status(), 401);
    assert!(world.scheduler.service().0.lock().unwrap().calls.is_empty());
    let unknown = world
        .raw(b"GET / HTTP/1.1\r\nhost: srv-nonsense.localhost\r\nconnection: close\r\n\r\n")
        .await;
    assert!(unknown.starts_with("HTTP/1.1 421"), "{unknown}");
    world.stop().await;
}

#[tokio::test]
async fn a_lack_of_file_handles_is_waited_out() {
    let port = cnlab_testkit::free_port().unwrap();
    let mut command = cnlab_testkit::tied_command("sh", cnlab_testkit::Signal::SIGKILL);
    command
        .args(["-c", "ulimit -n 64; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_gateway"))
        .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
        .args([
            "--set",
            "common.internal_key=0123456789abcdef0123456789abcdef",
        ]);
    let _gateway = cnlab_testkit::ChildGuard::spawn(command).unwrap();
    let healthy = async || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
            return false;
        };
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .ok();
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_secs(2), stream.read_exact(&mut answer));
        matches!(read.await, Ok(Ok(_))) && &answer == b"HTTP/1.1 200"
    };
    eventually("the gateway is up", healthy).await;
    // More than it has handles for; the rest waits in the backlog.
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(open);
    eventually("the gateway answers again", healthy).await;
}
