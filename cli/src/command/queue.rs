//! `cnlab queue`: who waits for a slice, and when yours start.

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{
    explain::{between, times},
    run::list::priority_word,
};
use crate::{
    command::Setting,
    console::Console,
    error::{Exit, Failure, Result},
    output::{Document, Format, table::Table},
    session::{Effect, Session},
    text,
};

const PAGE: u32 = 500;
/// More pages than any queue has; a gateway that never ends its list is at fault.
const MAX_PAGES: usize = 1_000;
/// Of how many of one's own it is said what keeps them.
const TOLD: usize = 5;

/// What part of the queue to show.
#[derive(Debug, Clone, Default, Args)]
#[command(
    after_help = "Examples:\n  cnlab queue\n  cnlab queue --mine\n  cnlab queue --profile h100-full -o json"
)]
pub struct QueueArgs {
    /// Only what waits for this profile. Places still count everybody who waits for its type of
    /// GPU.
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
    /// Only what is yours. Places still count everybody.
    #[arg(long)]
    pub mine: bool,
}

/// Shows the queue.
///
/// # Errors
/// When nobody is signed in or the gateway does not answer.
pub async fn run(setting: Setting<'_>, console: &mut Console, args: QueueArgs) -> Result<()> {
    let session = setting.session(console)?;
    let mut queue = all(&session, args.profile.unwrap_or_default()).await?;
    if args.mine {
        queue.entries.retain(is_mine);
    }
    console.result(
        || {
            if queue.entries.is_empty() {
                String::new()
            } else {
                table(&queue)
            }
        },
        || {
            let mine = queue.entries.iter().filter(|entry| is_mine(entry));
            mine.map(|entry| entry.name.clone()).collect()
        },
        || Document::of("Queue", "cnlab.scheduler.v1.ListQueueResponse", &queue),
    )?;
    if console.format() != Format::Table {
        return Ok(());
    }
    if queue.entries.is_empty() {
        let whose = if args.mine {
            "nothing of yours"
        } else {
            "nothing"
        };
        return console.note(&format!("{whose} waits"));
    }
    for line in remarks(&queue, session.program().name()) {
        console.note(&line)?;
    }
    Ok(())
}

async fn all(session: &Session, profile: String) -> Result<pb::ListQueueResponse> {
    let mut whole = pb::ListQueueResponse::default();
    let mut page_token = String::new();
    for _ in 0..MAX_PAGES {
        let request = pb::ListQueueRequest {
            profile: profile.clone(),
            page_size: PAGE,
            page_token,
        };
        let send = async |request| session.queue().list_queue(request).await;
        let mut page = session.call(Effect::Read, request, send).await?.message;
        whole.entries.append(&mut page.entries);
        whole.total = page.total;
        // The first page is the oldest.
        whole.as_of = whole.as_of.or(page.as_of);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(whole);
        }
    }
    Err(Failure::new(
        Exit::Error,
        "ENDLESS_LIST",
        "the gateway's list of the queue does not end",
    ))
}

fn is_mine(entry: &pb::QueueEntry) -> bool {
    entry.owner() == pb::QueueOwner::Yours
}

/// `run` or `server`, as ids say.
fn noun(entry: &pb::QueueEntry) -> &'static str {
    if entry.workload_id.starts_with("run_") {
        "run"
    } else {
        "server"
    }
}

fn work(entry: &pb::QueueEntry) -> String {
    match entry.owner() {
        pb::QueueOwner::Yours => format!("{} {}", noun(entry), entry.name),
        pb::QueueOwner::YourTeam => "(your team)".to_owned(),
        pb::QueueOwner::Others => "(another team)".to_owned(),
        pb::QueueOwner::Unspecified => "-".to_owned(),
    }
}

fn starts(entry: &pb::QueueEntry, as_of: Option<&prost_types::Timestamp>) -> String {
    match entry.standing() {
        pb::Standing::MakingRoom => return "next: room is being made".to_owned(),
        pb::Standing::NoNode => return "when a node takes new work".to_owned(),
        pb::Standing::Unspecified
        | pb::Standing::Waiting
        | pb::Standing::Running
        | pb::Standing::Over => {}
    }
    let Some(start) = &entry.start else {
        return "-".to_owned();
    };
    let Some(wait) = between(as_of, start.at.as_ref()) else {
        return "unknown".to_owned();
    };
    let wait = if wait.is_zero() {
        "now".to_owned()
    } else {
        format!("in {}", text::minutes(wait))
    };
    match start.origin() {
        pb::StartOrigin::Guaranteed => format!("{wait}, deadline guaranteed"),
        pb::StartOrigin::Reserved => format!("{wait}, reserved"),
        pb::StartOrigin::Expected => format!("{wait}, expected"),
        pb::StartOrigin::MakingRoom | pb::StartOrigin::Unspecified => wait,
    }
}

fn table(queue: &pb::ListQueueResponse) -> String {
    let mut table = Table::new(&[
        "GPU", "PLACE", "WORK", "PROFILE", "PRIORITY", "WAITED", "STARTS",
    ]);
    let as_of = queue.as_of.as_ref();
    for entry in &queue.entries {
        let place = match entry.position {
            0 => "-".to_owned(),
            place => place.to_string(),
        };
        let waited = between(entry.queued_at.as_ref(), as_of);
        table.row([
            entry.gpu_type.clone(),
            place,
            work(entry),
            times(entry.gpus, &entry.profile),
            priority_word(entry.priority()).to_owned(),
            waited.map_or_else(|| "-".to_owned(), text::minutes),
            starts(entry, as_of),
        ]);
    }
    table.render()
}

/// What keeps one's own, and what would help.
fn remarks(queue: &pb::ListQueueResponse, program: &str) -> Vec<String> {
    let mine: Vec<&pb::QueueEntry> = queue
        .entries
        .iter()
        .filter(|entry| is_mine(entry))
        .collect();
    let mut lines = Vec::new();
    for entry in mine.iter().take(TOLD) {
        let Some(why) = &entry.explanation else {
            continue;
        };
        let blocked = why.blocker.as_ref().map(|blocker| blocker.text.as_str());
        let sooner = why.sooner.first().map(|sooner| sooner.text.as_str());
        let mut line = entry.name.clone();
        for (head, words) in [("", blocked), ("sooner with ", sooner)] {
            if let Some(words) = words {
                let mark = if head.is_empty() { ": " } else { "; " };
                line.push_str(mark);
                line.push_str(head);
                line.push_str(words);
            }
        }
        lines.push(line);
    }
    if let Some(first) = mine.first() {
        let (noun, name) = (noun(first), &first.name);
        lines.push(format!("all about it: {program} {noun} explain {name}"));
    }
    lines
}
