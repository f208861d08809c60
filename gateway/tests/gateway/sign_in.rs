//! Who gets in to a server's origin, and how.

use std::sync::atomic::Ordering;

use http::StatusCode;

use crate::{
    peers::server,
    world::{ALICE, Answer, MALLORY, World, eventually},
};

const COOKIE: &str = "__Host-cnlab=alice";

async fn signed_in() -> World {
    let world = World::start().await;
    world.session("alice", ALICE, server(7));
    world
}

#[tokio::test]
async fn nobody_gets_in_without_a_session() {
    let world = World::start().await;
    let page = world
        .browse(
            server(7),
            "/lab",
            &[("accept", "text/html,*/*"), ("sec-fetch-mode", "navigate")],
        )
        .await;
    assert_eq!(page.status, StatusCode::UNAUTHORIZED);
    assert!(
        page.text()
            .contains(&format!("cnlab server open {}", server(7))),
        "{}",
        page.text()
    );
    assert!(
        !page.text().contains("first"),
        "a stranger does not learn the name"
    );
    let data = world
        .browse(
            server(7),
            "/api/contents",
            &[("accept", "application/json")],
        )
        .await;
    assert_eq!(
        (data.status, data.header("content-type")),
        (StatusCode::UNAUTHORIZED, "text/plain; charset=utf-8")
    );
    // A server that does not exist looks the same.
    let other = world
        .browse(server(99), "/lab", &[("accept", "text/html")])
        .await;
    assert_eq!(other.status, StatusCode::UNAUTHORIZED);
    let wrong = world
        .browse(server(7), "/lab", &[("cookie", "__Host-cnlab=guess")])
        .await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    assert_eq!(world.node.requests.load(Ordering::SeqCst), 0);
    world.stop().await;
}

#[tokio::test]
async fn only_the_owner_gets_in() {
    let world = World::start().await;
    world.serve(server(8), MALLORY);
    world.session("mallory", MALLORY, server(8));
    // A session is for one server, whoever owns the other.
    world.session("guest", MALLORY, server(7));
    for session in ["mallory", "guest"] {
        let answer = world
            .browse(
                server(7),
                "/lab",
                &[("cookie", &format!("__Host-cnlab={session}"))],
            )
            .await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{session}");
    }
    assert_eq!(world.node.requests.load(Ordering::SeqCst), 0);
    let own = world
        .browse(server(8), "/lab", &[("cookie", "__Host-cnlab=mallory")])
        .await;
    assert_eq!(own.json()["workload"], server(8).to_string());
    world.stop().await;
}

#[tokio::test]
async fn a_code_becomes_a_session_once_and_only_by_a_post_of_the_own_origin() {
    let world = World::start().await;
    world
        .billing
        .service()
        .0
        .lock()
        .unwrap()
        .codes
        .insert("c0de".to_owned(), (ALICE, server(7)));
    let origin = format!("http://{}", world.host(server(7)));
    let page = world.browse(server(7), "/_cnlab/open", &[]).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text().contains("/_cnlab/open.js"));
    let script = world.browse(server(7), "/_cnlab/open.js", &[]).await;
    assert!(script.header("content-type").starts_with("text/javascript"));
    let post = |origin: &str, kind: &str, body: &str, server| {
        world.request(
            server,
            "POST",
            "/_cnlab/session",
            &[("origin", origin), ("content-type", kind)],
            body,
        )
    };
    let code = r#"{"code":"c0de"}"#;
    for (request, status) in [
        (
            post("http://evil.localhost", "application/json", code, server(7)),
            403,
        ),
        (post("null", "application/json", code, server(7)), 403),
        (
            post(
                &origin.replace("http:", "https:"),
                "application/json",
                code,
                server(7),
            ),
            403,
        ),
        (post(&origin, "text/plain", code, server(7)), 415),
        (
            post(
                &origin,
                "application/json",
                r#"{"code":"other"}"#,
                server(7),
            ),
            401,
        ),
        (post(&origin, "application/json", "{}", server(7)), 400),
        (
            world.request(
                server(7),
                "GET",
                "/_cnlab/session?code=c0de",
                &[("origin", &origin)],
                "",
            ),
            405,
        ),
        (
            world.request(
                server(7),
                "POST",
                "/_cnlab/session",
                &[("content-type", "application/json")],
                code,
            ),
            403,
        ),
    ] {
        assert_eq!(
            Answer::of(world.send(request).await).await.status.as_u16(),
            status
        );
    }
    let foreign = format!("http://{}", world.host(server(8)));
    let elsewhere = Answer::of(
        world
            .send(post(&foreign, "application/json", code, server(8)))
            .await,
    )
    .await;
    assert_eq!(
        elsewhere.status,
        StatusCode::UNAUTHORIZED,
        "a code is for one server"
    );
    let answer = Answer::of(
        world
            .send(post(&origin, "application/json", code, server(7)))
            .await,
    )
    .await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (StatusCode::SEE_OTHER, "/lab")
    );
    assert_eq!(
        answer.header("set-cookie"),
        "__Host-cnlab=session-of-c0de; Path=/; Secure; HttpOnly; SameSite=Lax"
    );
    let again = Answer::of(
        world
            .send(post(&origin, "application/json", code, server(7)))
            .await,
    )
    .await;
    assert_eq!(
        (again.status.as_u16(), again.json()["reason"].as_str()),
        (401, Some("CODE_INVALID"))
    );
    let inside = world
        .browse(
            server(7),
            "/lab",
            &[("cookie", "__Host-cnlab=session-of-c0de")],
        )
        .await;
    assert_eq!(inside.status, StatusCode::OK);
    assert!(world.browse(server(7), "/_cnlab/other", &[]).await.status == StatusCode::NOT_FOUND);
    world.stop().await;
}

#[tokio::test]
async fn a_revoked_session_is_refused_soon() {
    let world = signed_in().await;
    assert_eq!(
        world
            .browse(server(7), "/a", &[("cookie", COOKIE)])
            .await
            .status,
        StatusCode::OK
    );
    world.revoke("alice");
    eventually("the session is refused", async || {
        world
            .browse(server(7), "/a", &[("cookie", COOKIE)])
            .await
            .status
            == StatusCode::UNAUTHORIZED
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_come_by_a_link_or_not_at_all() {
    let world = signed_in().await;
    let own = format!("http://{}", world.host(server(7)));
    let sibling = format!("http://{}", world.host(server(8)));
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    let script = [
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-dest", "script"),
    ];
    let frame = [
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "iframe"),
    ];
    let fetch = [
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-mode", "cors"),
        ("origin", own.as_str()),
    ];
    let foreign = [("origin", sibling.as_str())];
    let opaque = [("origin", "null")];
    for (method, headers, status) in [
        ("GET", &link[..], 200),
        ("POST", &link[..], 403),
        ("GET", &script[..], 403),
        ("GET", &frame[..], 403),
        ("GET", &fetch[..], 200),
        ("POST", &fetch[..], 200),
        ("POST", &foreign[..], 403),
        ("DELETE", &opaque[..], 403),
        ("GET", &foreign[..], 200),
        ("POST", &[][..], 200),
    ] {
        let mut all = vec![("cookie", COOKIE)];
        all.extend_from_slice(headers);
        let request = world.request(server(7), method, "/api", &all, "");
        let answer = Answer::of(world.send(request).await).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {headers:?}");
    }
    world.stop().await;
}
