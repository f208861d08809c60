//! Several entire GPUs of one node under one grant.

use std::collections::BTreeSet;

use cnlab_model::ErrorKind;
use cnlab_proto::{
    model::v1::IsolationClass,
    scheduler::v1::{self as pb, ServerState},
};

use crate::{
    on_both,
    world::{Database, World, ada, ask, launched},
};

fn several(name: &str, gpus: u32) -> pb::CreateServerRequest {
    pb::CreateServerRequest {
        profile: "h100-full".to_owned(),
        gpus: Some(gpus),
        ..ask(name)
    }
}

fn uuids(server: &pb::Server) -> BTreeSet<String> {
    let grant = server.grant.as_ref().unwrap();
    let uuids = grant.slices.iter().map(|slice| slice.gpu_uuid.clone());
    uuids.collect()
}

async fn several_gpus_of_one_node_are_granted_together(database: Database) {
    let mut world = World::start(database).await;
    let me = ada();
    let _small = world.node("small", &["H100", "H100"]).await;
    let large = world
        .node("large", &["H100", "H100", "H100", "H100", "L40S"])
        .await;
    let four = world.create(&me, several("four", 4)).await.unwrap();
    assert_eq!((four.gpus, four.node_name.as_str()), (4, "large"));
    let grant = four.grant.clone().unwrap();
    assert_eq!(uuids(&four).len(), 4, "four different GPUs");
    for slice in &grant.slices {
        assert_eq!(slice.gpu_type, "H100");
        assert_eq!(slice.isolation(), IsolationClass::Hard);
        assert_eq!(slice.blocks[0].count, 100);
    }
    // The node is asked for all of them at once, with processors and memory for all.
    launched(&large, &four.id).await;
    let launch = large.state().launches[0].clone();
    assert_eq!(launch.grant.unwrap(), grant);
    let one = world.create(&me, several("one", 1)).await.unwrap();
    assert_eq!((one.gpus, one.node_name.as_str()), (1, "small"));
    // One of the small node's is taken: two do not fit together any more.
    let two = world.create(&me, several("two", 2)).await.unwrap();
    assert_eq!(two.state(), ServerState::Queued);
    let told = "waiting for 2 entire H100 on one node; at most 1 are free";
    assert_eq!(two.phase_detail, told);

    // All of it is known after a restart, and comes back together.
    world.stop().await;
    world.start_again().await;
    let again = world.get(&me, "two").await.unwrap();
    assert_eq!(again.state(), ServerState::Queued);
    world.delete_server(&me, "four").await.unwrap();
    let two = world.until(&me, "two", ServerState::Provisioning).await;
    assert_eq!((two.node_name.as_str(), uuids(&two).len()), ("large", 2));
    assert!(uuids(&two).is_subset(&uuids(&four)));
    let rest = world.create(&me, several("rest", 2)).await.unwrap();
    assert!(uuids(&rest).is_disjoint(&uuids(&two)));
    let intervals = world.billing.intervals();
    let interval = intervals.values().find(|one| one.workload_id == four.id);
    assert_eq!(interval.unwrap().slices.len(), 4);
}

async fn what_no_node_has_together_is_refused_at_once(database: Database) {
    let world = World::start(database).await;
    let me = ada();
    let _one = world.node("one", &["H100", "H100"]).await;
    let _two = world.node("two", &["H100", "H100", "H100"]).await;
    let quarter = pb::CreateServerRequest {
        gpus: Some(2),
        ..ask("quarter")
    };
    for (request, kind, reason, says) in [
        (
            several("a", 4),
            ErrorKind::Precondition,
            "GPUS_TOO_MANY",
            "the most on one is 3",
        ),
        (
            several("a", 0),
            ErrorKind::Invalid,
            "GPUS_INVALID",
            "1 to 16",
        ),
        (
            several("a", 17),
            ErrorKind::Invalid,
            "GPUS_INVALID",
            "1 to 16",
        ),
        (
            several("a", u32::MAX),
            ErrorKind::Invalid,
            "GPUS_INVALID",
            "1 to 16",
        ),
        (quarter, ErrorKind::Invalid, "GPUS_INVALID", "25% of one"),
    ] {
        let error = world.create(&me, request).await.unwrap_err();
        assert_eq!(
            (error.kind, error.reason.as_str()),
            (kind, reason),
            "{error:?}"
        );
        assert!(error.message.contains(says), "{}", error.message);
        assert_eq!(error.field.as_deref(), Some("gpus"));
    }
    let three = world.create(&me, several("three", 3)).await.unwrap();
    assert_eq!(three.node_name, "two");
}

on_both! {
    several_gpus_of_one_node_are_granted_together,
    what_no_node_has_together_is_refused_at_once,
}
