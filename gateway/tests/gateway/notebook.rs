//! The notebook proxy over HTTP.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cnlab_service::Secret;
use futures_util::StreamExt as _;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody};

use crate::{
    node::{hash, pattern},
    peers::server,
    world::{ALICE, Answer, GENEROUS, TOKEN, World, eventually},
};

const COOKIE: &str = "__Host-cnlab=alice";

async fn signed_in() -> World {
    let world = World::start().await;
    world.session("alice", ALICE, server(7));
    world
}

#[tokio::test]
async fn a_token_of_ours_does_not_reach_a_notebook() {
    let world = signed_in().await;
    let token = format!("Bearer {TOKEN}");
    let headers = [("cookie", COOKIE), ("authorization", token.as_str())];
    let answer = world.browse(server(7), "/api", &headers).await;
    assert!(!answer.seen().contains_key("authorization"), "{answer:?}");
    world.stop().await;
}

#[tokio::test]
async fn a_wrong_internal_key_is_an_outage_and_no_refusal() {
    let world = World::with(|config| {
        config.common.internal_key = Secret::new("another-key-another-key-another-key".to_owned());
    })
    .await;
    world.session("alice", ALICE, server(7));
    let answer = world.browse(server(7), "/api", &[("cookie", COOKIE)]).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    world.stop().await;
}

#[tokio::test]
async fn the_notebook_sees_what_the_browser_said_and_nothing_of_ours() {
    let world = signed_in().await;
    let host = world.host(server(7));
    let origin = format!("http://{host}");
    let answer = world
        .browse(
            server(7),
            "/api/contents/a%2Fb%20c?x=%2e%2e",
            &[
                ("cookie", "_xsrf=2|a; __Host-cnlab=alice; b=2"),
                ("authorization", "token of-the-app"),
                ("origin", &origin),
                ("connection", "keep-alive, x-once"),
                ("x-once", "1"),
                ("te", "trailers"),
                ("cnlab-fence", "999"),
                ("cnlab-internal-key", "guess"),
                ("x-forwarded-for", "1.2.3.4"),
                ("under_score", "1"),
            ],
        )
        .await;
    assert_eq!(answer.json()["target"], "/api/contents/a%2Fb%20c?x=%2e%2e");
    let seen = answer.seen();
    assert_eq!(seen["cookie"], "_xsrf=2|a; b=2");
    assert_eq!(seen["authorization"], "token of-the-app");
    assert_eq!(
        (seen["host"].as_str(), seen["origin"].as_str()),
        (host.as_str(), origin.as_str())
    );
    assert_eq!(
        (
            seen["cnlab-fence"].as_str(),
            seen["x-forwarded-proto"].as_str()
        ),
        ("5", "http")
    );
    for gone in [
        "x-once",
        "te",
        "connection",
        "x-forwarded-for",
        "under_score",
    ] {
        assert!(!seen.contains_key(gone), "{gone}: {seen:?}");
    }
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(
        answer.header("content-security-policy"),
        "frame-ancestors 'self'"
    );
    let cookies = world
        .browse(server(7), "/cookies", &[("cookie", COOKIE)])
        .await;
    let set: Vec<_> = cookies.headers.get_all(header::SET_COOKIE).iter().collect();
    assert_eq!(set, ["a=1"], "a notebook cannot sign anybody in or out");
    assert!(
        !cookies
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("cnlab-"))
    );
    world.stop().await;
}

#[tokio::test]
async fn http2_browsers_are_served_too() {
    let world = signed_in().await;
    let host = world.host(server(7));
    let request = Request::get(format!("http://{host}/lab?x=1"))
        .header("cookie", COOKIE)
        .body(Full::default())
        .unwrap();
    let answer = Answer::of(world.send_h2(request).await).await;
    assert_eq!(answer.json()["target"], "/lab?x=1");
    assert_eq!(answer.seen()["host"], host);
    let mut mismatch = Request::get(format!("http://{host}/lab")).header("cookie", COOKIE);
    mismatch = mismatch.header(header::HOST, "localhost");
    let refused = world.send_h2(mismatch.body(Full::default()).unwrap()).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    world.stop().await;
}

