//! `cnlab run list`.

use std::collections::BTreeSet;

use cnlab_proto::scheduler::v1 as pb;

use super::{command_line, state_text};
use crate::{
    console::Console,
    error::{Exit, Failure, Result},
    output::{self, Document, table::Table},
    session::{Effect, Session},
    text,
};

const PAGE: u32 = 500;
/// More pages than any account has; a gateway that never ends its list is at fault.
const MAX_PAGES: usize = 1_000;
/// Columns of the command in the table.
const COMMAND: usize = 40;

/// Every run of the chosen project, or of all projects of the caller, newest first.
///
/// # Errors
/// When the gateway does not answer.
pub async fn all(session: &Session) -> Result<Vec<pb::Run>> {
    let mut runs = Vec::new();
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let request = pb::ListRunsRequest {
            project: session.project().unwrap_or_default().to_owned(),
            page_size: PAGE,
            page_token,
        };
        let send = async |request| session.runs().list_runs(request).await;
        let mut page = session.call(Effect::Read, request, send).await?.message;
        runs.append(&mut page.runs);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(runs);
        }
    }
    Err(Failure::new(
        Exit::Error,
        "ENDLESS_LIST",
        "the gateway's list of runs does not end",
    ))
}

/// Lists runs.
///
/// # Errors
/// When the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console) -> Result<()> {
    let runs = all(session).await?;
    let response = pb::ListRunsResponse {
        runs,
        next_page_token: String::new(),
    };
    let runs = &response.runs;
    console.result(
        || {
            if runs.is_empty() {
                String::new()
            } else {
                table(runs)
            }
        },
        || output::name::runs(runs),
        || Document::of("RunList", "cnlab.scheduler.v1.ListRunsResponse", &response),
    )?;
    if runs.is_empty() {
        let program = session.program();
        return console.note(&format!(
            "no runs yet; submit one: {program} run submit --image pytorch:2.4-cuda12.4 \
             --profile h100-25pct -- python -c 'print(2 + 3)'"
        ));
    }
    Ok(())
}

fn table(runs: &[pb::Run]) -> String {
    let projects: BTreeSet<&str> = runs.iter().map(|run| run.project.as_str()).collect();
    let mut head = vec!["NAME", "STATE", "PRIORITY", "PROFILE", "NODE", "COMMAND"];
    let several = projects.len() > 1;
    if several {
        head.insert(0, "PROJECT");
    }
    let mut table = Table::new(&head);
    for run in runs {
        let node = match run.node_name.as_str() {
            "" => "-",
            name => name,
        };
        let mut row = vec![
            run.name.clone(),
            state_text(run),
            priority_word(run.priority()).to_owned(),
            run.profile.clone(),
            node.to_owned(),
            text::cut(&text::one_line(&command_line(run)), COMMAND).into_owned(),
        ];
        if several {
            row.insert(0, run.project.clone());
        }
        table.row(row);
    }
    table.render()
}

/// The class in one word.
pub const fn priority_word(priority: pb::Priority) -> &'static str {
    match priority {
        pb::Priority::Unspecified => "unknown",
        pb::Priority::Low => "low",
        pb::Priority::Normal => "normal",
        pb::Priority::High => "high",
        pb::Priority::Critical => "critical",
    }
}
