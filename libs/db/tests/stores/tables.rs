//! The outbox and the idempotency keys.

use std::collections::BTreeSet;

use cnlab_db::{
    Db, DbError,
    idempotency::{self, Begun},
    outbox::{self, Room},
};
use cnlab_model::{Fault, Timestamp};
use sea_orm::ConnectionTrait as _;
use serde_json::json;

use super::fixture::{Store, TestError, all, set, value};

fn message(aggregate: &str, number: u32) -> outbox::NewMessage {
    outbox::NewMessage {
        topic: "test".to_owned(),
        aggregate: aggregate.to_owned(),
        destination: "somebody".to_owned(),
        payload: json!({ "number": number }),
        traceparent: Some(format!("trace-{number}")),
        now: Timestamp(1_000),
    }
}

async fn push(db: &Db, aggregate: &str, number: u32) -> i64 {
    db.write(|tx| async move { outbox::push(&tx, message(aggregate, number)).await })
        .await
        .unwrap()
}

pub(crate) async fn outbox_keeps_the_order_of_each_aggregate(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let (first, second) = (push(db, "a", 1).await, push(db, "a", 2).await);
    let other = push(db, "b", 3).await;
    assert_eq!(outbox::waiting(db).await.unwrap(), 3);

    let claim = async |now: i64| {
        let until = Timestamp(now + 100);
        outbox::claim(db, "me", Timestamp(now), until, &Room::for_any(10))
            .await
            .unwrap()
    };
    assert!(claim(999).await.is_empty(), "not due before it was pushed");
    let got = claim(1_000).await;
    let ids: Vec<i64> = got.iter().map(|one| one.id).collect();
    assert_eq!(ids, [first, other]);
    assert_eq!(got[0].payload, json!({ "number": 1 }));
    assert_eq!(got[0].traceparent.as_deref(), Some("trace-1"));
    assert_eq!(got[0].created_at, Timestamp(1_000));
    assert_eq!(got[0].attempts, 1);
    assert!(
        claim(1_001).await.is_empty(),
        "the second one waits for the first"
    );
    outbox::done(db, first).await.unwrap();
    outbox::done(db, first).await.unwrap();
    let ids: Vec<i64> = claim(1_002).await.iter().map(|one| one.id).collect();
    assert_eq!(ids, [second]);
}

pub(crate) async fn outbox_claims_expire_and_retries_wait(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let id = push(db, "a", 1).await;
    let claim = async |owner: &str, now: i64| {
        let until = Timestamp(now + 100);
        outbox::claim(db, owner, Timestamp(now), until, &Room::for_any(10))
            .await
            .unwrap()
    };
    let dead = claim("dead", 2_000).await;
    assert!(claim("heir", 2_099).await.is_empty());
    let got = claim("heir", 2_100).await;
    assert_eq!((got[0].id, got[0].attempts), (id, 2));
    // The old owner wakes up: it must not take the claim away from the new one.
    outbox::retry(db, &dead[0], "dead", Timestamp(0), "late")
        .await
        .unwrap();
    assert!(claim("third", 2_150).await.is_empty());
    outbox::retry(db, &got[0], "heir", Timestamp(3_000), "refused")
        .await
        .unwrap();
    assert!(claim("third", 2_999).await.is_empty());
    assert_eq!(claim("third", 3_000).await[0].attempts, 3);
}

pub(crate) async fn outbox_claims_are_renewed_by_who_has_them(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    push(db, "a", 1).await;
    let claim = async |owner: &str, now: i64| {
        let until = Timestamp(now + 100);
        outbox::claim(db, owner, Timestamp(now), until, &Room::for_any(10))
            .await
            .unwrap()
    };
    let renew = async |message: &outbox::Message, owner: &str, until: i64| {
        outbox::renew(db, message, owner, Timestamp(until))
            .await
            .unwrap()
    };
    let first = claim("slow", 2_000).await.remove(0);
    assert!(renew(&first, "slow", 2_200).await);
    assert!(!renew(&first, "other", 9_000).await);
    assert!(claim("heir", 2_199).await.is_empty());
    // It ran out; the same owner has it again, and the first delivery has lost it.
    let second = claim("slow", 2_200).await.remove(0);
    assert!(!renew(&first, "slow", 9_000).await);
    outbox::retry(db, &first, "slow", Timestamp(0), "late")
        .await
        .unwrap();
    assert!(claim("heir", 2_299).await.is_empty());
    assert!(renew(&second, "slow", 2_400).await);
    outbox::done(db, second.id).await.unwrap();
    assert!(!renew(&second, "slow", 2_500).await);
}

pub(crate) async fn outbox_claims_keep_to_the_room_of_destinations(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    for number in 0..40 {
        let destination = match number {
            0..20 => "frozen",
            20..30 => "resting",
            _ => "well",
        };
        let message = outbox::NewMessage {
            destination: destination.to_owned(),
            ..message(&number.to_string(), number)
        };
        let message = &message;
        db.write(|tx| async move { outbox::push(&tx, message.clone()).await })
            .await
            .unwrap();
    }
    let claim = async |room: &Room| {
        let got = outbox::claim(db, "me", Timestamp(1_000), Timestamp(2_000), room);
        let got = got.await.unwrap();
        got.iter()
            .map(|one| one.payload["number"].as_u64().unwrap())
            .collect::<Vec<u64>>()
    };
    let room = Room {
        all: 8,
        each: 3,
        of: [("frozen".to_owned(), 2), ("resting".to_owned(), 0)].into(),
    };
    assert_eq!(claim(&room).await, [0, 1, 30, 31, 32]);
    let room = Room {
        of: [("frozen".to_owned(), 0)].into(),
        ..room
    };
    assert_eq!(claim(&room).await, [20, 21, 22, 33, 34, 35]);
    assert_eq!(claim(&Room::for_any(4)).await, [2, 3, 4, 5]);
    let one = Room::for_any(1);
    // What was due first comes first, although others are older.
    let late = outbox::claim(db, "me", Timestamp(2_000), Timestamp(2_001), &one);
    let late = late.await.unwrap().remove(0);
    outbox::retry(db, &late, "me", Timestamp(2_001), "later")
        .await
        .unwrap();
    let next = outbox::claim(db, "me", Timestamp(2_001), Timestamp(2_002), &one);
    assert_eq!(next.await.unwrap()[0].payload["number"], 1);
}

