//! One trace from the request to the node, also for what was sent later.

use cnlab_service::telemetry;

use crate::world::{Database, World, ada, ask, by, launched};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launch_belongs_to_the_trace_of_its_request() {
    let receiver = cnlab_testkit::OtlpReceiver::start().unwrap();
    let mut world = World::start(Database::Sqlite).await;
    world.config.common.telemetry.otlp_endpoint = Some(receiver.endpoint().to_owned());
    let _guard = telemetry::init("scheduler-svc", &world.config.common.telemetry).unwrap();
    let node = world.node("gpu-box", &["H100"]).await;
    node.down();
    let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut request = by(&ada(), ask("a"));
    request.metadata_mut().insert(
        "traceparent",
        format!("00-{trace_id}-00f067aa0ba902b7-01")
            .parse()
            .unwrap(),
    );
    let server = world
        .servers()
        .create_server(request)
        .await
        .unwrap()
        .into_inner();
    node.up();
    launched(&node, &server.id).await;
    let sent = node.state().traceparents.clone();
    assert!(
        !sent.is_empty() && sent.iter().all(|sent| sent.contains(trace_id)),
        "{sent:?}"
    );
}
