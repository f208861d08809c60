//! Follows a server until it is where it was sent, and says where it stands meanwhile.
//!
//! **Invariant**: each milestone is printed once.

use std::time::Duration;

use cnlab_proto::scheduler::v1 as pb;
use tonic::{Status, Streaming};

use super::{advice, eta, phase_word, state_word};
use crate::{
    command::follow::{Subject, follow, phase_and_detail},
    console::Console,
    error::{Exit, Failure, Result},
    session::{Answer, Session},
    text,
};

/// Where a server is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The page answers.
    Ready,
    /// No process is left and the slice is free.
    Stopped,
    /// It is gone.
    Deleted,
    /// Whatever it is in, nothing more happens by itself.
    Settled,
}

/// Follows `server` until `goal`, at most for `timeout`.
///
/// # Errors
/// When it ends elsewhere, the time is over, or the gateway stays away.
pub async fn until(
    session: &Session,
    console: &mut Console,
    server: pb::Server,
    goal: Goal,
    timeout: Option<Duration>,
) -> Result<pb::Server> {
    let wait = Wait {
        goal,
        told: Told::default(),
    };
    follow(session, console, wait, server, timeout).await
}

/// What was printed already.
#[derive(Debug, Default)]
struct Told {
    queued: bool,
    provisioning: bool,
}

struct Wait {
    goal: Goal,
    told: Told,
}

impl Subject for Wait {
    type News = pb::Server;

    fn version(&self, server: &pb::Server) -> u64 {
        server.version
    }

    async fn watch(
        &self,
        session: &Session,
        server: &pb::Server,
    ) -> Result<Answer<Streaming<pb::Server>>, Status> {
        let request = pb::WatchServerRequest {
            server: server.id.clone(),
        };
        let send = async |request| session.servers().watch_server(request).await;
        session.stream(request, send).await
    }

    fn judge(&self, session: &Session, server: &pb::Server) -> Option<Result<pb::Server>> {
        use pb::ServerState as State;
        let done = || Some(Ok(server.clone()));
        match (self.goal, server.state()) {
            (Goal::Ready, State::Ready)
            | (Goal::Stopped, State::Stopped | State::Failed)
            | (Goal::Deleted, State::Deleted)
            | (Goal::Settled, State::Ready | State::Stopped | State::Failed | State::Deleted) => {
                done()
            }
            (Goal::Ready, State::Failed) => {
                let failure = Failure::of_server(&server.name, server.failure.as_ref());
                let program = session.program();
                let name = &server.name;
                Some(Err(failure.or_try(|| {
                    format!("`{program} server logs {name}` shows what it wrote")
                })))
            }
            (Goal::Ready, State::Stopping | State::Stopped | State::Deleting | State::Deleted)
            | (Goal::Stopped, State::Deleting | State::Deleted) => Some(Err(overtaken(server))),
            (_, State::Unspecified) => Some(Err(Failure::new(
                Exit::Error,
                "UNKNOWN_STATE",
                format!(
                    "the gateway names a state of server {} that this program does not know",
                    server.name
                ),
            )
            .try_this("update this program"))),
            (Goal::Ready | Goal::Settled, State::Queued | State::Provisioning)
            | (
                Goal::Stopped,
                State::Queued | State::Provisioning | State::Ready | State::Stopping,
            )
            | (Goal::Settled, State::Stopping | State::Deleting)
            | (
                Goal::Deleted,
                State::Queued
                | State::Provisioning
                | State::Ready
                | State::Stopping
                | State::Stopped
                | State::Failed
                | State::Deleting,
            ) => None,
        }
    }

    fn is_gone(&self, server: &mut pb::Server) -> bool {
        let expected = self.goal == Goal::Deleted;
        if expected {
            server.set_state(pb::ServerState::Deleted);
        }
        expected
    }

    fn tell(&mut self, console: &mut Console, server: &pb::Server) -> Result<()> {
        if self.goal != Goal::Ready {
            return Ok(());
        }
        match server.state() {
            pb::ServerState::Queued if !self.told.queued => {
                self.told.queued = true;
                let eta = eta(server).map_or_else(|| "unknown".to_owned(), text::minutes);
                console.milestone(&format!("✓ Queued... ETA {eta}"))
            }
            pb::ServerState::Provisioning if !self.told.provisioning => {
                self.told.provisioning = true;
                let eta = eta(server).map_or_else(|| "unknown".to_owned(), text::wait);
                console.milestone(&format!("✓ Provisioning... ETA {eta}"))
            }
            _ => Ok(()),
        }
    }

    fn phase(&self, server: &pb::Server) -> (&'static str, String) {
        let phase = match phase_word(server.phase()) {
            "" => state_word(server.state()),
            phase => phase,
        };
        (phase, phase_and_detail(phase, &server.phase_detail))
    }

    fn too_late(&self, session: &Session, server: &pb::Server, timeout: Duration) -> Failure {
        let name = &server.name;
        let state = state_word(server.state());
        Failure::new(
            Exit::WaitTimeout,
            "WAIT_TIMEOUT",
            format!(
                "server {name} is still {state} after {}; it goes on",
                text::wait(timeout)
            ),
        )
        .try_this(advice(session.program().name(), name))
    }
}

fn overtaken(server: &pb::Server) -> Failure {
    let name = &server.name;
    let state = state_word(server.state());
    Failure::new(
        Exit::Conflict,
        "SERVER_CHANGED",
        format!("server {name} is {state} now"),
    )
    .caused_by(match &server.failure {
        // A drain of its node says so.
        Some(failure) => failure.message.as_str(),
        None => "somebody else changed it meanwhile",
    })
}
