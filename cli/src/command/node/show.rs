//! `cnlab node show`: everything that is known of a node, and what is on it.

use clap::Args;
use cnlab_model::{ByteSize, gpu::BLOCKS_PER_GPU};
use cnlab_proto::{convert, scheduler::v1 as pb};

use super::{
    counted, document, drains, get,
    list::{last_seen, taken},
    reason, status,
};
use crate::{
    command::server::show::{to_the_second, with_note},
    console::Console,
    error::Result,
    output::{self, table::Facts},
    session::Session,
};

/// What to show.
#[derive(Debug, Clone, Default, Args)]
pub struct ShowArgs {
    /// Name or id of the node.
    #[arg(value_name = "NODE")]
    pub node: String,
}

/// Shows the node.
///
/// # Errors
/// When there is none, or the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console, args: &ShowArgs) -> Result<()> {
    let node = get(session, &args.node).await?.message;
    console.result(
        || table(&node),
        || output::name::nodes(std::slice::from_ref(&node)),
        || document(&node),
    )
}

fn table(node: &pb::Node) -> String {
    let mut facts = Facts::default();
    facts.add("Name", node.name.as_str());
    facts.add("Id", node.id.as_str());
    facts.add("Status", status(node));
    if let Some(cordon) = &node.cordon {
        let since = cordon.since.as_ref().map(to_the_second).unwrap_or_default();
        facts.add("Cordoned", format!("since {since}"));
        facts.add("  reason", reason(node));
        if drains(node) {
            facts.add(
                "Drain",
                match node.drain_detail.as_str() {
                    "" => "done: nothing runs there",
                    detail => detail,
                },
            );
        }
    }
    let seen = node.last_seen_at.as_ref().map(to_the_second);
    facts.add(
        "Last seen",
        with_note(&last_seen(node), &seen.unwrap_or_default()),
    );
    let registered = node.registered_at.as_ref().map(to_the_second);
    facts.add("Registered", registered.unwrap_or_default());
    facts.add("CPU", format!("{} cores", cores(node.cpu_milli)));
    facts.add("Memory", ByteSize(node.memory_bytes).to_string());
    facts.add(
        "Disk",
        format!(
            "{} free of {}",
            ByteSize(node.disk_free_bytes),
            ByteSize(node.disk_bytes)
        ),
    );
    facts.add_all("GPUs", node.gpus.iter().map(gpu));
    let running = node.workloads.iter().map(workload);
    facts.add_all("Running", with_others(running, node.running, "workload"));
    let resting = node.resting_servers.iter().map(workload);
    facts.add_all("Files of", with_others(resting, node.resting, "server"));
    facts.add_all("Not enforced", node.not_enforced.iter().cloned());
    facts.render()
}

/// Thousandths of a core as cores: `2`, `1.5`.
fn cores(milli: u32) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn gpu(gpu: &pb::NodeGpu) -> String {
    let facts = gpu.gpu.clone().unwrap_or_default();
    let taken_blocks = convert::decode_blocks("taken", &gpu.taken)
        .map_or_else(|error| error.problem.clone(), |blocks| blocks.to_string());
    let used = match taken(gpu) {
        0 => "all blocks free".to_owned(),
        count => format!(
            "{count}% taken (blocks {taken_blocks} of 0-{})",
            BLOCKS_PER_GPU - 1
        ),
    };
    let simulated = if facts.simulated { ", simulated" } else { "" };
    format!(
        "{} {}, {}{simulated}: {used}",
        facts.gpu_type,
        facts.uuid,
        ByteSize(facts.memory_bytes)
    )
}

fn workload(workload: &pb::NodeWorkload) -> String {
    let what = if workload.id.starts_with("run_") {
        "run"
    } else {
        "server"
    };
    let mut line = format!(
        "{what} {}/{}, {}",
        workload.project, workload.name, workload.state_text
    );
    for (at, slice) in workload.slices.iter().enumerate() {
        let count: u32 = slice.blocks.iter().map(|range| range.count).sum();
        let joint = if at == 0 { ", " } else { " and " };
        line.push_str(&format!("{joint}{count}% of {}", slice.gpu_uuid));
    }
    if let Some(since) = &workload.since {
        line.push_str(&format!(", since {}", to_the_second(since)));
    }
    line
}

/// The lines, and how many more there are that belong to others.
fn with_others(own: impl Iterator<Item = String>, all: u32, what: &str) -> Vec<String> {
    let mut lines: Vec<String> = own.collect();
    let others = all.saturating_sub(u32::try_from(lines.len()).unwrap_or(u32::MAX));
    if others > 0 {
        lines.push(format!("{} of other projects", counted(others, what)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_written_as_short_as_they_are() {
        for (milli, text) in [
            (0, "0"),
            (500, "0.5"),
            (1000, "1"),
            (10_000, "10"),
            (1250, "1.25"),
        ] {
            assert_eq!(cores(milli), text);
        }
    }

    #[test]
    fn what_belongs_to_others_is_counted() {
        let own = || ["a".to_owned()].into_iter();
        assert_eq!(with_others(own(), 1, "server"), ["a"]);
        assert_eq!(
            with_others(own(), 2, "server"),
            ["a", "1 server of other projects"]
        );
        assert_eq!(
            with_others([].into_iter(), 2, "workload"),
            ["2 workloads of other projects"]
        );
        assert!(with_others([].into_iter(), 0, "server").is_empty());
    }
}
