//! The service alone over real gRPC, the same suite on SQLite and on PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "service/harness.rs"]
mod harness;

use std::{collections::BTreeSet, os::unix::fs::PermissionsExt, time::Duration};

use cnlab_model::{
    Timestamp,
    id::{GrantId, ServerId, Ulid, UserId},
};
use cnlab_proto::{
    billing::v1::{self as pb},
    model::v1 as model,
};
use cnlab_service::status::PublicError;
use harness::{Bench, DAY, NOON, at, key_of};
use tonic::{Code, Status};

macro_rules! on_both {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Bench::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Bench::postgres().await).await;
            })*
        }
    };
}

on_both! {
    the_first_account_has_a_token_in_a_private_file
    the_token_file_and_the_database_heal_each_other
    a_damaged_token_file_stops_the_start
    wrong_tokens_are_told_apart
    who_am_i_needs_a_caller
    the_internal_key_is_needed
    a_code_is_good_for_one_browser
    a_code_is_bound_and_expires
    a_session_is_bound_and_expires
    expired_sign_ins_are_forgotten
    usage_opens_and_closes_once
    usage_never_runs_backwards
    wrong_usage_names_its_field
    usage_lists_are_paged_and_private
    no_credential_is_stored
}

fn server(number: u128) -> ServerId {
    ServerId::from_ulid(Ulid(number))
}

fn grant(number: u128) -> GrantId {
    GrantId::from_ulid(Ulid(number))
}

fn reason(status: &Status) -> String {
    PublicError::from_status(status).reason
}

async fn the_first_account_has_a_token_in_a_private_file(bench: Bench) {
    let mode = std::fs::metadata(bench.token_file())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let who = bench.authenticate(&bench.token()).await.unwrap();
    assert_eq!(who.user_name, "admin");
    assert_eq!(who.team_name, "local");
    assert_eq!(who.projects, ["local/default"]);
    assert!(who.user_id.starts_with("usr_"), "{who:?}");
    assert!(who.token_id.starts_with("tok_"), "{who:?}");
    assert_eq!(who.expires_at, None);
}

async fn the_token_file_and_the_database_heal_each_other(mut bench: Bench) {
    let (first, who) = (bench.token(), bench.admin().await);
    bench.restart().await.unwrap();
    assert_eq!(bench.token(), first);
    assert_eq!(bench.admin().await, who, "a restart changes nothing");

    std::fs::remove_file(bench.token_file()).unwrap();
    bench.restart().await.unwrap();
    assert_ne!(bench.token(), first);
    let renewed = bench.admin().await;
    assert_eq!(renewed.user_id, who.user_id);
    assert_ne!(renewed.token_id, who.token_id);

    let kept = bench.token();
    bench.lose_database().await;
    bench.restart().await.unwrap();
    assert_eq!(bench.token(), kept);
    let restored = bench.admin().await;
    assert_eq!(
        restored.user_id, who.user_id,
        "what others recorded stays the admin's"
    );
    assert_eq!(restored.team_id, who.team_id);
    assert_eq!(restored.projects, who.projects);

    bench
        .execute("UPDATE token SET revoked_at = 1, expires_at = 1")
        .await;
    assert_eq!(
        reason(&bench.authenticate(&kept).await.unwrap_err()),
        "TOKEN_REVOKED"
    );
    bench.restart().await.unwrap();
    bench.authenticate(&kept).await.unwrap();
}

