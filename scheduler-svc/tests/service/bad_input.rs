//! What makes no sense is refused with a reason and with what to do, and leaves nothing.

use cnlab_model::ErrorKind;
use cnlab_proto::scheduler::v1 as pb;

use crate::{
    on_both,
    world::{Database, GIB, World, ada, ask, by, done},
};

async fn each_wrong_request_says_what_to_do(database: Database) {
    let world = World::start(database).await;
    let me = ada();
    let refused = world.create(&me, ask("a")).await.unwrap_err();
    assert_eq!(refused.reason, "PROFILE_UNAVAILABLE");
    assert!(
        refused.message.ends_with("no node has joined yet"),
        "{refused:?}"
    );

    let _node = world.node("gpu-box", &["H100"]).await;
    let long = "x".repeat(10_240);
    let with = |change: fn(&mut pb::CreateServerRequest)| {
        let mut request = ask("a");
        change(&mut request);
        request
    };
    let cases = [
        (
            ask("a/b"),
            ErrorKind::Invalid,
            "SERVER_NAME_INVALID",
            "name",
            "first-experiment",
        ),
        (
            ask("a\u{7}b"),
            ErrorKind::Invalid,
            "SERVER_NAME_INVALID",
            "name",
            "",
        ),
        (
            ask(&long),
            ErrorKind::Invalid,
            "SERVER_NAME_INVALID",
            "name",
            "",
        ),
        (
            ask(""),
            ErrorKind::Invalid,
            "SERVER_NAME_INVALID",
            "name",
            "",
        ),
        (
            with(|ask| ask.image = "pytorch:2.4-cuda12.1".to_owned()),
            ErrorKind::NotFound,
            "IMAGE_NOT_FOUND",
            "image",
            "did you mean pytorch:2.4-cuda12.4 or pytorch:2.6-cuda12.4",
        ),
        (
            with(|ask| ask.profile = "h100-25pc".to_owned()),
            ErrorKind::NotFound,
            "PROFILE_NOT_FOUND",
            "profile",
            "did you mean h100-25pct",
        ),
        (
            with(|ask| ask.profile = "a100-50pct".to_owned()),
            ErrorKind::Precondition,
            "PROFILE_UNAVAILABLE",
            "profile",
            "use the profile h100-25pct",
        ),
        (
            with(|ask| ask.storage_bytes = 0),
            ErrorKind::Invalid,
            "STORAGE_INVALID",
            "storage_bytes",
            "--storage 50gb",
        ),
        (
            with(|ask| ask.storage_bytes = 501 * GIB),
            ErrorKind::Invalid,
            "STORAGE_TOO_LARGE",
            "storage_bytes",
            "at most 500 GiB",
        ),
        (
            with(|ask| ask.project = "bob/default".to_owned()),
            ErrorKind::NotFound,
            "PROJECT_NOT_FOUND",
            "project",
            "use ada/default or ada/second",
        ),
    ];
    for (request, kind, reason, field, try_this) in cases {
        let refused = world.create(&me, request).await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.reason.as_str()),
            (kind, reason),
            "{refused:?}"
        );
        assert_eq!(refused.field.as_deref(), Some(field), "{refused:?}");
        assert!(refused.message.len() < 300, "{refused:?}");
        let advice = refused.try_this.unwrap();
        assert!(advice.contains(try_this), "{advice}");
    }
    let list = by(&me, pb::ListServersRequest::default());
    let left = world
        .servers()
        .list_servers(list)
        .await
        .unwrap()
        .into_inner();
    assert!(left.servers.is_empty());
    assert!(world.profile("h100-full").await.available_now);
}

async fn a_name_is_given_once_in_a_project(database: Database) {
    let world = World::start(database).await;
    let _node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let first = world.create(&me, ask("a")).await.unwrap();
    let refused = world.create(&me, ask("a")).await.unwrap_err();
    assert_eq!(
        (refused.kind, refused.reason.as_str()),
        (ErrorKind::AlreadyExists, "SERVER_NAME_TAKEN")
    );
    // In another project of the same person it is another server, and the bare name is not
    // enough any more.
    let request = pb::CreateServerRequest {
        project: "ada/second".to_owned(),
        ..ask("a")
    };
    let second = world.create(&me, request).await.unwrap();
    let refused = world.get(&me, "a").await.unwrap_err();
    assert_eq!(refused.reason, "SERVER_AMBIGUOUS");
    assert!(
        refused.message.contains("ada/default/a, ada/second/a"),
        "{refused:?}"
    );
    assert_eq!(world.get(&me, "ada/second/a").await.unwrap().id, second.id);
    assert_eq!(
        world.get(&me, &first.id).await.unwrap().project,
        "ada/default"
    );
    let refused = world.get(&me, "ada/second/aa").await.unwrap_err();
    assert_eq!(refused.reason, "SERVER_NOT_FOUND");
    assert_eq!(refused.try_this.as_deref(), Some("did you mean a"));
}

async fn lists_have_pages(database: Database) {
    let world = World::start(database).await;
    let _node = world.node("gpu-box", &["H100", "H100"]).await;
    let me = ada();
    let mut made = Vec::new();
    for n in 0..5 {
        made.push(world.create(&me, ask(&format!("s{n}"))).await.unwrap().id);
    }
    made.reverse();
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let list = pb::ListServersRequest {
            page_size: 2,
            page_token,
            project: String::new(),
        };
        let page = world
            .servers()
            .list_servers(by(&me, list))
            .await
            .unwrap()
            .into_inner();
        assert!(page.servers.len() <= 2);
        seen.extend(page.servers.into_iter().map(|server| server.id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, made);
    for (page_size, page_token, reason) in [
        (1001, "", "PAGE_SIZE_INVALID"),
        (1, "nonsense", "PAGE_TOKEN_INVALID"),
    ] {
        let list = pb::ListServersRequest {
            page_size,
            page_token: page_token.to_owned(),
            project: String::new(),
        };
        let refused = done(world.servers().list_servers(by(&me, list)).await).unwrap_err();
        assert_eq!(refused.reason, reason);
    }
}

async fn types_without_a_profile_get_one(database: Database) {
    let world = World::start(database).await;
    let _node = world.node("gpu-box", &["H200"]).await;
    let profile = world.profile("h200-25pct").await;
    assert!(profile.available_now && profile.simulated);
    assert_eq!(profile.vram_bytes, 80 * GIB / 100 * 25);
    let gone = world.profile("h100-25pct").await;
    assert!(!gone.available_now && gone.wait.is_none());
    assert_eq!(gone.unavailable_reason, "no node has a GPU of type H100");
    let me = ada();
    let refused = world.create(&me, ask("a")).await.unwrap_err();
    assert_eq!(
        refused.try_this.as_deref(),
        Some("use the profile h200-25pct")
    );
    let request = pb::CreateServerRequest {
        profile: "h200-full".to_owned(),
        ..ask("a")
    };
    let server = world.create(&me, request).await.unwrap();
    assert_eq!(
        server.grant.unwrap().slices[0].vram_bytes,
        80 * GIB / 100 * 100
    );
}

on_both!(
    each_wrong_request_says_what_to_do,
    a_name_is_given_once_in_a_project,
    lists_have_pages,
    types_without_a_profile_get_one,
);
