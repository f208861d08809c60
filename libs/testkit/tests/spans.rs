//! The span receiver against a client of the same protocol, and the checks of a trace.

use cnlab_testkit::{OtlpReceiver, SpanRecord, TraceTree};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

#[tokio::test]
async fn receives_what_a_client_exports() {
    let receiver = OtlpReceiver::start().unwrap();
    let mut client = TraceServiceClient::connect(receiver.endpoint().to_owned())
        .await
        .unwrap();
    let span = Span {
        trace_id: vec![0xab; 16],
        span_id: vec![0x01; 8],
        name: "scheduler.CreateServer".to_owned(),
        kind: 2,
        attributes: vec![attribute("cnlab.server_id", "srv_1")],
        ..Span::default()
    };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: vec![attribute("service.name", "scheduler-svc")],
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                spans: vec![span],
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    client.export(request).await.unwrap();
    let spans = receiver
        .wait_for("one span", |spans| spans.len() == 1)
        .await
        .unwrap();
    let tree = TraceTree::build(spans).unwrap();
    let root = tree.root();
    assert_eq!(root.trace_id, "ab".repeat(16));
    assert_eq!(root.kind, "SPAN_KIND_SERVER");
    assert_eq!(root.parent_span_id, None);
    assert_eq!(root.attributes["cnlab.server_id"], "srv_1");
    assert_eq!(tree.services(), ["scheduler-svc"]);
    assert!(
        tree.find("scheduler-svc", "scheduler.CreateServer")
            .is_some()
    );
    receiver.clear();
    assert!(receiver.spans().is_empty());
}

fn span(trace: &str, id: &str, parent: Option<&str>, start_ns: u64) -> SpanRecord {
    SpanRecord {
        trace_id: trace.to_owned(),
        span_id: id.to_owned(),
        parent_span_id: parent.map(str::to_owned),
        service: format!("service-{id}"),
        name: format!("name-{id}"),
        kind: String::new(),
        start_ns,
        end_ns: start_ns,
        attributes: std::collections::BTreeMap::new(),
        links: Vec::new(),
        events: Vec::new(),
    }
}

#[test]
fn a_tree_is_built_whatever_the_order_of_arrival() {
    let spans = vec![
        span("t", "c", Some("b"), 3),
        span("t", "b", Some("a"), 2),
        span("t", "d", Some("a"), 1),
        span("t", "a", None, 0),
    ];
    let tree = TraceTree::build(spans).unwrap();
    assert_eq!(tree.root().span_id, "a");
    let path: Vec<_> = tree
        .path_to("c")
        .iter()
        .map(|span| span.span_id.as_str())
        .collect();
    assert_eq!(path, ["a", "b", "c"]);
    assert_eq!(
        tree.services(),
        ["service-a", "service-d", "service-b", "service-c"]
    );
    assert_eq!(tree.to_string().lines().count(), 4);
}

#[test]
fn every_kind_of_broken_trace_is_refused() {
    let refused = |spans: Vec<SpanRecord>| TraceTree::build(spans).unwrap_err();
    assert!(refused(vec![]).contains("no spans"));
    let two_traces = vec![span("t", "a", None, 0), span("u", "b", Some("a"), 1)];
    assert!(refused(two_traces).contains("more than one trace"));
    let orphan = vec![span("t", "a", None, 0), span("t", "b", Some("x"), 1)];
    assert!(refused(orphan).contains("unknown"));
    let two_roots = vec![span("t", "a", None, 0), span("t", "b", None, 1)];
    assert!(refused(two_roots).contains("expected one root, found 2"));
    let no_root = vec![span("t", "a", Some("b"), 0), span("t", "b", Some("a"), 1)];
    assert!(refused(no_root).contains("expected one root, found 0"));
    let twice = vec![span("t", "a", None, 0), span("t", "a", None, 1)];
    assert!(refused(twice).contains("used twice"));
    let ring = vec![
        span("t", "a", None, 0),
        span("t", "b", Some("c"), 1),
        span("t", "c", Some("b"), 2),
    ];
    assert!(refused(ring).contains("each other's parents"));
}
