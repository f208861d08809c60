//! One trace from the command line to the process that it started.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{OtlpReceiver, SpanRecord, TraceTree, wait_for};
use cnlab_tests::{
    cli::Cli,
    six::{PATIENCE, Six},
};

use crate::{create, on_six};

/// The node's span of a whole run; it ends when the run does.
const RUN: &str = "node.RunWorkload";
/// What is asked again and again on nobody's behalf.
const BACKGROUND: [&str; 2] = ["scheduler.RegisterNode", "scheduler.RenewGrants"];

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_is_one_trace_down_to_the_child_process() -> Result<()> {
    let spans = OtlpReceiver::start()?;
    on_six(Some(spans.endpoint()), async |six| {
        let cli = Cli::new()?.with_env("CNLAB_OTLP_ENDPOINT", spans.endpoint());
        six.sign_in(&cli).await?;
        let id = create(&cli, "traced", "h100-25pct").await?;
        let (trace, run) = traceparent_of(six, &id)?;
        // The run's own span ends with the run. That is another command, so another trace.
        cli.ok(&["server", "stop", "traced"]).await?;

        let tree = whole(&spans, &trace).await?;
        let root = tree.root();
        ensure!(
            root.service == "cnlab" && root.name == "cnlab server create",
            "the root is no command line:\n{tree}"
        );
        for (service, name) in [
            ("gateway", "gateway.CreateServer"),
            ("scheduler-svc", "scheduler.CreateServer"),
            ("billing-svc", "billing.OpenUsage"),
            ("node-svc", "node.LaunchWorkload"),
            ("node-svc", RUN),
            ("scheduler-svc", "scheduler.ReportWorkload"),
        ] {
            ensure!(
                tree.find(service, name).is_some(),
                "no {name} of {service}:\n{tree}"
            );
        }
        // The child was told its place: below the node's span, which the path leads to.
        let path = tree.path_to(&run);
        let services: Vec<&str> = path.iter().map(|span| span.service.as_str()).collect();
        ensure!(
            path.last().is_some_and(|span| span.name == RUN)
                && in_order(
                    &services,
                    &["cnlab", "gateway", "scheduler-svc", "node-svc"]
                ),
            "the child's place is {path:?}:\n{tree}"
        );
        alone(&spans.spans(), &trace)
    })
    .await
}

/// Trace and span id that a server's process was started with.
fn traceparent_of(six: &Six, id: &str) -> Result<(String, String)> {
    let pid = six.jupyter(id)?.pid;
    let environment = fs::read(format!("/proc/{pid}/environ"))?;
    let value = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok())
        .find_map(|entry| entry.strip_prefix("TRACEPARENT="))
        .context("the process has no TRACEPARENT")?;
    let parts: Vec<&str> = value.split('-').collect();
    ensure!(
        parts.len() == 4 && parts[0] == "00" && parts[1].len() == 32 && parts[2].len() == 16,
        "{value} is no traceparent"
    );
    ensure!(parts[3] == "01", "{value} says that nobody records");
    Ok((parts[1].to_owned(), parts[2].to_owned()))
}

/// The trace once its last span is there: a tree without a gap that holds the run's span. The
/// watch of the command line, the reports and the deliveries all end before that.
async fn whole(spans: &OtlpReceiver, trace: &str) -> Result<TraceTree> {
    let mut last = String::new();
    wait_for(PATIENCE, "an unbroken trace", async || {
        let ours: Vec<SpanRecord> = of(&spans.spans(), trace);
        match TraceTree::build(ours) {
            Ok(tree) if tree.find("node-svc", RUN).is_some() => Some(tree),
            Ok(tree) => {
                last = format!("no {RUN} yet:\n{tree}");
                None
            }
            Err(gap) => {
                last = gap;
                None
            }
        }
    })
    .await
    .with_context(|| last.clone())
}

fn of(spans: &[SpanRecord], trace: &str) -> Vec<SpanRecord> {
    spans
        .iter()
        .filter(|span| span.trace_id == trace)
        .cloned()
        .collect()
}

/// Whether these services come in this order on a path.
fn in_order(path: &[&str], wanted: &[&str]) -> bool {
    let mut path = path.iter();
    wanted
        .iter()
        .all(|service| path.any(|found| found == service))
}

/// Every trace but those of the background has a command at its root, and the creation is in
/// exactly one.
fn alone(spans: &[SpanRecord], trace: &str) -> Result<()> {
    let creations: BTreeSet<&str> = spans
        .iter()
        .filter(|span| {
            ["CreateServer", "LaunchWorkload", "OpenUsage"]
                .iter()
                .any(|name| span.name.ends_with(name))
                || span.name == "cnlab server create"
        })
        .map(|span| span.trace_id.as_str())
        .collect();
    ensure!(
        creations == BTreeSet::from([trace]),
        "one creation, and traces {creations:?}"
    );
    let astray: Vec<&SpanRecord> = spans
        .iter()
        .filter(|span| span.parent_span_id.is_none())
        .filter(|span| span.service != "cnlab" && !BACKGROUND.contains(&span.name.as_str()))
        .collect();
    ensure!(astray.is_empty(), "begun by nobody: {astray:?}");
    Ok(())
}
