//! A cell on SQLite with the embedded lease store; only the clock of the rows is held still.

use cnlab_db::{DatabaseConfig, Db};
use cnlab_lease::EmbeddedStore;
use cnlab_model::{
    Blocks,
    id::{ServerId, TeamId, Ulid},
};
use cnlab_service::{
    Runtime, Secret, Span,
    runtime::{SeededIds, TestClock},
};
use cnlab_testkit::{GENEROUS, ScratchDir, wait_until};

use super::*;
use crate::{
    adapters::{billing_grpc::GrpcBilling, node_grpc::GrpcNodes},
    app::{Parts, catalog::Catalogue},
    config::{CatalogConfig, GrantConfig, NotebookConfig},
    store::{
        Migrations, batch,
        record::{Gpu, Grant, Node, Slice},
    },
};

const TTL: Duration = Duration::from_secs(2);

async fn cell(dir: &ScratchDir, clock: &TestClock) -> Arc<App> {
    let config = DatabaseConfig::sqlite(&dir.path().join("scheduler.sqlite"));
    let db = Db::connect(&config).await.unwrap();
    cnlab_db::migrate::<Migrations>(&db).await.unwrap();
    let key = Secret::new("a key".to_owned());
    let app = App::new(Parts {
        db,
        leases: Arc::new(EmbeddedStore::new("one life")),
        nodes: Arc::new(GrpcNodes::new(key.clone())),
        billing: Arc::new(GrpcBilling::new("http://127.0.0.1:9", &key).unwrap()),
        catalogue: Catalogue::load(&CatalogConfig::default()).unwrap(),
        notebook: NotebookConfig::default(),
        grants: GrantConfig {
            ttl: Span(TTL),
            renew_every: Span(TTL / 3),
        },
        teams: crate::cell::Teams::default(),
        runtime: Runtime::for_tests(clock.clone(), SeededIds::new(7)),
    });
    app.cell.lead_at_once();
    Arc::new(app)
}

/// A node that was heard of now, with one grant.
async fn node_with_a_grant(app: &App) -> (NodeId, GrantId) {
    let now = app.runtime.clock.now();
    let id = NodeId::from_ulid(Ulid(1));
    let node = Node {
        id,
        name: "gpu-box".to_owned(),
        endpoint: "http://127.0.0.1:9".to_owned(),
        cpu_milli: 1000,
        memory_bytes: 1 << 30,
        disk_bytes: 1 << 40,
        disk_free_bytes: 1 << 40,
        not_enforced: Vec::new(),
        ready_images: Vec::new(),
        registered_at: now,
        last_seen_at: now,
        cordon: None,
    };
    let gpu = Gpu {
        node: id,
        uuid: "SIM-0".to_owned(),
        family: "H100".to_owned(),
        name: "NVIDIA H100".to_owned(),
        memory_bytes: 80 << 30,
        simulated: true,
        driver_version: "simulated".to_owned(),
        taken: Blocks::EMPTY,
        present: true,
        version: 1,
    };
    app.register(&node, &[gpu]).await.unwrap();
    let grant = Grant {
        id: GrantId::from_ulid(Ulid(2)),
        fence: 1,
        workload: ServerId::from_ulid(Ulid(3)).into(),
        team: TeamId::from_ulid(Ulid(4)),
        node: id,
        gpu_type: "H100".to_owned(),
        slices: vec![Slice {
            gpu_uuid: "SIM-0".to_owned(),
            blocks: Blocks::ALL,
            vram_bytes: 80 << 30,
        }],
        granted_at: now,
        delivered_at: Some(now),
        released_at: None,
    };
    let taken = std::slice::from_ref(&grant);
    app.db
        .write(|tx| async move { batch::take(&tx, taken).await })
        .await
        .unwrap();
    (id, grant.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_runs_out_tells_that_its_node_is_silent() {
    let dir = ScratchDir::new("leases").unwrap();
    let clock = TestClock::at(Timestamp(1_800_000_000_000_000));
    let app = cell(&dir, &clock).await;
    let (node, grant) = node_with_a_grant(&app).await;
    let leases = Leases::new(Arc::clone(&app));

    // The first look opens what the rows hold, although nobody renewed.
    assert_eq!(app.leases.get(&grant.to_string()).await.unwrap(), None);
    leases.tick().await;
    let lease = app.leases.get(&grant.to_string()).await.unwrap().unwrap();
    assert_eq!((lease.holder, lease.fence), (node.to_string(), 1));

    // It runs out; by its row the node may still be heard of.
    wait_until(GENEROUS, "the lease to run out", async || {
        leases.tick().await;
        leases.seen().as_ref().unwrap().doubtful.contains_key(&node)
    })
    .await
    .unwrap();
    assert!(leases.seen().as_ref().unwrap().silent.is_empty());

    // By the row, too, it is silent now, and it keeps its grant.
    clock.advance(TTL + Duration::from_millis(1));
    leases.tick().await;
    assert!(leases.seen().as_ref().unwrap().silent.contains_key(&node));
    assert_eq!(grant::held(app.db.read(), None).await.unwrap().len(), 1);
    assert_eq!(app.leases.get(&grant.to_string()).await.unwrap(), None);
}
