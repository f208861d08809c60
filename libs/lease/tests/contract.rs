//! Runs the contract on the embedded store, on a real redis-server and on one in cluster mode,
//! and puts the real one through the faults that only a real one has.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cnlab_lease::contract::{self, Fixture};
use cnlab_lease::{
    Acquired, Claim, Counter, EmbeddedStore, ExpiryWatch, LeaseError, LeaseEvent, LeaseStore,
    RedisOptions, RedisStore,
};
use cnlab_testkit::{GENEROUS, RedisServer, wait_for, wait_until};

/// Hands the name of every check of the contract to a macro.
macro_rules! with_all_checks {
    ($then:ident, $($first:tt)+) => {
        $then!($($first)+;
            repeats_without_harm, stale_fences_are_refused, a_fence_has_one_life,
            a_holder_moves_to_a_higher_fence, releases_only_its_own, a_batch_is_renewed_in_order,
            one_of_many_acquirers_wins, names_may_hold_anything, refuses_bad_arguments,
            expiry_is_reported_once, fences_grow_over_expiry, taking_over_reports_the_lapsed_lease,
            each_watcher_sees_each_expiry, a_lagging_watcher_catches_up, lost_data_are_noticed,
            counts_up_to_the_limit, refills_over_time, refuses_impossible_costs,
            elects_one_leader, resigning_hands_over, a_silent_leader_is_replaced);
    };
}

/// A test for each check, each with a fixture of its own.
macro_rules! test_each {
    ($fixture:ty, $flavour:meta; $($check:ident),+) => {
        $(#[$flavour]
        async fn $check() {
            let fixture = <$fixture>::start().await;
            if let Err(violation) = contract::$check(&fixture).await {
                panic!("{violation}");
            }
        })+
    };
}

/// All checks one after another, each in a key space of its own.
macro_rules! check_all {
    ($redis:ident; $($check:ident),+) => {
        $($redis.store = $redis.store.space(stringify!($check)).unwrap();
        if let Err(violation) = contract::$check(&$redis).await {
            panic!("{}: {violation}", stringify!($check));
        })+
    };
}

mod embedded {
    use super::*;

    struct Embedded(EmbeddedStore);

    impl Embedded {
        #[expect(clippy::unused_async, reason = "all fixtures start alike")]
        async fn start() -> Self {
            Self(EmbeddedStore::new("first"))
        }
    }

    #[async_trait]
    impl Fixture for Embedded {
        fn leases(&self) -> Arc<dyn LeaseStore> {
            Arc::new(self.0.clone())
        }
        fn counter(&self) -> Arc<dyn Counter> {
            Arc::new(self.0.clone())
        }
        async fn lose_data(&self) {
            self.0.lose_everything("second");
        }
    }

    with_all_checks!(test_each, Embedded, tokio::test(start_paused = true));

    /// On paused time the bound itself can be checked.
    #[tokio::test(start_paused = true)]
    async fn expiry_is_noticed_within_a_second() {
        let store = EmbeddedStore::new("first");
        let mut watch = ExpiryWatch::new(Arc::new(store.clone()));
        watch.next().await.unwrap();
        for ttl in [1, 249, 250, 777, 30_000].map(Duration::from_millis) {
            let fence = u64::try_from(ttl.as_millis()).unwrap();
            let ends = tokio::time::Instant::now() + ttl;
            store
                .acquire(&Claim::new("k", "a", fence), ttl)
                .await
                .unwrap();
            let events = watch.next().await.unwrap();
            assert_eq!(events.len(), 1);
            let now = tokio::time::Instant::now();
            assert!(now >= ends && now <= ends + Duration::from_secs(1));
        }
    }
}

struct Redis {
    server: RedisServer,
    store: RedisStore,
}

/// Generous where nothing is broken on purpose: the machine may be busy.
fn patient() -> RedisOptions {
    RedisOptions {
        connect_timeout: GENEROUS,
        response_timeout: GENEROUS,
    }
}

impl Redis {
    async fn start() -> Self {
        let server = RedisServer::start().await.unwrap();
        let store = RedisStore::new(&server.url(), "gpu", patient()).unwrap();
        Self { server, store }
    }