async fn a_damaged_token_file_stops_the_start(mut bench: Bench) {
    std::fs::write(bench.token_file(), "hunter2\n").unwrap();
    let error = bench.restart().await.unwrap_err();
    assert!(error.to_string().contains("admin.token"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    assert!(error.advice().unwrap().contains("delete it"));
    std::fs::remove_file(bench.token_file()).unwrap();
    bench.restart().await.unwrap();
    bench.admin().await;
}

async fn wrong_tokens_are_told_apart(bench: Bench) {
    let good = bench.token();
    let code = bench.issue(server(1)).await;
    for (token, why) in [
        ("", "TOKEN_MALFORMED"),
        ("hunter2", "TOKEN_MALFORMED"),
        (&good[..56], "TOKEN_MALFORMED"),
        (&code, "TOKEN_MALFORMED"),
        (&harness::strangers_token(), "TOKEN_UNKNOWN"),
    ] {
        let status = bench.authenticate(token).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert_eq!(reason(&status), why, "{token}");
        assert!(token.is_empty() || !format!("{status:?}").contains(token));
    }
    let expires = NOON.plus(DAY).0;
    bench
        .execute(&format!("UPDATE token SET expires_at = {expires}"))
        .await;
    let who = bench.authenticate(&good).await.unwrap();
    assert_eq!(who.expires_at, Some(at(NOON.plus(DAY))));
    bench.clock.advance(DAY);
    assert_eq!(
        reason(&bench.authenticate(&good).await.unwrap_err()),
        "TOKEN_EXPIRED"
    );
    bench.execute("UPDATE token SET revoked_at = 1").await;
    assert_eq!(
        reason(&bench.authenticate(&good).await.unwrap_err()),
        "TOKEN_REVOKED"
    );
}

async fn who_am_i_needs_a_caller(bench: Bench) {
    let admin = bench.admin().await;
    let asked = bench.as_caller(&admin, pb::WhoAmIRequest {});
    let who = bench.accounts().who_am_i(asked).await.unwrap().into_inner();
    let expected = pb::Identity {
        token_id: String::new(),
        ..admin.clone()
    };
    assert_eq!(who, expected);

    let status = bench
        .accounts()
        .who_am_i(pb::WhoAmIRequest {})
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "CALLER_MISSING");
    let gone = pb::Identity {
        user_id: UserId::from_ulid(Ulid(1)).to_string(),
        ..admin
    };
    let asked = bench.as_caller(&gone, pb::WhoAmIRequest {});
    let status = bench.accounts().who_am_i(asked).await.unwrap_err();
    assert_eq!(reason(&status), "USER_NOT_FOUND");
}

async fn the_internal_key_is_needed(bench: Bench) {
    let mut stranger = bench.credentials_with(&key_of('x'));
    let request = pb::AuthenticateTokenRequest {
        token: bench.token(),
    };
    let status = stranger.authenticate_token(request).await.unwrap_err();
    assert_eq!(reason(&status), "INTERNAL_KEY_WRONG");
}

async fn a_code_is_good_for_one_browser(bench: Bench) {
    let code = bench.issue(server(1)).await;
    let mut browsers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (mut credentials, code) = (bench.credentials(), code.clone());
        browsers.spawn(async move {
            let server_id = server(1).to_string();
            credentials
                .redeem_open_code(pb::RedeemOpenCodeRequest { code, server_id })
                .await
        });
    }
    let (mut sessions, mut refused) = (Vec::new(), Vec::new());
    for answer in browsers.join_all().await {
        match answer {
            Ok(answer) => sessions.push(answer.into_inner().session),
            Err(status) => refused.push(reason(&status)),
        }
    }
    assert_eq!(sessions.len(), 1);
    assert_eq!(refused, vec!["CODE_USED"; 15]);
    let who = bench.session(&sessions[0], server(1)).await.unwrap();
    assert_eq!(who.user_name, "admin");
    assert_eq!(who.token_id, "");
}

async fn a_code_is_bound_and_expires(bench: Bench) {
    let code = bench.issue(server(1)).await;
    let elsewhere = bench.redeem(&code, server(2)).await.unwrap_err();
    assert_eq!(reason(&elsewhere), "CODE_UNKNOWN");
    bench.clock.advance(Duration::from_millis(59_999));
    bench.redeem(&code, server(1)).await.unwrap();

    let late = bench.issue(server(1)).await;
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(
        reason(&bench.redeem(&late, server(1)).await.unwrap_err()),
        "CODE_EXPIRED"
    );
    for wrong in ["", "code", &bench.token()] {
        let status = bench.redeem(wrong, server(1)).await.unwrap_err();
        assert_eq!(reason(&status), "CODE_UNKNOWN", "{wrong}");
        assert_eq!(status.code(), Code::Unauthenticated);
    }

    let user_id = UserId::from_ulid(Ulid(1)).to_string();
    let server_id = server(1).to_string();
    let request = pb::IssueOpenCodeRequest { user_id, server_id };
    let status = bench
        .credentials()
        .issue_open_code(request)
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "USER_NOT_FOUND");
}

async fn a_session_is_bound_and_expires(bench: Bench) {
    let code = bench.issue(server(1)).await;
    let session = bench.redeem(&code, server(1)).await.unwrap();
    let who = bench.session(&session, server(1)).await.unwrap();
    assert_eq!(who.expires_at, Some(at(NOON.plus(DAY * 30))));
    let elsewhere = bench.session(&session, server(2)).await.unwrap_err();
    assert_eq!(reason(&elsewhere), "SESSION_UNKNOWN");
    assert_eq!(
        reason(&bench.authenticate(&session).await.unwrap_err()),
        "TOKEN_MALFORMED"
    );
    bench.clock.advance(DAY * 30 - Duration::from_micros(1));
    bench.session(&session, server(1)).await.unwrap();
    bench.clock.advance(Duration::from_micros(1));
    let late = bench.session(&session, server(1)).await.unwrap_err();
    assert_eq!(reason(&late), "SESSION_EXPIRED");
}