/// More than a statement may have variables, on either database.
pub(crate) async fn outbox_claims_of_any_size_are_carried_out(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    db.write(|tx| async move {
        tx.execute_unprepared(
            "INSERT INTO outbox \
             (topic, aggregate, payload, created_at, not_before, attempts, locked_until) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 70000) \
             SELECT 'test', CAST(i AS TEXT), '{}', 0, 0, 0, 0 FROM n",
        )
        .await?;
        Ok::<_, DbError>(())
    })
    .await
    .unwrap();
    let (now, until) = (Timestamp(1_000), Timestamp(2_000));
    let got = outbox::claim(db, "me", now, until, &Room::for_any(u64::MAX))
        .await
        .unwrap();
    assert_eq!(got.len(), 1000);
    assert_eq!(outbox::waiting(db).await.unwrap(), 70_000);
}

pub(crate) async fn outbox_claimers_never_share_a_message(store: Store) {
    let store = store.migrated().await;
    for number in 0..40 {
        push(&store.db, &format!("aggregate-{}", number % 8), number).await;
    }
    let claimers = (0..4).map(|owner| {
        let db = store.db.clone();
        async move {
            let mut mine = Vec::new();
            while outbox::waiting(&db).await.unwrap() > 0 {
                let (now, until) = (Timestamp(1_000), Timestamp(i64::MAX));
                let owner = format!("owner-{owner}");
                for one in outbox::claim(&db, &owner, now, until, &Room::for_any(3))
                    .await
                    .unwrap()
                {
                    mine.push(one.id);
                    outbox::done(&db, one.id).await.unwrap();
                }
            }
            mine
        }
    });
    let got: Vec<i64> = all(claimers.collect())
        .await
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(got.len(), 40);
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 40);
}

pub(crate) async fn outbox_is_part_of_the_transaction(store: Store) {
    let store = store.migrated().await;
    let refused: Result<(), TestError> = store
        .db
        .write(|tx| async move {
            outbox::push(&tx, message("a", 1)).await?;
            Err(TestError::Refused)
        })
        .await;
    refused.unwrap_err();
    assert_eq!(outbox::waiting(&store.db).await.unwrap(), 0);
}

/// One mutation as services write them.
async fn request(
    db: &Db,
    key: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(bool, Vec<u8>), DbError> {
    db.write(|tx| async move {
        let ticket = match idempotency::begin(&tx, "usr", "Hit", key, body, now).await? {
            Begun::Replay(response) => return Ok((false, response)),
            Begun::Fresh(ticket) => ticket,
        };
        let next = value(&tx, "hits").await? + 1;
        set(&tx, "hits", next).await?;
        let response = next.to_string().into_bytes();
        idempotency::finish(&tx, ticket, &response).await?;
        Ok((true, response))
    })
    .await
}

pub(crate) async fn idempotent_requests_have_one_effect(store: Store) {
    let store = store.migrated().await;
    let requests = (0..24).map(|number| {
        let db = store.db.clone();
        let key = format!("key-{}", number % 3);
        async move {
            request(&db, &key, b"body", Timestamp(1))
                .await
                .map(|done| (key, done))
        }
    });
    let mut answers = BTreeSet::new();
    let mut effects = 0;
    for answer in all(requests.collect()).await {
        let (key, (fresh, response)) = answer.unwrap();
        effects += u32::from(fresh);
        answers.insert((key, response));
    }
    assert_eq!(effects, 3);
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert_eq!(value(store.db.read(), "hits").await.unwrap(), 3);
}

pub(crate) async fn idempotency_keys_are_bound_and_expire(store: Store) {
    let store = store.migrated().await;
    let db = &store.db;
    let start = Timestamp(1_000);
    let end = start.plus(idempotency::KEPT);
    assert!(request(db, "k", b"one", start).await.unwrap().0);
    let error = request(db, "k", b"two", start).await.unwrap_err();
    assert_eq!(error.reason(), "IDEMPOTENCY_MISMATCH");
    let last = Timestamp(end.0 - 1);
    assert_eq!(
        request(db, "k", b"one", last).await.unwrap(),
        (false, b"1".to_vec())
    );
    // Expired but not purged, then replayed with its new response, then purged.
    assert_eq!(
        request(db, "k", b"two", end).await.unwrap(),
        (true, b"2".to_vec())
    );
    assert_eq!(
        request(db, "k", b"two", end).await.unwrap(),
        (false, b"2".to_vec())
    );
    assert_eq!(idempotency::purge(db, end).await.unwrap(), 0);
    assert_eq!(
        idempotency::purge(db, end.plus(idempotency::KEPT))
            .await
            .unwrap(),
        1
    );
    assert!(request(db, "k", b"three", end).await.unwrap().0);
}
