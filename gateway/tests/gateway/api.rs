//! The HTTP/JSON API.

use std::{fs, path::Path, time::Duration};

use bytes::Bytes;
use cnlab_service::Span;
use futures_util::StreamExt as _;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::json;

use crate::world::{Answer, GENEROUS, TOKEN, World};

#[tokio::test]
async fn every_kind_of_method_is_transcoded() {
    let world = World::start().await;
    let made = world
        .api(
            "POST",
            "/v1/servers",
            r#"{"name":"first","storageBytes":"1024","install_heavy":true}"#,
        )
        .await;
    assert_eq!(made.status, StatusCode::OK, "{made:?}");
    assert_eq!(made.header("content-type"), "application/json");
    assert_eq!(made.json()["name"], "first");
    assert_eq!(made.json()["state"], "SERVER_STATE_READY");
    assert_eq!(made.json()["storageBytes"], "53687091200");
    {
        let state = world.scheduler.service().0.lock().unwrap();
        let (request, _) = &state.created[0];
        assert_eq!((request.storage_bytes, request.install_heavy), (1024, true));
    }
    for (method, path, body) in [
        ("GET", "/v1/servers/a%2Fb%2Fc", ""),
        ("POST", "/v1/servers/a%2Fb%2Fc:start", ""),
        ("POST", "/v1/servers/a%2Fb%2Fc:stop", "{}"),
        (
            "POST",
            "/v1/servers/a%2Fb%2Fc:stop",
            r#"{"server":"a/b/c"}"#,
        ),
        ("DELETE", "/v1/servers/a%2Fb%2Fc", ""),
    ] {
        let answer = world.api(method, path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{method} {path}: {answer:?}");
        assert_eq!(answer.json()["name"], "a/b/c");
    }
    let listed = world
        .api("GET", "/v1/servers?project=a%2Fb&page_size=7", "")
        .await;
    assert_eq!(
        listed.json(),
        json!({ "servers": [], "nextPageToken": "a/b/7" })
    );
    let me = world.api("GET", "/v1/me", "").await;
    assert_eq!(
        me.json()["userName"],
        "user1",
        "another service, with the caller"
    );
    world.stop().await;
}

#[tokio::test]
async fn streams_are_events() {
    let world = World::start().await;
    let watched = world.api("GET", "/v1/servers/first:watch", "").await;
    assert_eq!(watched.header("content-type"), "text/event-stream");
    let events: Vec<_> = watched.text().split_terminator("\n\n").collect();
    let name = |event: &str| {
        let data: serde_json::Value =
            serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        data["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (
            name(events[0]).as_str(),
            name(events[1]).as_str(),
            events[2]
        ),
        ("first", "second", "event: end\ndata: {}")
    );
    let failed = world.api("GET", "/v1/servers/failing:watch", "").await;
    let last = failed.text().trim_end().rsplit("\n\n").next().unwrap();
    let problem: serde_json::Value =
        serde_json::from_str(last.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
    assert_eq!(
        (problem["reason"].as_str(), problem["status"].as_u64()),
        (Some("NODE_LOST"), Some(503))
    );
    let logs = world
        .api("GET", "/v1/servers/x/logs?follow=true&tailLines=3", "")
        .await;
    assert!(logs.text().contains(r#"{"text":"x true 3\n"}"#), "{logs:?}");
    world.stop().await;
}

#[tokio::test]
async fn an_event_is_sent_when_it_happens() {
    let world = World::start().await;
    let request = Request::get("/v1/servers/forever:watch")
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
        .body(Full::default())
        .unwrap();
    let mut body = world.send(request).await.into_body();
    let mut seen = String::new();
    while !seen.contains("second") {
        let frame = tokio::time::timeout(GENEROUS, body.frame())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    assert!(!seen.contains("event: end"));
    drop(body);
    world.stop().await;
}

#[tokio::test]
async fn errors_are_problems() {
    let world = World::start().await;
    for (method, path, body, status, reason, field) in [
        ("GET", "/v1/nothing", "", 404, "NO_SUCH_PATH", None),
        ("GET", "/v1/servers/a:fly", "", 404, "NO_SUCH_PATH", None),
        (
            "PATCH",
            "/v1/servers/a",
            "{}",
            405,
            "METHOD_NOT_ALLOWED",
            None,
        ),
        (
            "GET",
            "/v1/servers/missing",
            "",
            404,
            "SERVER_NOT_FOUND",
            None,
        ),
        ("GET", "/v1/servers/broken", "", 500, "INTERNAL", None),
        (
            "POST",
            "/v1/servers",
            r#"{"name":"x"}"#,
            400,
            "INVALID_FIELD",
            Some("storage_bytes"),
        ),
        (
            "POST",
            "/v1/servers",
            r#"{"nane":"x"}"#,
            400,
            "INVALID_FIELD",
            Some("nane"),
        ),
        (
            "POST",
            "/v1/servers",
            r#"{"name":1}"#,
            400,
            "INVALID_FIELD",
            Some("name"),
        ),
        ("POST", "/v1/servers", "{", 400, "INVALID_JSON", None),
        (
            "POST",
            "/v1/servers?name=x",
            "{}",
            400,
            "INVALID_FIELD",
            Some("name"),
        ),
        (
            "POST",
            "/v1/servers/a:stop",
            r#"{"server":"b"}"#,
            400,
            "INVALID_FIELD",
            Some("server"),
        ),
        (
            "GET",
            "/v1/servers?pagesize=1",
            "",
            400,
            "INVALID_FIELD",
            Some("pagesize"),
        ),
        ("GET", "/v1/servers/a", "{}", 400, "MALFORMED_REQUEST", None),
        ("GET", "/v1/usage", "", 501, "UNIMPLEMENTED", None),
    ] {
        let answer = world.api(method, path, body).await;
        let problem = answer.json();
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{method} {path}"
        );
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {problem}");
        assert_eq!(problem["status"], status, "{method} {path}");
        assert_eq!(problem["reason"], reason, "{method} {path}: {problem}");
        assert_eq!(
            problem["field"].as_str(),
            field,
            "{method} {path}: {problem}"
        );
        assert_eq!(problem["type"], format!("urn:cnlab:error:{reason}"));
        assert!(!problem.to_string().contains("secret words"), "{problem}");
    }
    let refused = world.api("PUT", "/v1/servers/a", "").await;
    assert_eq!(refused.header("allow"), "GET, DELETE");
    let missing = world.api("GET", "/v1/servers/missing", "").await.json();
    assert_eq!(missing["try"], "list them with cnlab server list");
    world.stop().await;
}

#[tokio::test]
async fn bodies_of_the_wrong_kind_or_size_are_refused() {
    let world = World::start().await;
    let request = |kind: &str| {
        Request::post("/v1/servers")
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(header::CONTENT_TYPE, kind.to_owned())
    };
    let form = request("application/x-www-form-urlencoded")
        .body(Full::from("a=b"))
        .unwrap();
    let answer = Answer::of(world.send(form).await).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["reason"].as_str()),
        (415, Some("NOT_JSON"))
    );
    let large = request("application/json")
        .body(Full::from(vec![b' '; 2 << 20]))
        .unwrap();
    let answer = Answer::of(world.send(large).await).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["reason"].as_str()),
        (413, Some("BODY_TOO_LARGE"))
    );
    // Nothing announces how long this one is.
    let pieces = futures_util::stream::iter(vec![Bytes::from(vec![b' '; 64 << 10]); 17]);
    let pieces =
        StreamBody::new(pieces.map(|piece| Ok::<_, std::io::Error>(http_body::Frame::data(piece))));
    let answer = Answer::of(
        world
            .send_body(request("application/json").body(pieces).unwrap())
            .await,
    )
    .await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["reason"].as_str()),
        (413, Some("BODY_TOO_LARGE"))
    );
    assert!(world.scheduler.service().0.lock().unwrap().calls.is_empty());
    world.stop().await;
}

