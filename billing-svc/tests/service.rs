//! The service alone over real gRPC, the same suite on SQLite and on PostgreSQL.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "service/harness.rs"]
mod harness;
#[path = "service/usage.rs"]
mod usage;

use std::{os::unix::fs::PermissionsExt, time::Duration};

use cnlab_model::id::{ServerId, Ulid, UserId};
use cnlab_proto::billing::v1 as pb;
use cnlab_service::status::PublicError;
use harness::{Bench, DAY, NOON, at, key_of};
use tonic::{Code, Status};
use usage::{
    usage_lists_are_paged_and_private, usage_never_runs_backwards, usage_opens_and_closes_once,
    wrong_usage_names_its_field,
};

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

pub(crate) fn server(number: u128) -> ServerId {
    ServerId::from_ulid(Ulid(number))
}

pub(crate) fn reason(status: &Status) -> String {
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
