//! The quickstart as a function: what `cnlab up --demo` does once the stack answers.
//!
//! **Invariant**: it runs the code of `server create` and `server start`; nothing is faked for
//! the demo. A second run finds the server of the first.

use std::cmp::Reverse;

use cnlab_proto::scheduler::v1 as pb;

use crate::{
    command::{
        profiles,
        server::{self, WaitArgs, create, open, start, wait},
    },
    console::Console,
    error::{Exit, Failure, Result},
    session::Session,
};

/// The server of the quickstart.
pub const SERVER: &str = "first-experiment";
/// Its image.
pub const IMAGE: &str = "pytorch:2.4-cuda12.4";
/// Its profile where the machine has it.
pub const PROFILE: &str = "h100-25pct";
/// Its storage.
pub const STORAGE: &str = "50gb";
/// Its storage on a machine with a small disk.
const SMALL_STORAGE: &str = "2gb";
/// The slice of that profile in percent.
const PERCENT: u32 = 25;

/// Creates the quickstart's server, or starts it again, and answers with a link that opens it.
///
/// # Errors
/// When no profile can run here, or the server does not become ready.
pub async fn run(session: &Session, console: &mut Console) -> Result<pb::OpenServerResponse> {
    let server = match server::get(session, SERVER).await {
        Ok(answer) => again(session, console, answer.message).await?,
        Err(failure) if failure.exit() == Exit::NotFound => first(session, console).await?,
        Err(failure) => return Err(failure),
    };
    open::link(session, &server.id).await
}

async fn first(session: &Session, console: &mut Console) -> Result<pb::Server> {
    let profiles = profiles::all(session).await?.profiles;
    let profile = nearest(&profiles).ok_or_else(|| {
        Failure::new(
            Exit::Capacity,
            "NO_PROFILE",
            "no profile can run on this machine",
        )
        .try_this("--gpu simulated runs the demo without a GPU")
    })?;
    if profile.name != PROFILE {
        console.note(&format!(
            "{PROFILE} needs an H100; on this machine's {} the demo takes the nearest profile, {}",
            profile.gpu_type, profile.name
        ))?;
    }
    let args = |storage: &str| create::CreateArgs {
        name: SERVER.to_owned(),
        image: IMAGE.to_owned(),
        profile: profile.name.clone(),
        gpus: None,
        storage: storage.to_owned(),
        with_heavy_packages: false,
        wait: WaitArgs::default(),
    };
    match create::run(session, console, args(STORAGE)).await {
        Err(failure) if failure.facts().reason == "STORAGE_TOO_LARGE" => {
            console.note(&format!(
                "this machine's disk is smaller than {STORAGE}; the demo takes {SMALL_STORAGE}"
            ))?;
            create::run(session, console, args(SMALL_STORAGE)).await
        }
        result => result,
    }
}

async fn again(session: &Session, console: &mut Console, found: pb::Server) -> Result<pb::Server> {
    use pb::ServerState as State;
    console.note(&format!("server {SERVER} is there already, with its files"))?;
    let found = match found.state() {
        State::Stopping => wait::until(session, console, found, wait::Goal::Stopped, None).await?,
        _ => found,
    };
    match found.state() {
        State::Stopped | State::Failed => {
            let args = start::StartArgs {
                server: found.id,
                wait: WaitArgs::default(),
            };
            start::run(session, console, &args).await
        }
        _ => create::finish(session, console, found, WaitArgs::default()).await,
    }
}

/// The profile of the quickstart, or the one that is nearest to it: one that can start at
/// once before one that must wait, then by size of the slice, the smaller of two equally near.
fn nearest(profiles: &[pb::Profile]) -> Option<&pb::Profile> {
    profiles
        .iter()
        .filter(|profile| profile.unavailable_reason.is_empty())
        .min_by_key(|profile| {
            (
                profile.name != PROFILE,
                Reverse(profile.available_now),
                profile.slice_percent.abs_diff(PERCENT),
                profile.slice_percent,
                profile.name.as_str(),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(
        name: &str,
        slice_percent: u32,
        available_now: bool,
        unavailable_reason: &str,
    ) -> pb::Profile {
        pb::Profile {
            name: name.to_owned(),
            slice_percent,
            available_now,
            unavailable_reason: unavailable_reason.to_owned(),
            ..pb::Profile::default()
        }
    }

    #[test]
    fn the_nearest_profile_is_taken() {
        let all = [
            profile("t4-full", 100, true, ""),
            profile("t4-50pct", 50, true, ""),
            profile("t4-20pct", 20, false, ""),
            profile("t4-25pct", 25, true, "no node has a T4"),
        ];
        assert_eq!(nearest(&all).unwrap().name, "t4-50pct");
        let mut with_own = all.to_vec();
        with_own.push(profile(PROFILE, 25, false, ""));
        assert_eq!(nearest(&with_own).unwrap().name, PROFILE);
        assert!(nearest(&[]).is_none());
    }
}