    async fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd(words[0]);
        command
            .arg(&words[1..])
            .query_async(&mut connection)
            .await
            .unwrap()
    }
}

#[async_trait]
impl Fixture for Redis {
    fn leases(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.store.clone())
    }
    fn counter(&self) -> Arc<dyn Counter> {
        Arc::new(self.store.clone())
    }
    async fn lose_data(&self) {
        self.command(&["FLUSHALL"]).await;
    }
}

mod on_redis {
    use super::*;

    with_all_checks!(test_each, Redis, tokio::test);
}

/// One node that owns all slots: it refuses scripts whose keys are in several. In one test, since a
/// cluster takes two seconds to come up.
#[tokio::test]
async fn the_contract_holds_on_a_cluster() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"])
        .await
        .unwrap();
    let store = RedisStore::new(&server.url(), "gpu", patient()).unwrap();
    let mut redis = Redis { server, store };
    redis
        .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .await;
    wait_until(GENEROUS, "the cluster", async || {
        redis.store.epoch().await.is_ok()
    })
    .await
    .unwrap();
    with_all_checks!(check_all, redis);
}

const LONG: Duration = Duration::from_secs(3600);

/// As in production, so that faults show in time.
async fn faulty() -> (RedisServer, RedisStore) {
    let server = RedisServer::start().await.unwrap();
    let store = RedisStore::new(&server.url(), "gpu", RedisOptions::default()).unwrap();
    wait_for(GENEROUS, "the first answer", async || {
        store.epoch().await.ok()
    })
    .await
    .unwrap();
    (server, store)
}

/// Repeats a request with the same arguments, as callers do, until it is answered.
async fn persist<T>(mut request: impl AsyncFnMut() -> Result<T, LeaseError>) -> T {
    wait_for(
        GENEROUS,
        "the store to answer again",
        async || match request().await {
            Ok(answer) => Some(answer),
            Err(error) if error.is_transient() => None,
            Err(error) => panic!("{error:?}"),
        },
    )
    .await
    .unwrap()
}

#[tokio::test]
async fn a_killed_redis_is_noticed_and_come_back_to() {
    let (mut server, store) = faulty().await;
    let mine = Claim::new("k", "a", 7);
    let before = store.epoch().await.unwrap();
    let mut watch = ExpiryWatch::new(Arc::new(store.clone()));
    watch.next().await.unwrap();
    assert_eq!(
        persist(async || store.acquire(&mine, LONG).await).await,
        Acquired::Acquired
    );

    server.kill();
    let error = store.acquire(&mine, LONG).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = store.get("k").await.unwrap_err();
    assert!(matches!(error, LeaseError::Unavailable { .. }), "{error:?}");
    server.restart().await.unwrap();

    let events = watch.next().await.unwrap();
    let after = persist(async || store.epoch().await).await;
    assert_ne!(before, after);
    assert_eq!(events, [LeaseEvent::Reset { epoch: after }]);
    assert_eq!(persist(async || store.get("k").await).await, None);
    assert_eq!(
        persist(async || store.acquire(&mine, LONG).await).await,
        Acquired::Acquired
    );
}

#[tokio::test]
async fn a_restart_that_kept_the_data_is_another_epoch_too() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
        .await
        .unwrap();
    let store = RedisStore::new(&server.url(), "gpu", RedisOptions::default()).unwrap();
    let mine = Claim::new("k", "a", 7);
    persist(async || store.acquire(&mine, LONG).await).await;
    let before = persist(async || store.epoch().await).await;
    server.restart().await.unwrap();
    assert_ne!(persist(async || store.epoch().await).await, before);
    let lease = persist(async || store.get("k").await).await.unwrap();
    assert_eq!((lease.holder.as_str(), lease.fence), ("a", 7));
}

