//! `cnlab profiles list`: the seed's table, with honest waits.

use clap::Subcommand;
use cnlab_proto::{convert, model::v1::IsolationClass, scheduler::v1 as pb};

use crate::{
    command::Setting,
    console::Console,
    error::Result,
    output::{Document, table::Table},
    session::{Effect, Session},
    text,
};

/// What can be done with profiles.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ProfilesCommand {
    /// List what a server can run on, and when it could start.
    #[command(visible_alias = "ls")]
    List,
}

/// Widths of the quickstart's table, so that its output is the same to the letter.
const WIDTHS: [usize; 3] = [18, 8, 6];

/// Runs the command.
///
/// # Errors
/// When nobody is signed in or the gateway does not answer.
pub async fn run(
    setting: Setting<'_>,
    console: &mut Console,
    command: ProfilesCommand,
) -> Result<()> {
    match command {
        ProfilesCommand::List => {
            let session = setting.session(console)?;
            list(&session, console).await
        }
    }
}

/// All profiles.
///
/// # Errors
/// When the gateway does not answer.
pub async fn all(session: &Session) -> Result<pb::ListProfilesResponse> {
    let send = async |request| session.catalog().list_profiles(request).await;
    Ok(session
        .call(Effect::Read, pb::ListProfilesRequest {}, send)
        .await?
        .message)
}

/// Lists profiles.
///
/// # Errors
/// When the gateway does not answer.
pub async fn list(session: &Session, console: &mut Console) -> Result<()> {
    let answer = all(session).await?;
    console.result(
        || table(&answer.profiles),
        || {
            answer
                .profiles
                .iter()
                .map(|profile| profile.name.clone())
                .collect()
        },
        || {
            Document::of(
                "ProfileList",
                "cnlab.scheduler.v1.ListProfilesResponse",
                &answer,
            )
        },
    )?;
    if answer.profiles.is_empty() {
        return console.note("there are no profiles: no machine with a GPU has joined yet");
    }
    if console.format() == crate::output::Format::Table {
        for line in remarks(&answer.profiles) {
            console.note(&line)?;
        }
    }
    Ok(())
}

fn table(profiles: &[pb::Profile]) -> String {
    let mut table = Table::new(&["NAME", "GPU", "SLICE", "AVAILABLE"]).at_least(&WIDTHS);
    for profile in profiles {
        table.row([
            &profile.name,
            &profile.gpu_type,
            &format!("{}%", profile.slice_percent),
            &available(profile),
        ]);
    }
    table.render()
}

/// When a server on this profile could start.
#[must_use]
pub fn available(profile: &pb::Profile) -> String {
    if profile.available_now {
        return "✓ now".to_owned();
    }
    if !profile.unavailable_reason.is_empty() {
        return format!("never: {}", profile.unavailable_reason);
    }
    profile.wait.as_ref().map_or_else(
        || "queue: wait unknown".to_owned(),
        |wait| format!("queue: {}", text::minutes(convert::decode_duration(wait))),
    )
}

/// What the four columns do not say: how slices are kept apart, and which GPUs are simulated.
fn remarks(profiles: &[pb::Profile]) -> Vec<String> {
    let names = |wanted: &dyn Fn(&pb::Profile) -> bool| {
        profiles
            .iter()
            .filter(|profile| wanted(profile))
            .map(|profile| profile.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut lines = Vec::new();
    for (class, words) in [
        (IsolationClass::Hard, "hard isolation (whole GPU or MIG)"),
        (
            IsolationClass::Soft,
            "soft isolation (1% blocks, kept apart by software)",
        ),
    ] {
        let names = names(&|profile| profile.isolation() == class);
        if !names.is_empty() {
            lines.push(format!("{words}: {names}"));
        }
    }
    let simulated = names(&|profile| profile.simulated);
    if !simulated.is_empty() {
        lines.push(format!("simulated, no real GPU behind: {simulated}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_in_words() {
        let profile = |now: bool, seconds: Option<i64>, reason: &str| pb::Profile {
            available_now: now,
            wait: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
            unavailable_reason: reason.to_owned(),
            ..pb::Profile::default()
        };
        for (profile, text) in [
            (profile(true, None, ""), "✓ now"),
            (profile(false, Some(701), ""), "queue: 12 min"),
            (profile(false, Some(0), ""), "queue: 1 min"),
            (profile(false, None, ""), "queue: wait unknown"),
            (
                profile(false, None, "no node has an A100"),
                "never: no node has an A100",
            ),
        ] {
            assert_eq!(available(&profile), text);
        }
    }
}