#[tokio::test]
async fn everything_needs_a_token() {
    let world = World::start().await;
    for path in [
        "/v1/servers",
        "/v1/openapi.json",
        "/v1/nothing",
        "/v1",
        "/v1/",
    ] {
        for (token, reason) in [
            (None, "TOKEN_MISSING"),
            (Some("Bearer wrong"), "TOKEN_INVALID"),
            (Some("Basic eDp5"), "TOKEN_INVALID"),
        ] {
            let mut request = Request::get(path).header(header::HOST, "localhost");
            if let Some(token) = token {
                request = request.header(header::AUTHORIZATION, token);
            }
            let answer = Answer::of(world.send(request.body(Full::default()).unwrap()).await).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path} {token:?}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
            assert_eq!(answer.json()["reason"], reason);
        }
    }
    assert!(world.scheduler.service().0.lock().unwrap().calls.is_empty());
    world.stop().await;
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_refused_soon_after_it_is_revoked() {
    let world = World::start().await;
    for _ in 0..20 {
        assert_eq!(
            world.api("GET", "/v1/servers", "").await.status,
            StatusCode::OK
        );
    }
    assert!(
        world.billing.service().0.lock().unwrap().token_questions <= 3,
        "the answer is remembered"
    );
    world.billing.service().0.lock().unwrap().tokens.clear();
    crate::world::eventually("the token is refused", async || {
        world.api("GET", "/v1/servers", "").await.status == StatusCode::UNAUTHORIZED
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn callers_cannot_name_themselves() {
    let world = World::start().await;
    let request = Request::post("/v1/servers")
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
        .header("cnlab-caller-user-id", "usr_00000000000000000000000009")
        .header("cnlab-internal-key", "guess")
        .header("cnlab_caller_user_id", "usr_00000000000000000000000009")
        .header("cookie", "a=b")
        .header("idempotency-key", "mine")
        .body(Full::from(r#"{"name":"x","storage_bytes":1}"#))
        .unwrap();
    assert_eq!(world.send(request).await.status(), StatusCode::OK);
    let again = world
        .api("POST", "/v1/servers", r#"{"name":"y","storage_bytes":1}"#)
        .await;
    assert_eq!(again.status, StatusCode::OK);
    let created = world.scheduler.service().0.lock().unwrap().created.clone();
    let [(_, first), (_, second)] = created.as_slice() else {
        panic!("two were made")
    };
    assert_eq!(
        first["cnlab-caller-user-id"],
        "usr_00000000000000000000000001"
    );
    assert_eq!(first["idempotency-key"], "mine");
    assert!(
        second["idempotency-key"].len() >= 26,
        "one is made: {second:?}"
    );
    for barred in ["authorization", "cookie", "cnlab_caller_user_id"] {
        assert!(!first.contains_key(barred), "{barred}");
    }
    world.stop().await;
}

#[tokio::test]
async fn an_answer_that_does_not_begin_is_given_up() {
    let world =
        World::with(|config| config.limits.deadline = Span(Duration::from_millis(300))).await;
    let answer = world.api("GET", "/v1/servers/slow", "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["reason"].as_str()),
        (504, Some("DEADLINE_EXCEEDED"))
    );
    world.stop().await;
}

#[tokio::test]
async fn too_many_requests_are_refused_at_once() {
    let world = World::with(|config| config.limits.api_requests = 1).await;
    let request = Request::get("/v1/servers/forever:watch")
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
        .body(Full::default())
        .unwrap();
    let watching = world.send(request).await;
    let answer = world.api("GET", "/v1/servers", "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("retry-after")),
        (503, "1")
    );
    assert_eq!(answer.json()["reason"], "OVERLOADED");
    drop(watching);
    crate::world::eventually("the stream's place is free", async || {
        world.api("GET", "/v1/servers", "").await.status == StatusCode::OK
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn services_that_are_away_are_named() {
    let world = World::start().await;
    assert_eq!(
        world.api("GET", "/v1/servers", "").await.status,
        StatusCode::OK
    );
    let World {
        gateway,
        billing,
        scheduler,
        node,
        runtime,
    } = world;
    scheduler.stop().await;
    let request = Request::get("/v1/servers")
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
        .body(Full::<Bytes>::default())
        .unwrap();
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
    let answer = Answer::of(sender.send_request(request).await.unwrap()).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert!(
        !answer.text().contains("127.0.0.1"),
        "no inside address: {answer:?}"
    );
    gateway.stop().await;
    billing.stop().await;
    drop(node);
    assert!(runtime.tasks.stop(GENEROUS).await);
}

#[tokio::test]
async fn the_description_is_the_golden_one() {
    let world = World::start().await;
    let served = world.api("GET", "/v1/openapi.json", "").await;
    assert_eq!(served.header("content-type"), "application/json");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openapi.json");
    if std::env::var_os("REWRITE").is_some() {
        fs::write(&golden, &served.body).unwrap();
    }
    let expected =
        fs::read_to_string(&golden).expect("run with REWRITE=1 to write the golden file");
    assert!(
        expected == served.text(),
        "the API's description has changed: look at it, then run with REWRITE=1"
    );
    world.stop().await;
}