async fn expired_sign_ins_are_forgotten(mut bench: Bench) {
    let code = bench.issue(server(1)).await;
    let session = bench.redeem(&code, server(1)).await.unwrap();
    let young = bench.issue(server(1)).await;
    bench.clock.advance(DAY * 32);
    let fresh = bench.issue(server(1)).await;
    // The loop ticks at the start.
    bench.restart().await.unwrap();
    cnlab_testkit::wait_for(cnlab_testkit::GENEROUS, "the purge", async || {
        let session = bench.session(&session, server(1)).await.unwrap_err();
        let young = bench.redeem(&young, server(1)).await.unwrap_err();
        (reason(&session) == "SESSION_UNKNOWN" && reason(&young) == "CODE_UNKNOWN").then_some(())
    })
    .await
    .unwrap();
    bench.redeem(&fresh, server(1)).await.unwrap();
}

fn opening(bench_user: &str, number: u128, started_at: Timestamp) -> pb::OpenUsageRequest {
    pb::OpenUsageRequest {
        grant_id: grant(number).to_string(),
        user_id: bench_user.to_owned(),
        project: "local/default".to_owned(),
        workload_id: server(number).to_string(),
        slice: Some(model::Slice {
            gpu_uuid: "SIM-1".to_owned(),
            gpu_type: "H100".to_owned(),
            blocks: vec![
                model::BlockRange {
                    first: 0,
                    count: 20,
                },
                model::BlockRange {
                    first: 50,
                    count: 5,
                },
            ],
            vram_bytes: 20 << 30,
            isolation: model::IsolationClass::Soft.into(),
        }),
        started_at: Some(at(started_at)),
    }
}

fn closing(number: u128, ended_at: Timestamp) -> pb::CloseUsageRequest {
    pb::CloseUsageRequest {
        grant_id: grant(number).to_string(),
        ended_at: Some(at(ended_at)),
    }
}

async fn usage_opens_and_closes_once(bench: Bench) {
    let user = bench.admin().await.user_id;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..16 {
        let (mut meter, user) = (bench.meter(), user.clone());
        // At-least-once: the same grant again and again, also at other times.
        let started = NOON.plus(Duration::from_secs(number % 2));
        calls.spawn(async move { meter.open_usage(opening(&user, 1, started)).await });
    }
    let opened: BTreeSet<String> = calls
        .join_all()
        .await
        .into_iter()
        .map(|answer| format!("{:?}", answer.unwrap().into_inner()))
        .collect();
    assert_eq!(opened.len(), 1, "{opened:?}");

    bench.clock.advance(Duration::from_secs(3_601));
    let half_way = bench.list(&Default::default()).await.unwrap();
    assert_eq!(half_way.intervals.len(), 1);
    let interval = &half_way.intervals[0];
    assert_eq!((interval.blocks, interval.gpu_type.as_str()), (25, "H100"));
    assert_eq!(interval.ended_at, None);

    let end = NOON.plus(Duration::from_secs(7_201));
    let closed = bench
        .meter()
        .close_usage(closing(1, end))
        .await
        .unwrap()
        .into_inner();
    let later = end.plus(DAY);
    let again = bench
        .meter()
        .close_usage(closing(1, later))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(closed, again);
    assert_eq!(closed.ended_at, Some(at(end)));
    let lasted = Duration::new(7_201, 0) - Duration::from_secs(started_late(&closed));
    let block_time = closed.block_time.unwrap();
    assert_eq!(
        block_time.seconds,
        i64::try_from(lasted.as_secs() * 25).unwrap()
    );

    // Opening a closed one again does not reopen it.
    let reopened = bench
        .meter()
        .open_usage(opening(&user, 1, NOON))
        .await
        .unwrap();
    assert_eq!(reopened.into_inner(), closed);
    let other = pb::OpenUsageRequest {
        workload_id: server(9).to_string(),
        ..opening(&user, 1, NOON)
    };
    let status = bench.meter().open_usage(other).await.unwrap_err();
    assert_eq!(reason(&status), "USAGE_MISMATCH");
    let status = bench
        .meter()
        .close_usage(closing(7, NOON))
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "USAGE_NOT_FOUND");
}

fn started_late(usage: &pb::UsageInterval) -> u64 {
    let seconds = usage.started_at.unwrap().seconds - at(NOON).seconds;
    u64::try_from(seconds).unwrap()
}

async fn usage_never_runs_backwards(bench: Bench) {
    let user = bench.admin().await.user_id;
    bench
        .meter()
        .open_usage(opening(&user, 1, NOON))
        .await
        .unwrap();
    bench.clock.set(Timestamp(NOON.0 - 1_000_000));
    let list = bench.list(&Default::default()).await.unwrap();
    assert_eq!(
        list.intervals[0].block_time,
        Some(prost_types::Duration::default())
    );
    let before = Timestamp(NOON.0 - 5_000_000);
    let closed = bench
        .meter()
        .close_usage(closing(1, before))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(closed.ended_at, Some(at(NOON)));
    assert_eq!(closed.block_time, Some(prost_types::Duration::default()));
}

