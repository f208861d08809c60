//! `cnlab server open`: a single-use link, opened on the desktop or printed.
//!
//! **Invariant**: with `--print`, stdout is the link and nothing else. The link signs its
//! first user in, so it is never shown where the desktop opened it.

use std::process::Stdio;

use clap::Args;
use cnlab_proto::scheduler::v1 as pb;

use super::{get, state_word};
use crate::{
    console::Console,
    environment::Program,
    error::{Exit, Failure, Result},
    names,
    output::{Document, Format},
    session::{Effect, Session},
    text,
};

/// What to open.
#[derive(Debug, Clone, Default, Args)]
pub struct OpenArgs {
    /// Name or id of the server.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Print the single-use link, and nothing else, instead of opening it.
    #[arg(long)]
    pub print: bool,
}

/// Opens the server's page where there is a `display`, else prints the link.
///
/// # Errors
/// When the server does not run or the gateway does not answer.
pub async fn run(
    session: &Session,
    console: &mut Console,
    display: bool,
    args: &OpenArgs,
) -> Result<()> {
    let server = get(session, &args.server).await?.message;
    if let Some(refusal) = refusal(session.program(), &server) {
        return Err(refusal);
    }
    let answer = link(session, &server.id).await?;
    if console.format() == Format::Table && !args.print && display {
        match open_on_desktop(&answer.link).await {
            Ok(()) => {
                console.milestone(&format!("✓ Opened: {}", text::one_line(&answer.url)))?;
                return Ok(());
            }
            Err(why) => console.note(&format!(
                "the desktop could not open it ({why}); the link is"
            ))?,
        }
    }
    console.result(
        || answer.link.clone(),
        || vec![answer.link.clone()],
        || {
            Document::of(
                "ServerLink",
                "cnlab.scheduler.v1.OpenServerResponse",
                &answer,
            )
        },
    )?;
    if console.format() == Format::Table && !args.print {
        console.note("  it signs one browser in, once, within a minute")?;
    }
    Ok(())
}

/// A fresh link, checked to be one.
///
/// # Errors
/// When the gateway refuses, or answers with something else than a web address.
pub async fn link(session: &Session, server: &str) -> Result<pb::OpenServerResponse> {
    let request = pb::OpenServerRequest {
        server: names::server(server, session.project())?,
    };
    let send = async |request| session.servers().open_server(request).await;
    let answer = session.call(Effect::Mutation, request, send).await?;
    if is_web_address(&answer.message.link) {
        Ok(answer.message)
    } else {
        Err(Failure::new(
            Exit::Error,
            "LINK_MALFORMED",
            "the gateway sent no web address",
        )
        .traced(answer.trace_id))
    }
}

fn refusal(program: Program, server: &pb::Server) -> Option<Failure> {
    use pb::ServerState as State;
    let name = &server.name;
    let state = state_word(server.state());
    let advice = match server.state() {
        State::Ready => return None,
        State::Queued | State::Provisioning => {
            format!("`{program} server show --watch {name}`, then again")
        }
        State::Stopping | State::Stopped | State::Failed => {
            format!("`{program} server start {name}`")
        }
        State::Unspecified | State::Deleting | State::Deleted => format!("`{program} server list`"),
    };
    Some(
        Failure::new(
            Exit::Conflict,
            "SERVER_NOT_READY",
            format!("server {name} is {state}"),
        )
        .try_this(advice),
    )
}

/// Only what every browser and opener takes as an address, and no shell or option can mistake.
fn is_web_address(link: &str) -> bool {
    let rest = link
        .strip_prefix("http://")
        .or_else(|| link.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"\"'`<>\\^{|}".contains(&byte))
    })
}

/// Hands the link to the desktop. It shows in the list of processes for a moment; it works
/// once and for a minute, and the browser gets it first.
async fn open_on_desktop(link: &str) -> Result<(), String> {
    let (opener, before): (&str, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(windows) {
        ("rundll32", &["url.dll,FileProtocolHandler"])
    } else {
        ("xdg-open", &[])
    };
    let ended = tokio::process::Command::new(opener)
        .args(before)
        .arg(link)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await
        .map_err(|error| format!("{opener}: {error}"))?;
    if ended.success() {
        Ok(())
    } else {
        Err(format!("{opener} ended with {ended}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_addresses_are_opened() {
        assert!(is_web_address(
            "http://srv-01.localhost:8080/open?code=abc#x"
        ));
        assert!(is_web_address("https://nb.example.org/"));
        for wrong in [
            "",
            "file:///etc/passwd",
            "--help",
            "http://",
            "http://a b",
            "http://a\u{1b}",
            "javascript:1",
            "http://a/\"&calc",
        ] {
            assert!(!is_web_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_server_that_does_not_run_is_not_opened() {
        let mut server = pb::Server {
            name: "one".to_owned(),
            ..pb::Server::default()
        };
        server.set_state(pb::ServerState::Stopped);
        let failure = refusal(Program::Cnlab, &server).unwrap();
        assert_eq!(
            failure.facts().try_this.as_deref(),
            Some("`cnlab server start one`")
        );
        assert_eq!(failure.exit(), Exit::Conflict);
        server.set_state(pb::ServerState::Ready);
        assert!(refusal(Program::Cnlab, &server).is_none());
    }
}
