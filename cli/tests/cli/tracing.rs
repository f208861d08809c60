//! The program's own root span, and its context on the wire.

use cnlab_testkit::OtlpReceiver;

use crate::harness::{Ran, World, program};

#[tokio::test]
async fn the_root_span_is_exported_and_its_context_sent() {
    let world = World::new();
    let receiver = OtlpReceiver::start().unwrap();
    for variable in ["CNLAB_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
        world.peer.state().calls.clear();
        receiver.clear();
        let output = world
            .command(program())
            .env(variable, receiver.endpoint())
            .args(["server", "list"])
            .output()
            .unwrap();
        Ran::of(output).ok();
        let spans = receiver
            .wait_for("the root span", |spans| !spans.is_empty())
            .await
            .unwrap();
        assert_eq!(spans.len(), 1, "{spans:?}");
        assert_eq!(
            (spans[0].service.as_str(), spans[0].name.as_str()),
            ("cnlab", "cnlab server list")
        );
        assert_eq!(spans[0].parent_span_id, None);
        let calls = world.peer.calls("ListServers");
        let sent = calls[0].traceparent.as_deref().unwrap();
        assert_eq!(
            sent,
            format!("00-{}-{}-01", spans[0].trace_id, spans[0].span_id)
        );
    }
}

#[test]
fn a_collector_that_is_away_fails_no_command() {
    let world = World::new();
    let port = cnlab_testkit::free_port().unwrap();
    let output = world
        .command(program())
        .env("CNLAB_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .args(["whoami", "-o", "name"])
        .output()
        .unwrap();
    let ran = Ran::of(output).ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("admin\n", ""));
}
