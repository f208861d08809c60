//! `cnlab server list`.

use std::collections::BTreeSet;

use cnlab_proto::scheduler::v1 as pb;

use super::state_text;
use crate::{
    console::Console,
    error::{Exit, Failure, Result},
    output::{self, Document, table::Table},
    session::{Effect, Session},
};

const PAGE: u32 = 500;
/// More pages than any account has; a gateway that never ends its list is at fault.
const MAX_PAGES: usize = 1_000;

/// Every server of the chosen project, or of all projects of the caller.
///
/// # Errors
/// When the gateway does not answer.
pub async fn all(session: &Session) -> Result<Vec<pb::Server>> {
    let mut servers = Vec::new();
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let request = pb::ListServersRequest {
            project: session.project().unwrap_or_default().to_owned(),
            page_size: PAGE,
            page_token,
        };
        let send = async |request| session.servers().list_servers(request).await;
        let mut page = session.call(Effect::Read, request, send).await?.message;
        servers.append(&mut page.servers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(servers);
        }
    }
    Err(Failure::new(
        Exit::Error,
        "ENDLESS_LIST",
        "the gateway's list of servers does not end",
    ))
}

/// Lists servers.
///
/// # Errors
/// When the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console) -> Result<()> {
    let servers = all(session).await?;
    let response = pb::ListServersResponse {
        servers,
        next_page_token: String::new(),
    };
    let servers = &response.servers;
    console.result(
        || {
            if servers.is_empty() {
                String::new()
            } else {
                table(servers)
            }
        },
        || output::name::servers(servers),
        || {
            Document::of(
                "ServerList",
                "cnlab.scheduler.v1.ListServersResponse",
                &response,
            )
        },
    )?;
    if servers.is_empty() {
        let program = session.program();
        return console.note(&format!(
            "no servers yet; create one: {program} server create --name first-experiment --image pytorch:2.4-cuda12.4 \
             --profile h100-25pct --storage 50gb"
        ));
    }
    Ok(())
}

fn table(servers: &[pb::Server]) -> String {
    let projects: BTreeSet<&str> = servers
        .iter()
        .map(|server| server.project.as_str())
        .collect();
    let mut head = vec!["NAME", "STATE", "PROFILE", "IMAGE", "NODE", "URL"];
    let several = projects.len() > 1;
    if several {
        head.insert(0, "PROJECT");
    }
    let mut table = Table::new(&head);
    for server in servers {
        let state = state_text(server);
        let dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        let mut row = vec![
            server.name.clone(),
            state,
            server.profile.clone(),
            server.image.clone(),
            dash(&server.node_name),
            dash(&server.url),
        ];
        if several {
            row.insert(0, server.project.clone());
        }
        table.row(row);
    }
    table.render()
}