#[tokio::test]
async fn a_frozen_redis_leaves_outcomes_unknown_and_repeating_settles_them() {
    let (server, store) = faulty().await;
    let mine = Claim::new("k", "a", 7);
    server.pause().unwrap();
    let error = store.acquire(&mine, LONG).await.unwrap_err();
    assert!(matches!(error, LeaseError::Unknown { .. }), "{error:?}");
    // The next one finds no connection; the kernel would accept one, but nobody greets it.
    let error = store.acquire(&mine, LONG).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    server.resume().unwrap();

    assert_eq!(
        persist(async || store.acquire(&mine, LONG).await).await,
        Acquired::Acquired
    );
    let rival = Claim::new("k", "b", 8);
    let answer = persist(async || store.acquire(&rival, LONG).await).await;
    assert!(
        matches!(answer, Acquired::Held { fence: 7, .. }),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_request_that_arrives_after_the_release_changes_nothing() {
    let (server, store) = faulty().await;
    let mine = Claim::new("k", "a", 7);
    server.pause().unwrap();
    // Sent, frozen in the server's socket, and carried out whenever it pleases after the resume.
    store.acquire(&mine, LONG).await.unwrap_err();
    server.resume().unwrap();
    persist(async || store.release(&mine).await).await;
    let stale = Acquired::StaleFence { highest: 7 };
    for _ in 0..20 {
        assert_eq!(
            persist(async || store.acquire(&mine, LONG).await).await,
            stale
        );
        assert_eq!(persist(async || store.get("k").await).await, None);
    }
}

#[tokio::test]
async fn one_wins_across_connections() {
    let server = RedisServer::start().await.unwrap();
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..64_u64 {
        let store = RedisStore::new(&server.url(), "gpu", patient()).unwrap();
        asking.spawn(async move {
            let mine = Claim::new("k", format!("holder-{n}"), n);
            store.acquire(&mine, LONG).await.unwrap()
        });
    }
    let answers = asking.join_all().await;
    let winners = answers
        .iter()
        .filter(|answer| **answer == Acquired::Acquired)
        .count();
    assert_eq!(winners, 1);
}

#[tokio::test]
async fn every_key_has_its_space_as_hash_tag_and_ends_by_itself() {
    let redis = Redis::start().await;
    let other = redis.store.space("other").unwrap();
    let rate = cnlab_lease::Rate {
        limit: 1,
        window: LONG,
    };
    for store in [&redis.store, &other] {
        store.acquire(&Claim::new("k", "a", 1), LONG).await.unwrap();
        store.release(&Claim::new("l", "a", 1)).await.unwrap();
        store.sweep(&cnlab_lease::Cursor::default()).await.unwrap();
        store.take("k", 1, rate).await.unwrap();
    }
    let keys: Vec<String> = redis::from_redis_value(redis.command(&["KEYS", "*"]).await).unwrap();
    assert_eq!(keys.len(), 10, "{keys:?}");
    for key in &keys {
        assert!(
            key.starts_with("{gpu}:") || key.starts_with("{other}:"),
            "{key}"
        );
        let left: i64 = redis::from_redis_value(redis.command(&["PTTL", key]).await).unwrap();
        // One of each per space, of bounded size.
        let lasting = key.ends_with(":epoch") || key.ends_with(":deadlines");
        assert_eq!(left < 0, lasting, "{key} {left}");
    }
    // What one space holds is free in the other.
    let answer = other.acquire(&Claim::new("m", "b", 1), LONG).await.unwrap();
    assert_eq!(answer, Acquired::Acquired);
}

#[tokio::test]
async fn bad_addresses_and_names_are_refused_and_passwords_not_shown() {
    let options = RedisOptions::default();
    for (url, space) in [
        ("http://127.0.0.1", "gpu"),
        ("redis://127.0.0.1", ""),
        ("redis://127.0.0.1", "a{b}"),
    ] {
        let error = RedisStore::new(url, space, options).unwrap_err();
        assert!(matches!(error, LeaseError::Invalid { .. }), "{error:?}");
    }
    let store = RedisStore::new("redis://u:canary@127.0.0.1:1", "gpu", options).unwrap();
    assert!(!format!("{store:?}").contains("canary"));
    let error = store.epoch().await.unwrap_err();
    assert!(matches!(error, LeaseError::Unavailable { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("canary"));
}
