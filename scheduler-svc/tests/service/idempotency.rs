//! The same request again has one effect and one answer (INV-7).

use cnlab_proto::scheduler::v1 as pb;
use cnlab_service::Runtime;

use crate::{
    on_both,
    world::{Database, World, ada, ask, done, keyed, launched, person},
};

const IMAGES: &str = r#"
[[image]]
name = "jupyter:minimal"
reference = "jupyter/minimal-notebook:latest"
description = "JupyterLab and nothing else"
packages = ["jupyterlab==4.6.6"]
build = "40s"
start = "4s"
"#;

async fn a_repeated_create_makes_one_server(database: Database) {
    let mut world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let tasks = Runtime::system().tasks;
    let at_once: Vec<_> = (0..8)
        .map(|_| {
            let mut servers = world.servers();
            let request = keyed(&me, "key-1", ask("a"));
            tasks.spawn(
                "create",
                async move { servers.create_server(request).await },
            )
        })
        .collect();
    let mut answers = Vec::new();
    for answer in at_once {
        answers.push(done(answer.await.unwrap()).unwrap());
    }
    assert!(
        answers.windows(2).all(|pair| pair[0] == pair[1]),
        "{answers:?}"
    );
    launched(&node, &answers[0].id).await;

    // Later, after a restart, and when it could not be carried out any more.
    world.stop().await;
    world.start_again().await;
    node.state().workloads.clear();
    world.register(&node, &[]).await;
    let late = world
        .servers()
        .create_server(keyed(&me, "key-1", ask("a")))
        .await;
    assert_eq!(done(late).unwrap(), answers[0]);
    let refused = world.create(&me, ask("b")).await.unwrap_err();
    assert_eq!(refused.reason, "PROFILE_UNAVAILABLE");

    // Another request under the key is refused; the key of somebody else is another key.
    world.register(&node, &["H100"]).await;
    let other = pb::CreateServerRequest {
        storage_bytes: 1,
        ..ask("a")
    };
    let refused = done(
        world
            .servers()
            .create_server(keyed(&me, "key-1", other))
            .await,
    );
    assert_eq!(refused.unwrap_err().reason, "IDEMPOTENCY_MISMATCH");
    let bob = person(2, &["bob/default"]);
    let bobs = done(
        world
            .servers()
            .create_server(keyed(&bob, "key-1", ask("a")))
            .await,
    );
    assert_ne!(bobs.unwrap().id, answers[0].id);
}

async fn a_repeated_create_outlives_its_image(database: Database) {
    let mut world = World::start(database).await;
    let _node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    let create = || keyed(&me, "key-1", ask("a"));
    let first = done(world.servers().create_server(create()).await).unwrap();
    // Somebody takes the image out of the catalogue before the answer is asked for again.
    world.stop().await;
    world.config.catalog.images_file = Some(world.file("images.toml", IMAGES));
    world.start_again().await;
    let refused = world.create(&me, ask("b")).await.unwrap_err();
    assert_eq!(refused.reason, "IMAGE_NOT_FOUND");
    let again = done(world.servers().create_server(create()).await).unwrap();
    assert_eq!(again, first);
}

async fn a_repeated_delete_answers_as_the_first_did(database: Database) {
    let world = World::start(database).await;
    let node = world.node("gpu-box", &["H100"]).await;
    let me = ada();
    world.ready(&me, &node, "a").await;
    let delete = || {
        let server = "a".to_owned();
        keyed(&me, "gone", pb::DeleteServerRequest { server })
    };
    let first = done(world.servers().delete_server(delete()).await).unwrap();
    cnlab_testkit::wait_until(cnlab_testkit::GENEROUS, "it to be gone", async || {
        world.get(&me, "a").await.is_err()
    })
    .await
    .unwrap();
    let second = done(world.servers().delete_server(delete()).await).unwrap();
    assert_eq!(first, second);
}

on_both!(
    a_repeated_create_makes_one_server,
    a_repeated_create_outlives_its_image,
    a_repeated_delete_answers_as_the_first_did,
);