#[tokio::test]
async fn large_bodies_pass_both_ways_unchanged() {
    let world = signed_in().await;
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 160;
    let expected = hash(&pattern(0, PIECE * PIECES));
    // Without an announced length.
    let pieces = futures_util::stream::iter(0..PIECES)
        .map(|at| Ok::<_, std::io::Error>(http_body::Frame::data(pattern(at * PIECE, PIECE))));
    let request = Request::post("/upload")
        .header(header::HOST, world.host(server(7)))
        .header(header::COOKIE, COOKIE)
        .body(StreamBody::new(pieces))
        .unwrap();
    let answer = Answer::of(world.send_body(request).await).await.json();
    assert_eq!(answer["length"], PIECE * PIECES);
    assert_eq!(answer["hash"], expected);
    // With one.
    let request = Request::put("/upload")
        .header(header::HOST, world.host(server(7)))
        .header(header::COOKIE, COOKIE)
        .header(header::EXPECT, "100-continue")
        .body(Full::from(pattern(0, PIECE * PIECES)))
        .unwrap();
    let answer = Answer::of(world.send(request).await).await.json();
    assert_eq!(
        (answer["announced"].as_str(), answer["hash"].as_str()),
        (Some("10485760"), Some(expected.as_str()))
    );
    let download = world
        .browse(
            server(7),
            &format!("/download/{}", PIECE * PIECES),
            &[("cookie", COOKIE)],
        )
        .await;
    assert_eq!(hash(&download.body), expected);
    world.stop().await;
}

#[tokio::test]
async fn events_are_not_held_back() {
    let world = signed_in().await;
    let request = world.request(server(7), "GET", "/events", &[("cookie", COOKIE)], "");
    let mut body = world.send(request).await.into_body();
    let mut frame = async || {
        tokio::time::timeout(GENEROUS, body.frame())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap()
    };
    assert_eq!(frame().await, "data: 1\n\n");
    world.node.release.notify_one();
    assert_eq!(frame().await, "data: 2\n\n");
    world.stop().await;
}

