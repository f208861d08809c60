//! `cnlab node list`.

use std::collections::BTreeMap;

use cnlab_model::gpu::BLOCKS_PER_GPU;
use cnlab_proto::{convert, scheduler::v1 as pb};

use super::{reason, status};
use crate::{
    console::Console,
    error::{Exit, Failure, Result},
    output::{self, Document, table::Table},
    session::{Effect, Session},
    text,
};

const PAGE: u32 = 500;
/// More pages than any cell has; a gateway that never ends its list is at fault.
const MAX_PAGES: usize = 1_000;

/// Every node, by name.
///
/// # Errors
/// When the gateway does not answer.
pub async fn all(session: &Session) -> Result<Vec<pb::Node>> {
    let mut nodes = Vec::new();
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let request = pb::ListNodesRequest {
            page_size: PAGE,
            page_token,
        };
        let send = async |request| session.nodes().list_nodes(request).await;
        let mut page = session.call(Effect::Read, request, send).await?.message;
        nodes.append(&mut page.nodes);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            nodes.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
            return Ok(nodes);
        }
    }
    Err(Failure::new(
        Exit::Error,
        "ENDLESS_LIST",
        "the gateway's list of nodes does not end",
    ))
}

/// Lists nodes.
///
/// # Errors
/// When the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console) -> Result<()> {
    let nodes = all(session).await?;
    let response = pb::ListNodesResponse {
        nodes,
        next_page_token: String::new(),
    };
    let nodes = &response.nodes;
    console.result(
        || {
            if nodes.is_empty() {
                String::new()
            } else {
                table(nodes)
            }
        },
        || output::name::nodes(nodes),
        || {
            Document::of(
                "NodeList",
                "cnlab.scheduler.v1.ListNodesResponse",
                &response,
            )
        },
    )?;
    if nodes.is_empty() {
        return console.note(
            "no nodes yet; a node joins when its node-svc is started, and `cnlab up` has one",
        );
    }
    Ok(())
}

fn table(nodes: &[pb::Node]) -> String {
    let headers = [
        "NAME",
        "STATUS",
        "GPUS",
        "FREE",
        "RUNNING",
        "LAST SEEN",
        "REASON",
    ];
    // Only where somebody gave one.
    let with_reasons = nodes.iter().any(|node| !reason(node).is_empty());
    let columns = headers.len() - usize::from(!with_reasons);
    let mut table = Table::new(headers.get(..columns).unwrap_or(&headers));
    for (node, unique) in nodes.iter().zip(output::name::nodes(nodes)) {
        let name = if unique == node.name {
            unique
        } else {
            // Another one has the same name.
            format!("{} ({unique})", node.name)
        };
        let row = [
            name,
            status(node),
            gpus(node),
            free(node).map_or_else(|| "-".to_owned(), |percent| format!("{percent}%")),
            node.running.to_string(),
            last_seen(node),
            reason(node).to_owned(),
        ];
        table.row(row.into_iter().take(columns));
    }
    table.render()
}

/// `2 x H100, 1 x A100`; what exists only in the simulator says so.
fn gpus(node: &pb::Node) -> String {
    let mut counts: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for gpu in node.gpus.iter().filter_map(|gpu| gpu.gpu.as_ref()) {
        *counts
            .entry((gpu.gpu_type.as_str(), gpu.simulated))
            .or_default() += 1;
    }
    if counts.is_empty() {
        return "-".to_owned();
    }
    let named = counts.into_iter().map(|((family, simulated), count)| {
        let note = if simulated { " (simulated)" } else { "" };
        format!("{count} x {family}{note}")
    });
    named.collect::<Vec<_>>().join(", ")
}

/// How many percent of all its blocks nobody holds, rounded down; nothing without a GPU.
fn free(node: &pb::Node) -> Option<u64> {
    let all = u64::try_from(node.gpus.len()).ok()? * u64::from(BLOCKS_PER_GPU);
    let taken: u64 = node.gpus.iter().map(|gpu| u64::from(taken(gpu))).sum();
    (all.saturating_sub(taken) * 100).checked_div(all)
}

/// How many of its blocks somebody holds.
pub(super) fn taken(gpu: &pb::NodeGpu) -> u32 {
    gpu.taken.iter().map(|range| range.count).sum()
}

pub(super) fn last_seen(node: &pb::Node) -> String {
    node.last_seen_ago.as_ref().map_or_else(
        || "-".to_owned(),
        |ago| format!("{} ago", text::elapsed(convert::decode_duration(ago))),
    )
}

#[cfg(test)]
mod tests {
    use cnlab_proto::model::v1 as model;

    use super::*;

    #[test]
    fn what_is_free_is_said_of_all_gpus_together() {
        let gpu = |family: &str, simulated, counts: &[u32]| pb::NodeGpu {
            gpu: Some(model::Gpu {
                gpu_type: family.to_owned(),
                simulated,
                ..model::Gpu::default()
            }),
            taken: counts
                .iter()
                .map(|count| model::BlockRange {
                    first: 0,
                    count: *count,
                })
                .collect(),
        };
        let mut node = pb::Node::default();
        assert_eq!((gpus(&node).as_str(), free(&node)), ("-", None));
        node.gpus = vec![
            gpu("H100", false, &[25, 10]),
            gpu("H100", false, &[]),
            gpu("A100", true, &[100]),
        ];
        assert_eq!(gpus(&node), "1 x A100 (simulated), 2 x H100");
        assert_eq!(free(&node), Some(55));
    }
}