async fn wrong_usage_names_its_field(bench: Bench) {
    let user = bench.admin().await.user_id;
    let good = || opening(&user, 1, NOON);
    let slice = |change: &dyn Fn(&mut model::Slice)| {
        let mut request = good();
        change(request.slice.as_mut().unwrap());
        request
    };
    let run = |first, count| vec![model::BlockRange { first, count }];
    for (request, field) in [
        (
            pb::OpenUsageRequest {
                grant_id: String::new(),
                ..good()
            },
            "grant_id",
        ),
        (
            pb::OpenUsageRequest {
                user_id: "root".to_owned(),
                ..good()
            },
            "user_id",
        ),
        (
            pb::OpenUsageRequest {
                project: "default".to_owned(),
                ..good()
            },
            "project",
        ),
        (
            pb::OpenUsageRequest {
                workload_id: "x".repeat(10_000),
                ..good()
            },
            "workload_id",
        ),
        (
            pb::OpenUsageRequest {
                slice: None,
                ..good()
            },
            "slice",
        ),
        (
            pb::OpenUsageRequest {
                started_at: None,
                ..good()
            },
            "started_at",
        ),
        (slice(&|slice| slice.blocks.clear()), "slice.blocks"),
        (slice(&|slice| slice.blocks = run(99, 2)), "slice.blocks[0]"),
        (slice(&|slice| slice.gpu_type.clear()), "slice.gpu_type"),
        (
            slice(&|slice| slice.gpu_type = "H".repeat(65)),
            "slice.gpu_type",
        ),
    ] {
        let status = bench.meter().open_usage(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        let error = PublicError::from_status(&status);
        assert_eq!(error.field.as_deref(), Some(field));
        assert!(error.message.len() < 300, "{}", error.message);
    }
    assert!(
        bench
            .list(&Default::default())
            .await
            .unwrap()
            .intervals
            .is_empty()
    );
}

async fn usage_lists_are_paged_and_private(bench: Bench) {
    let admin = bench.admin().await;
    for number in 1..=23_u128 {
        // Several begin at the same moment.
        let started = NOON.plus(Duration::from_secs(u64::try_from(number / 4).unwrap()));
        let project = if number % 2 == 0 {
            "local/default"
        } else {
            "local/other"
        };
        let request = pb::OpenUsageRequest {
            project: project.to_owned(),
            ..opening(&admin.user_id, number, started)
        };
        bench.meter().open_usage(request).await.unwrap();
    }
    let stranger = UserId::from_ulid(Ulid(77)).to_string();
    bench
        .meter()
        .open_usage(opening(&stranger, 99, NOON))
        .await
        .unwrap();

    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListUsageRequest {
            page_size: 5,
            page_token,
            ..Default::default()
        };
        let page = bench.list(&request).await.unwrap();
        assert!(page.intervals.len() <= 5);
        seen.extend(
            page.intervals
                .into_iter()
                .map(|one| (one.started_at.unwrap().seconds, one.id)),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.reverse();
    sorted.dedup();
    assert_eq!(seen, sorted, "newest first, each once");
    assert_eq!(
        seen.len(),
        23,
        "all of the caller's and none of the stranger's"
    );

    let filter = |project: &str| pb::ListUsageRequest {
        project: project.to_owned(),
        ..Default::default()
    };
    let mine = bench.list(&filter("local/default")).await.unwrap();
    assert_eq!(mine.intervals.len(), 11);
    let status = bench.list(&filter("local/other")).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::NotFound, "PROJECT_NOT_FOUND".to_owned())
    );
    let status = bench.list(&filter("no project")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    let request = pb::ListUsageRequest {
        page_token: "x' OR 1=1".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        reason(&bench.list(&request).await.unwrap_err()),
        "PAGE_TOKEN_INVALID"
    );
    let request = pb::ListUsageRequest {
        page_size: 1_001,
        ..Default::default()
    };
    assert_eq!(
        reason(&bench.list(&request).await.unwrap_err()),
        "PAGE_SIZE_INVALID"
    );
    let status = bench
        .usage()
        .list_usage(pb::ListUsageRequest::default())
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "CALLER_MISSING");
}

async fn no_credential_is_stored(bench: Bench) {
    let code = bench.issue(server(1)).await;
    let session = bench.redeem(&code, server(1)).await.unwrap();
    let stored = bench.dump().await;
    for table in ["tok_", "srv_"] {
        assert!(stored.contains(table), "the dump is of this database");
    }
    for credential in [bench.token(), code, session] {
        let random = credential.split('_').next_back().unwrap().to_owned();
        assert!(!stored.contains(&random[..43]), "{}", &credential[..8]);
    }
}
