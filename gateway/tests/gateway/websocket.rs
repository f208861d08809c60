//! WebSockets through the notebook proxy.

use std::sync::atomic::Ordering;

use cnlab_service::Span;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Request, StatusCode, header};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, handshake::client::generate_key},
};

use crate::{
    node::pattern,
    peers::server,
    world::{ALICE, GENEROUS, World, eventually},
};

type Socket = WebSocketStream<TcpStream>;

fn request(world: &World, headers: &[(&str, &str)]) -> Request<()> {
    let host = world.host(server(7));
    let mut request = Request::get(format!("ws://{host}/ws"))
        .header(header::HOST, &host)
        .header(header::CONNECTION, "keep-alive, Upgrade")
        .header(header::UPGRADE, "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", generate_key());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

async fn open(
    world: &World,
    headers: &[(&str, &str)],
) -> Result<(Socket, http::Response<()>), StatusCode> {
    let origin = format!("http://{}", world.host(server(7)));
    let mut all = vec![
        ("cookie", "__Host-cnlab=alice"),
        ("origin", origin.as_str()),
    ];
    all.retain(|(name, _)| !headers.iter().any(|(other, _)| other == name));
    all.extend(
        headers
            .iter()
            .copied()
            .filter(|(_, value)| !value.is_empty()),
    );
    let stream = TcpStream::connect(world.addr()).await.unwrap();
    match client_async(request(world, &all), stream).await {
        Ok((socket, response)) => Ok((socket, response.map(drop))),
        Err(Error::Http(response)) => Err(response.status()),
        Err(other) => panic!("{other}"),
    }
}

async fn signed_in() -> World {
    let world = World::start().await;
    world.session("alice", ALICE, server(7));
    world
}

async fn next(socket: &mut Socket) -> Option<Message> {
    tokio::time::timeout(GENEROUS, socket.next())
        .await
        .expect("nothing came")
        .and_then(Result::ok)
}

#[tokio::test]
async fn subprotocols_are_between_the_browser_and_the_notebook() {
    let world = signed_in().await;
    for (offered, seen, chosen) in [
        (
            "v1.kernel.websocket.jupyter.org",
            "v1.kernel.websocket.jupyter.org",
            Some("v1.kernel.websocket.jupyter.org"),
        ),
        ("a, b ,c", "a, b ,c", Some("c")),
    ] {
        let (mut socket, response) = open(&world, &[("sec-websocket-protocol", offered)])
            .await
            .unwrap();
        assert_eq!(
            response
                .headers()
                .get("sec-websocket-protocol")
                .map(|v| v.to_str().unwrap()),
            chosen
        );
        assert_eq!(next(&mut socket).await.unwrap().to_text().unwrap(), seen);
        socket.send("1+1".into()).await.unwrap();
        assert_eq!(next(&mut socket).await.unwrap().to_text().unwrap(), "1+1");
    }
    let (mut socket, response) = open(&world, &[]).await.unwrap();
    assert!(response.headers().get("sec-websocket-protocol").is_none());
    assert_eq!(next(&mut socket).await.unwrap().to_text().unwrap(), "");
    assert!(
        !response
            .headers()
            .keys()
            .any(|name| name.as_str().starts_with("cnlab-"))
    );
    drop(socket);
    world.stop().await;
}

#[tokio::test]
async fn large_messages_pass_in_order() {
    let world = signed_in().await;
    let (mut socket, _) = open(&world, &[]).await.unwrap();
    next(&mut socket).await.unwrap();
    for size in [0, 1, 125, 126, 65_536, 4 << 20] {
        let message = Message::Binary(pattern(size, size));
        socket.send(message.clone()).await.unwrap();
        assert_eq!(next(&mut socket).await, Some(message), "{size}");
    }
    drop(socket);
    eventually("the notebook sees the end", async || {
        world.node.open_sockets.load(Ordering::SeqCst) == 0
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn other_sites_and_strangers_are_refused() {
    let world = signed_in().await;
    let sibling = format!("http://{}", world.host(server(8)));
    let secure = format!("https://{}", world.host(server(7)));
    for origin in ["http://evil.example", "null", "", &sibling, &secure] {
        assert_eq!(
            open(&world, &[("origin", origin)]).await.unwrap_err(),
            StatusCode::FORBIDDEN,
            "{origin}"
        );
    }
    for cookie in ["", "__Host-cnlab=wrong", "alice"] {
        assert_eq!(
            open(&world, &[("cookie", cookie)]).await.unwrap_err(),
            StatusCode::UNAUTHORIZED,
            "{cookie}"
        );
    }
    assert_eq!(world.node.requests.load(Ordering::SeqCst), 0);
    world.stop().await;
}

#[tokio::test]
async fn a_revoked_session_ends_its_sockets() {
    let world = signed_in().await;
    let (mut socket, _) = open(&world, &[]).await.unwrap();
    next(&mut socket).await.unwrap();
    world.revoke("alice");
    assert_eq!(next(&mut socket).await, None, "the socket ends");
    eventually("the notebook's side ends", async || {
        world.node.open_sockets.load(Ordering::SeqCst) == 0
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn an_outage_of_billing_ends_no_socket() {
    let world = signed_in().await;
    let (mut socket, _) = open(&world, &[]).await.unwrap();
    next(&mut socket).await.unwrap();
    let World {
        gateway,
        billing,
        scheduler,
        node,
        runtime,
    } = world;
    billing.stop().await;
    // Longer than any memory of the session.
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    socket.send("still here".into()).await.unwrap();
    assert_eq!(
        next(&mut socket).await.unwrap().to_text().unwrap(),
        "still here"
    );
    drop((socket, node));
    gateway.stop().await;
    scheduler.stop().await;
    assert!(runtime.tasks.stop(GENEROUS).await);
}

#[tokio::test]
async fn a_socket_whose_session_nobody_can_check_ends() {
    let world = World::with(|config| {
        config.limits.session_unchecked = Span(std::time::Duration::from_secs(1));
    })
    .await;
    world.session("alice", ALICE, server(7));
    let (mut socket, _) = open(&world, &[]).await.unwrap();
    next(&mut socket).await.unwrap();
    let World {
        gateway,
        billing,
        scheduler,
        node,
        runtime,
    } = world;
    billing.stop().await;
    assert_eq!(next(&mut socket).await, None);
    drop((socket, node));
    gateway.stop().await;
    scheduler.stop().await;
    assert!(runtime.tasks.stop(GENEROUS).await);
}

#[tokio::test]
async fn a_stop_gives_sockets_time_and_then_ends_them() {
    let world =
        World::with(|config| config.limits.drain = Span(std::time::Duration::from_secs(1))).await;
    world.session("alice", ALICE, server(7));
    let (mut socket, _) = open(&world, &[]).await.unwrap();
    next(&mut socket).await.unwrap();
    let World {
        gateway,
        billing,
        scheduler,
        node,
        runtime,
    } = world;
    let stopping = runtime.tasks.spawn("test stop", gateway.stop());
    socket.send("during the drain".into()).await.unwrap();
    assert_eq!(
        next(&mut socket).await.unwrap().to_text().unwrap(),
        "during the drain"
    );
    assert_eq!(next(&mut socket).await, None);
    stopping.await.unwrap();
    drop((socket, node));
    billing.stop().await;
    scheduler.stop().await;
    assert!(runtime.tasks.stop(GENEROUS).await);
}

#[tokio::test]
async fn bytes_before_the_answer_go_nowhere() {
    let world = signed_in().await;
    let host = world.host(server(7));
    // `/lab` does not change protocols; what follows must not be taken for a request either.
    let text = format!(
        "GET /lab HTTP/1.1\r\nhost: {host}\r\ncookie: __Host-cnlab=alice\r\norigin: http://{host}\r\n\
         connection: upgrade\r\nupgrade: websocket\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: {host}\r\n\r\n"
    );
    let answer = world.raw(text.as_bytes()).await;
    assert!(!answer.contains("smuggled"), "{answer}");
    // Another protocol is not an upgrade: it is answered as if it had not been asked for.
    let text = format!(
        "GET /lab HTTP/1.1\r\nhost: {host}\r\ncookie: __Host-cnlab=alice\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n"
    );
    let answer = world.raw(text.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && !answer.contains("h2c"),
        "{answer}"
    );
    world.stop().await;
}
