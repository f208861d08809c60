//! `cnlab server show`: everything that is known, said as it is.

use clap::Args;
use cnlab_model::{ByteSize, gpu::BLOCKS_PER_GPU};
use cnlab_proto::{
    convert,
    model::v1::{self as model, IsolationClass},
    scheduler::v1 as pb,
};

use super::{document, get, state_text, wait};
use crate::{
    command::follow::interruptible,
    console::Console,
    error::{Exit, Failure, Result},
    output::table::Facts,
    session::Session,
    text,
};

/// What to show.
#[derive(Debug, Clone, Default, Args)]
pub struct ShowArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// First wait until nothing more happens by itself.
    #[arg(short, long)]
    pub watch: bool,
}

/// Shows the server.
///
/// # Errors
/// When there is none, or the gateway does not answer.
pub async fn run(session: &Session, console: &mut Console, args: &ShowArgs) -> Result<()> {
    let mut server = get(session, &args.server).await?.message;
    if args.watch {
        let interrupted = || {
            Failure::new(Exit::Interrupted, "INTERRUPTED", "stopped watching").caused_by("Ctrl-C")
        };
        let work = wait::until(session, console, server, wait::Goal::Settled, None);
        server = interruptible(work, interrupted).await?;
    }
    console.result(
        || table(&server),
        || vec![server.name.clone()],
        || document(&server),
    )
}

fn table(server: &pb::Server) -> String {
    let mut facts = Facts::default();
    facts.add("Name", server.name.as_str());
    facts.add("Id", server.id.as_str());
    facts.add("Project", server.project.as_str());
    facts.add("State", state_text(server));
    facts.add("Detail", server.phase_detail.as_str());
    if matches!(
        server.state(),
        pb::ServerState::Queued | pb::ServerState::Provisioning
    ) {
        let eta = super::eta(server);
        facts.add(
            "Expected",
            eta.map_or_else(String::new, |eta| format!("ready in {}", text::wait(eta))),
        );
    }
    facts.add("Url", server.url.as_str());
    facts.add("Image", with_note(&server.image, &server.image_reference));
    let size = ByteSize(server.storage_bytes);
    facts.add(
        "Storage",
        with_note(&format!("{size} = {} bytes", size.0), &server.volume_id),
    );
    facts.add("Profile", profile_text(&server.profile, server.gpus));
    if let Some(grant) = &server.grant {
        grant_facts(&mut facts, grant);
    }
    facts.add("Node", with_note(&server.node_name, &server.node_id));
    for (label, at) in [
        ("Created", &server.created_at),
        ("Started", &server.started_at),
        ("Ready", &server.ready_at),
        ("Stopped", &server.stopped_at),
    ] {
        facts.add(label, at.as_ref().map_or_else(String::new, to_the_second));
    }
    if let Some(runtime) = &server.runtime {
        runtime_facts(&mut facts, runtime);
    }
    if let Some(failure) = &server.failure {
        facts.add(
            "Failure",
            format!("error[{}]: {}", failure.reason, failure.message),
        );
        facts.add_all("  cause", failure.cause.lines().map(str::to_owned));
        facts.add_all("  try", failure.try_this.lines().map(str::to_owned));
    }
    facts.render()
}

pub(in crate::command) fn grant_facts(facts: &mut Facts, grant: &model::Grant) {
    facts.add("Grant", format!("{} (fence {})", grant.id, grant.fence));
    for slice in &grant.slices {
        slice_facts(facts, slice);
    }
    let Some(slice) = grant.slices.first() else {
        return;
    };
    facts.add(
        "Isolation",
        match slice.isolation() {
            IsolationClass::Hard => {
                "hard: a whole GPU or a MIG instance, kept apart by the hardware"
            }
            IsolationClass::Soft => "soft: 1% blocks, kept apart by software",
            IsolationClass::Unspecified => "not said",
        },
    );
}

/// A profile, and how often where that is more than once.
pub(in crate::command) fn profile_text(profile: &str, gpus: u32) -> String {
    match gpus {
        0 | 1 => profile.to_owned(),
        gpus => format!("{profile}, {gpus} times"),
    }
}

fn slice_facts(facts: &mut Facts, slice: &model::Slice) {
    let blocks = convert::decode_blocks("blocks", &slice.blocks);
    let numbers = blocks
        .as_ref()
        .map_or_else(|error| error.problem.clone(), ToString::to_string);
    let count = blocks.map_or(0, cnlab_model::Blocks::count);
    facts.add(
        "Slice",
        format!(
            "{count}% of {} {} (blocks {numbers} of 0-{}), {} of its memory",
            slice.gpu_type,
            slice.gpu_uuid,
            BLOCKS_PER_GPU - 1,
            ByteSize(slice.vram_bytes)
        ),
    );
}

pub(in crate::command) fn runtime_facts(facts: &mut Facts, runtime: &pb::RuntimeFacts) {
    facts.add(
        "GPU",
        if runtime.simulated_gpu {
            "simulated: no CUDA device is behind this slice"
        } else {
            "real"
        },
    );
    facts.add("Python", runtime.python_version.as_str());
    facts.add_all("Enforced", runtime.enforced.iter().cloned());
    facts.add_all("Not enforced", runtime.not_enforced.iter().cloned());
    facts.add_all("Not installed", runtime.not_installed.iter().cloned());
    facts.add_all("Installed", filled(&runtime.installed));
}

pub(in crate::command) fn with_note(text: &str, note: &str) -> String {
    match (text.is_empty(), note.is_empty()) {
        (true, _) => note.to_owned(),
        (false, true) => text.to_owned(),
        (false, false) => format!("{text} ({note})"),
    }
}

/// People do not read microseconds; the machine-readable forms have them.
pub(in crate::command) fn to_the_second(at: &prost_types::Timestamp) -> String {
    prost_types::Timestamp { nanos: 0, ..*at }.to_string()
}

/// Columns that a line of packages may take.
const LINE: usize = 90;

/// Many short words, several to a line.
fn filled(words: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if text::width(line) + 2 + text::width(word) <= LINE => {
                line.push_str("  ");
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_lines_and_none_is_lost() {
        let words: Vec<String> = (0..60).map(|n| format!("package-{n}==1.{n}")).collect();
        let lines = filled(&words);
        assert!(
            lines.len() < 20 && lines.iter().all(|line| text::width(line) <= LINE),
            "{lines:?}"
        );
        assert_eq!(lines.join("  ").split("  ").collect::<Vec<_>>(), words);
        assert_eq!(filled(&["x".repeat(200)]).len(), 1);
        assert!(filled(&[]).is_empty());
    }
}
