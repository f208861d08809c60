//! `cnlab node cordon` and `cnlab node uncordon`.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{counted, reason, result};
use crate::{
    console::Console,
    error::Result,
    names,
    session::{Effect, Session},
    text,
};

/// What to cordon.
#[derive(Debug, Clone, Default, Args)]
pub struct CordonArgs {
    /// Name or id of the node.
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Why, on one line; everybody who is signed in can read it, and who waits for the node is told.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// What to use again.
#[derive(Debug, Clone, Default, Args)]
pub struct UncordonArgs {
    /// Name or id of the node.
    #[arg(value_name = "NODE")]
    pub node: String,
}

/// Cordons the node.
///
/// # Errors
/// When there is none, or the gateway refuses.
pub async fn cordon(session: &Session, console: &mut Console, args: CordonArgs) -> Result<()> {
    let request = pb::CordonNodeRequest {
        node: names::node(&args.node)?,
        reason: args.reason.unwrap_or_default(),
    };
    let send = async |request| session.nodes().cordon_node(request).await;
    let node = session.call(Effect::Mutation, request, send).await?.message;
    result(console, &node)?;
    let name = text::one_line(&node.name);
    console.milestone(&match reason(&node) {
        "" => format!("✓ Cordoned: {name}"),
        reason => format!("✓ Cordoned: {name} ({})", text::one_line(reason)),
    })?;
    let program = session.program();
    if node.running > 0 {
        console.note(&format!(
            "  {} on there; to end that too: {program} node drain {name}",
            match node.running {
                1 => "1 workload goes".to_owned(),
                many => format!("{many} workloads go"),
            }
        ))?;
    }
    console.note(&format!("  use it again: {program} node uncordon {name}"))
}

/// Lets the node be used again.
///
/// # Errors
/// When there is none, or the gateway refuses.
pub async fn uncordon(session: &Session, console: &mut Console, args: UncordonArgs) -> Result<()> {
    let request = pb::UncordonNodeRequest {
        node: names::node(&args.node)?,
    };
    let send = async |request| session.nodes().uncordon_node(request).await;
    let node = session.call(Effect::Mutation, request, send).await?.message;
    result(console, &node)?;
    console.milestone(&format!("✓ Uncordoned: {}", text::one_line(&node.name)))?;
    if !node.answers {
        return console.note("  it does not answer now: nothing begins there until it does");
    }
    if node.resting > 0 {
        return console.note(&format!(
            "  {} with files there can begin again",
            counted(node.resting, "server")
        ));
    }
    Ok(())
}
