//! The gateway's own addresses.

use http::{Request, StatusCode, header};
use http_body_util::Full;

use crate::{
    peers::server,
    world::{Answer, World},
};

async fn get(world: &World, host: &str, path: &str) -> Answer {
    let request = Request::get(path)
        .header(header::HOST, host)
        .body(Full::default())
        .unwrap();
    Answer::of(world.send(request).await).await
}

#[tokio::test]
async fn the_landing_page_stands_alone() {
    let world = World::start().await;
    let page = get(&world, "localhost", "/").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text().contains("cnlab server create"));
    assert!(
        page.header("content-security-policy")
            .contains("default-src 'none'")
    );
    assert!(
        !page.text().contains("http://") && !page.text().contains("https://"),
        "no asset of anybody else"
    );
    let style = get(&world, "localhost", "/style.css").await;
    assert_eq!(style.header("content-type"), "text/css; charset=utf-8");
    assert_eq!(
        get(&world, "localhost", "/nothing").await.status,
        StatusCode::NOT_FOUND
    );
    world.stop().await;
}

#[tokio::test]
async fn a_printed_address_leads_to_the_servers_own_origin() {
    let world = World::start().await;
    let id = server(u128::MAX / 5);
    let host = format!("nb.localhost:{}", world.port());
    for (path, end) in [
        ("", "/"),
        ("/", "/"),
        ("/lab/tree/a.ipynb?x=1", "/lab/tree/a.ipynb?x=1"),
        ("//evil.example", "//evil.example"),
    ] {
        let answer = get(&world, &host, &format!("/{id}{path}")).await;
        assert_eq!(answer.status, StatusCode::FOUND, "{path}");
        assert_eq!(
            answer.header("location"),
            format!("http://{}{end}", world.host(id))
        );
    }
    let lower = get(
        &world,
        &host,
        &format!("/{}", id.to_string().to_lowercase()),
    )
    .await;
    assert_eq!(lower.status, StatusCode::NOT_FOUND);
    world.stop().await;
}

#[tokio::test]
async fn health_and_readiness_differ() {
    let world = World::start().await;
    assert_eq!(get(&world, "x", "/healthz").await.status, StatusCode::OK);
    let ready = get(&world, "x", "/readyz").await;
    assert_eq!((ready.status, ready.text()), (StatusCode::OK, "ready\n"));
    let World {
        gateway,
        billing,
        scheduler,
        node,
        runtime,
    } = world;
    billing.stop().await;
    let stream = tokio::net::TcpStream::connect(gateway.addr())
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    runtime
        .tasks
        .spawn("test connection", async move { connection.await.ok() });
    let request = Request::get("/readyz")
        .header(header::HOST, "x")
        .body(Full::<bytes::Bytes>::default())
        .unwrap();
    let answer = Answer::of(sender.send_request(request).await.unwrap()).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (503, "billing-svc does not answer\n")
    );
    let request = Request::get("/healthz")
        .header(header::HOST, "x")
        .body(Full::<bytes::Bytes>::default())
        .unwrap();
    assert_eq!(
        sender.send_request(request).await.unwrap().status(),
        StatusCode::OK
    );
    drop((sender, node));
    gateway.stop().await;
    scheduler.stop().await;
}
