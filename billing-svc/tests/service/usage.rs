//! The meter and its list.

use std::{collections::BTreeSet, time::Duration};

use cnlab_model::{
    Timestamp,
    id::{GrantId, Ulid, UserId},
};
use cnlab_proto::{billing::v1 as pb, model::v1 as model};
use cnlab_service::status::PublicError;
use tonic::Code;

use super::{
    harness::{Bench, DAY, NOON, at},
    reason, server,
};

fn grant(number: u128) -> GrantId {
    GrantId::from_ulid(Ulid(number))
}

fn opening(bench_user: &str, number: u128, started_at: Timestamp) -> pb::OpenUsageRequest {
    pb::OpenUsageRequest {
        grant_id: grant(number).to_string(),
        user_id: bench_user.to_owned(),
        project: "local/default".to_owned(),
        workload_id: server(number).to_string(),
        slices: vec![model::Slice {
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
        }],
        started_at: Some(at(started_at)),
    }
}

fn closing(number: u128, ended_at: Timestamp) -> pb::CloseUsageRequest {
    pb::CloseUsageRequest {
        grant_id: grant(number).to_string(),
        ended_at: Some(at(ended_at)),
    }
}

pub(crate) async fn usage_opens_and_closes_once(bench: Bench) {
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

pub(crate) async fn usage_never_runs_backwards(bench: Bench) {
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

pub(crate) async fn wrong_usage_names_its_field(bench: Bench) {
    let user = bench.admin().await.user_id;
    let good = || opening(&user, 1, NOON);
    let slice = |change: &dyn Fn(&mut model::Slice)| {
        let mut request = good();
        change(&mut request.slices[0]);
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
                slices: Vec::new(),
                ..good()
            },
            "slices",
        ),
        (
            pb::OpenUsageRequest {
                started_at: None,
                ..good()
            },
            "started_at",
        ),
        (slice(&|slice| slice.blocks.clear()), "slices[0].blocks"),
        (
            slice(&|slice| slice.blocks = run(99, 2)),
            "slices[0].blocks[0]",
        ),
        (slice(&|slice| slice.gpu_type.clear()), "slices[0].gpu_type"),
        (
            slice(&|slice| slice.gpu_type = "H".repeat(65)),
            "slices[0].gpu_type",
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

pub(crate) async fn usage_lists_are_paged_and_private(bench: Bench) {
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
