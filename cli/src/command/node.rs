//! `cnlab node …`: the machines with the GPUs, for those who operate them.

pub mod drain;
pub mod list;
pub mod mark;
pub mod show;

use clap::Subcommand;
use cnlab_proto::scheduler::v1 as pb;

use crate::{
    command::Setting,
    console::Console,
    error::Result,
    names,
    output::{self, Document},
    session::{Answer, Effect, Session},
};

/// What can be done with nodes.
#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    /// List the nodes.
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a node, and what is on it.
    Show(show::ShowArgs),
    /// Let nothing new begin on a node; what runs there runs on.
    Cordon(mark::CordonArgs),
    /// Let a node be used again, and end its drain.
    Uncordon(mark::UncordonArgs),
    /// Cordon a node and end what runs there: runs begin anew elsewhere, servers are left stopped.
    Drain(drain::DrainArgs),
}

impl NodeCommand {
    /// The name of the command's root span.
    #[must_use]
    pub const fn span_name(&self) -> &'static str {
        match self {
            Self::List => "cnlab node list",
            Self::Show(_) => "cnlab node show",
            Self::Cordon(_) => "cnlab node cordon",
            Self::Uncordon(_) => "cnlab node uncordon",
            Self::Drain(_) => "cnlab node drain",
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Whatever the command fails with.
pub async fn run(setting: Setting<'_>, console: &mut Console, command: NodeCommand) -> Result<()> {
    let session = setting.session(console)?;
    match command {
        NodeCommand::List => list::run(&session, console).await,
        NodeCommand::Show(args) => show::run(&session, console, &args).await,
        NodeCommand::Cordon(args) => mark::cordon(&session, console, args).await,
        NodeCommand::Uncordon(args) => mark::uncordon(&session, console, args).await,
        NodeCommand::Drain(args) => drain::run(&session, console, args).await,
    }
}

/// The node that a text means.
///
/// # Errors
/// When the text means none, or the gateway does not answer.
pub async fn get(session: &Session, node: &str) -> Result<Answer<pb::Node>> {
    let node = names::node(node)?;
    let send = async |request| session.nodes().get_node(request).await;
    session
        .call(Effect::Read, pb::GetNodeRequest { node }, send)
        .await
}

/// Writes the node as the result of a command, except for people, who are told.
fn result(console: &mut Console, node: &pb::Node) -> Result<()> {
    console.result(
        String::new,
        || output::name::nodes(std::slice::from_ref(node)),
        || document(node),
    )
}

/// The node in machine-readable form.
fn document(node: &pb::Node) -> Result<Document> {
    Document::of("Node", "cnlab.scheduler.v1.Node", node)
}

/// Its state in a word or two: one that is cordoned may be silent as well.
fn status(node: &pb::Node) -> String {
    let word = match node.state() {
        pb::NodeState::Unspecified => "unknown",
        pb::NodeState::Ready => "ready",
        pb::NodeState::Silent => "silent",
        // What an operator looks for before a machine is switched off.
        pb::NodeState::Cordoned if drains(node) => "drained",
        pb::NodeState::Cordoned => "cordoned",
        pb::NodeState::Draining => "draining",
    };
    match node.state() {
        pb::NodeState::Cordoned | pb::NodeState::Draining if !node.answers => {
            format!("{word}, silent")
        }
        pb::NodeState::Unspecified
        | pb::NodeState::Ready
        | pb::NodeState::Silent
        | pb::NodeState::Cordoned
        | pb::NodeState::Draining => word.to_owned(),
    }
}

/// Whether what ran there was asked to end.
fn drains(node: &pb::Node) -> bool {
    node.cordon.as_ref().is_some_and(|cordon| cordon.drain)
}

/// Why it is cordoned; empty when nobody said.
fn reason(node: &pb::Node) -> &str {
    node.cordon
        .as_ref()
        .map_or("", |cordon| cordon.reason.as_str())
}

/// `1 server`, `2 servers`.
fn counted(count: u32, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}
