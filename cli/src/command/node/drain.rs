//! `cnlab node drain`.

use std::time::Duration;

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;
use tokio::time::{Instant, sleep};

use super::{counted, drains, get, result};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    names,
    session::{Effect, Session},
    text,
};

/// How often the node is asked for.
const EVERY: Duration = Duration::from_millis(500);
/// How long a gateway may be away before waiting is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to drain.
#[derive(Debug, Clone, Default, Args)]
pub struct DrainArgs {
    /// Name or id of the node.
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Why, on one line; everybody who is signed in can read it, and whose server is stopped is told.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until nothing runs there any more.
    #[arg(short, long)]
    pub wait: bool,
    /// Wait at most so long, for example 90s, 10m or 2h; then exit with 124.
    #[arg(long, value_name = "TIME", value_parser = names::span, requires = "wait")]
    pub wait_timeout: Option<Duration>,
}

/// Drains the node, and waits until nothing runs there where that is wanted.
///
/// # Errors
/// When there is none, the gateway refuses, or somebody else ends the drain.
pub async fn run(session: &Session, console: &mut Console, args: DrainArgs) -> Result<()> {
    let request = pb::DrainNodeRequest {
        node: names::node(&args.node)?,
        reason: args.reason.unwrap_or_default(),
    };
    let send = async |request| session.nodes().drain_node(request).await;
    let answer = session.call(Effect::Mutation, request, send).await?;
    let mut node = answer.message;
    let name = text::one_line(&node.name).into_owned();
    if !args.wait && is_draining(&node) {
        result(console, &node)?;
        console.milestone(&format!("✓ Draining: {name}"))?;
        console.note(&format!("  {}", node.drain_detail))?;
        let program = session.program();
        return console.note(&format!(
            "  wait for that: {program} node drain --wait {name}"
        ));
    }
    if args.wait {
        let left = || {
            Failure::new(
                Exit::Interrupted,
                "INTERRUPTED",
                format!("stopped waiting; the drain of node {name} goes on"),
            )
            .caused_by("Ctrl-C")
            .try_this(advice(session, &name))
        };
        let work = async {
            let done = until_done(session, console, node, args.wait_timeout).await;
            done.map_err(|failure| failure.traced(answer.trace_id))
        };
        let done = interruptible(work, left).await;
        console.settle()?;
        node = done?;
    }
    result(console, &node)?;
    console.milestone(&format!("✓ Drained: {name}"))?;
    if node.resting > 0 {
        console.note(&format!(
            "  the files of {} stay there; {} when the node is used again and somebody starts {}",
            counted(node.resting, "server"),
            if node.resting == 1 {
                "it begins"
            } else {
                "they begin"
            },
            if node.resting == 1 { "it" } else { "them" },
        ))?;
    }
    let program = session.program();
    console.note(&format!("  use it again: {program} node uncordon {name}"))
}

fn is_draining(node: &pb::Node) -> bool {
    node.state() == pb::NodeState::Draining
}

async fn until_done(
    session: &Session,
    console: &mut Console,
    mut node: pb::Node,
    timeout: Option<Duration>,
) -> Result<pb::Node> {
    let started = Instant::now();
    let mut last_contact = started;
    let id = node.id.clone();
    while is_draining(&node) {
        let detail = text::one_line(&node.drain_detail).into_owned();
        let line = format!("  {detail} ({})", text::elapsed(started.elapsed()));
        console.progress(&detail, &line)?;
        if let Some(timeout) = timeout.filter(|timeout| started.elapsed() >= *timeout) {
            let name = &node.name;
            return Err(Failure::new(
                Exit::WaitTimeout,
                "WAIT_TIMEOUT",
                format!(
                    "node {name} is still draining after {}; it goes on",
                    text::wait(timeout)
                ),
            )
            .caused_by(detail)
            .try_this(advice(session, name)));
        }
        sleep(EVERY).await;
        match get(session, &id).await {
            Ok(answer) => {
                last_contact = Instant::now();
                node = answer.message;
            }
            // The drain goes on without us, and so does the node's maintenance.
            Err(failure) if failure.exit() == Exit::Error && last_contact.elapsed() <= PATIENCE => {
                let line = format!(
                    "  connection lost, trying again ({})",
                    text::elapsed(started.elapsed())
                );
                console.progress("lost", &line)?;
            }
            Err(failure) => return Err(failure),
        }
    }
    if drains(&node) {
        return Ok(node);
    }
    Err(Failure::new(
        Exit::Conflict,
        "NODE_UNCORDONED",
        format!("node {} is not being drained any more", node.name),
    )
    .caused_by("somebody else uncordoned it meanwhile"))
}

fn advice(session: &Session, name: &str) -> String {
    let program = session.program();
    format!(
        "`{program} node show {name}` to see what it waits for\n`{program} node uncordon {name}` to use it again"
    )
}