#[tokio::test]
async fn connections_to_the_node_are_used_again() {
    let world = signed_in().await;
    let stream = tokio::net::TcpStream::connect(world.addr()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    world
        .tasks()
        .spawn("test connection", async move { connection.await.ok() });
    for number in 0..50 {
        let request = world.request(
            server(7),
            "GET",
            &format!("/{number}"),
            &[("cookie", COOKIE)],
            "",
        );
        let answer = Answer::of(sender.send_request(request).await.unwrap()).await;
        assert_eq!(answer.json()["target"], format!("/{number}"));
    }
    let connections = world.node.connections.load(Ordering::SeqCst);
    assert!(
        connections <= 3,
        "{connections} connections for 50 requests one after another"
    );
    drop(sender);
    world.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_not_read_is_nobody_elses() {
    let world = signed_in().await;
    for _ in 0..20 {
        let request = world.request(
            server(7),
            "GET",
            "/download/8000000",
            &[("cookie", COOKIE)],
            "",
        );
        let mut body = world.send(request).await.into_body();
        body.frame().await.unwrap().unwrap();
        drop(body);
        let large = futures_util::stream::iter(0..8)
            .map(|at| Ok::<_, std::io::Error>(http_body::Frame::data(pattern(at, 64 * 1024))));
        let early = Request::post("/early")
            .header(header::HOST, world.host(server(7)))
            .header(header::COOKIE, COOKIE);
        let answer = Answer::of(
            world
                .send_body(early.body(StreamBody::new(large)).unwrap())
                .await,
        )
        .await;
        // The node hangs up on the rest of the body, which may cost its answer.
        assert!(
            answer.text() == "enough" || answer.status == StatusCode::SERVICE_UNAVAILABLE,
            "{answer:?}"
        );
        let next = world
            .browse(server(7), "/next", &[("cookie", COOKIE)])
            .await;
        assert_eq!(next.json()["target"], "/next");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_says_what_it_does() {
    let world = signed_in().await;
    world.route(server(7), ALICE, |route| {
        route.ready = false;
        route.node_endpoint.clear();
        route.state_text = "building the environment <1 min>".to_owned();
    });
    let page = world
        .browse(
            server(7),
            "/lab",
            &[("cookie", COOKIE), ("accept", "text/html")],
        )
        .await;
    assert_eq!(
        (page.status.as_u16(), page.header("retry-after")),
        (503, "2")
    );
    assert!(
        page.text()
            .contains("building the environment &lt;1 min&gt;")
    );
    assert!(page.text().contains("http-equiv=\"refresh\""));
    let data = world.browse(server(7), "/api", &[("cookie", COOKIE)]).await;
    assert_eq!(
        (data.status.as_u16(), data.header("retry-after")),
        (503, "2")
    );
    world.route(server(7), ALICE, |_| {});
    let ready = world.browse(server(7), "/lab", &[("cookie", COOKIE)]).await;
    assert_eq!(
        ready.status,
        StatusCode::OK,
        "not being ready is not remembered"
    );
    world.scheduler.service().0.lock().unwrap().routes.clear();
    eventually("the server is gone", async || {
        world
            .browse(server(7), "/lab", &[("cookie", COOKIE)])
            .await
            .status
            == StatusCode::NOT_FOUND
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_stale_route_reaches_nobody_else_and_heals() {
    let world = signed_in().await;
    assert_eq!(
        world
            .browse(server(7), "/a", &[("cookie", COOKIE)])
            .await
            .status,
        StatusCode::OK
    );
    // The node runs it under a newer fence now; the gateway remembers the old one.
    world.node.run(server(7), 6);
    world.route(server(7), ALICE, |route| route.fence = 6);
    let stale = world.browse(server(7), "/b", &[("cookie", COOKIE)]).await;
    assert!(matches!(stale.status.as_u16(), 200 | 503), "{stale:?}");
    assert!(
        !stale.text().contains("another workload"),
        "a node's refusal is not for the browser"
    );
    let healed = world.browse(server(7), "/c", &[("cookie", COOKIE)]).await;
    assert_eq!(healed.seen()["cnlab-fence"], "6");
    // The address is another tenant's now.
    world.node.end(server(7));
    let answer = world.browse(server(7), "/d", &[("cookie", COOKIE)]).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    world.stop().await;
}

#[tokio::test]
async fn a_node_that_moved_is_found_again() {
    let world = signed_in().await;
    let elsewhere = crate::node::NodePeer::start(world.tasks()).await;
    elsewhere.run(server(7), 6);
    // Nobody listens at the old address.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    world.route(server(7), ALICE, |route| {
        route.node_endpoint = format!("http://{closed}");
    });
    let away = world
        .browse(
            server(7),
            "/a",
            &[("cookie", COOKIE), ("accept", "text/html")],
        )
        .await;
    assert_eq!(away.status, StatusCode::SERVICE_UNAVAILABLE);
    world.route(server(7), ALICE, |route| {
        route.node_endpoint = elsewhere.endpoint();
        route.fence = 6;
    });
    let found = world.browse(server(7), "/b", &[("cookie", COOKIE)]).await;
    assert_eq!(found.status, StatusCode::OK);
    assert_eq!(elsewhere.requests.load(Ordering::SeqCst), 1);
    world.stop().await;
}

#[tokio::test]
async fn many_tenants_at_once_never_see_each_other() {
    let world = World::start().await;
    for number in 100..110 {
        world.serve(server(number), number);
        world.session(&format!("s{number}"), number, server(number));
    }
    let requests = (0..400_u128).map(|at| {
        let number = 100 + at % 10;
        let world = &world;
        async move {
            let cookie = format!("__Host-cnlab=s{number}");
            let path = format!("/{number}/{at}");
            let answer = world
                .browse(server(number), &path, &[("cookie", &cookie)])
                .await;
            assert_eq!(answer.json()["workload"], server(number).to_string());
            assert_eq!(answer.json()["target"], path);
        }
    });
    futures_util::stream::iter(requests)
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await;
    world.stop().await;
}

#[tokio::test]
async fn a_head_answer_has_a_length_and_no_body() {
    let world = signed_in().await;
    let request = world.request(server(7), "HEAD", "/files/x", &[("cookie", COOKIE)], "");
    let answer = Answer::of(world.send(request).await).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_ne!(answer.header("content-length"), "0");
    assert_eq!(answer.body, Bytes::new());
    world.stop().await;
}
