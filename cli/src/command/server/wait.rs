//! Follows a server until it is where it was sent, and says where it stands meanwhile.
//!
//! **Invariants**: a lost connection is taken up again, since the server goes on without us;
//! news older than the answer to our own request are not believed; each milestone is printed
//! once.

use std::time::Duration;

use cnlab_proto::scheduler::v1 as pb;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::{Code, Status, Streaming};

use super::{advice, eta, phase_word, state_word};
use crate::{
    console::Console,
    error::{Exit, Failure, Result},
    session::Session,
    text,
};

/// How often the live line is rewritten.
const REFRESH: Duration = Duration::from_millis(250);
/// How long a gateway may be away before waiting is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(500);

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
    let started = Instant::now();
    let mut wait = Wait {
        session,
        console,
        goal,
        started,
        server,
        trace_id: None,
        told: Told::default(),
    };
    let result = match timeout {
        None => wait.follow().await,
        Some(timeout) => {
            let deadline = sleep_until(started + timeout);
            tokio::select! {
                biased;
                result = wait.follow() => result,
                () = deadline => Err(wait.too_late(timeout)),
            }
        }
    };
    console.settle()?;
    result
}

/// What was printed already.
#[derive(Debug, Default)]
struct Told {
    queued: bool,
    provisioning: bool,
}

struct Wait<'a> {
    session: &'a Session,
    console: &'a mut Console,
    goal: Goal,
    started: Instant,
    server: pb::Server,
    trace_id: Option<String>,
    told: Told,
}

impl Wait<'_> {
    async fn follow(&mut self) -> Result<pb::Server> {
        let mut last_contact = Instant::now();
        loop {
            if let Some(end) = self.judge() {
                return end;
            }
            self.tell()?;
            let request = pb::WatchServerRequest {
                server: self.server.id.clone(),
            };
            let lost = match self
                .session
                .stream(request, async |request| {
                    self.session.servers().watch_server(request).await
                })
                .await
            {
                Ok(answer) => {
                    self.trace_id = answer.trace_id.or(self.trace_id.take());
                    match self.read(answer.message, &mut last_contact).await? {
                        Ended::Goal => return Ok(self.server.clone()),
                        Ended::Lost(status) => status,
                    }
                }
                Err(status) => Some(status),
            };
            if let Some(status) = lost {
                if status.code() == Code::NotFound && self.goal == Goal::Deleted {
                    self.server.set_state(pb::ServerState::Deleted);
                    continue;
                }
                let transient = matches!(
                    status.code(),
                    Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled
                );
                if !transient || last_contact.elapsed() > PATIENCE {
                    return Err(self.session.failure(&status).traced(self.trace_id.take()));
                }
            } else if last_contact.elapsed() > PATIENCE {
                return Err(Failure::new(
                    Exit::Error,
                    "WATCH_ENDED",
                    "the gateway ends every watch at once",
                ));
            }
            self.console.progress(
                "lost",
                &format!(
                    "  connection lost, trying again ({})",
                    text::elapsed(self.started.elapsed())
                ),
            )?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads news until the goal or the end of the stream.
    async fn read(
        &mut self,
        mut news: Streaming<pb::Server>,
        last_contact: &mut Instant,
    ) -> Result<Ended> {
        let mut tick = interval(REFRESH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                next = news.message() => match next {
                    Ok(Some(server)) => {
                        *last_contact = Instant::now();
                        // Our own request made a newer version than these news are of.
                        if server.version < self.server.version {
                            continue;
                        }
                        self.server = server;
                        if let Some(end) = self.judge() {
                            return end.map(|_| Ended::Goal);
                        }
                        self.tell()?;
                    }
                    Ok(None) => return Ok(Ended::Lost(None)),
                    Err(status) => return Ok(Ended::Lost(Some(status))),
                },
                _ = tick.tick(), if self.console.live() => self.show()?,
            }
        }
    }

    /// Whether it is over, and how.
    fn judge(&self) -> Option<Result<pb::Server>> {
        use pb::ServerState as State;
        let done = || Some(Ok(self.server.clone()));
        match (self.goal, self.server.state()) {
            (Goal::Ready, State::Ready)
            | (Goal::Stopped, State::Stopped | State::Failed)
            | (Goal::Deleted, State::Deleted)
            | (Goal::Settled, State::Ready | State::Stopped | State::Failed | State::Deleted) => {
                done()
            }
            (Goal::Ready, State::Failed) => {
                let failure = Failure::of_server(&self.server.name, self.server.failure.as_ref());
                let program = self.session.program();
                let name = &self.server.name;
                Some(Err(failure.traced(self.trace_id.clone()).or_try(|| {
                    format!("`{program} server logs {name}` shows what it wrote")
                })))
            }
            (Goal::Ready, State::Stopping | State::Stopped | State::Deleting | State::Deleted)
            | (Goal::Stopped, State::Deleting | State::Deleted) => Some(Err(self.overtaken())),
            (_, State::Unspecified) => Some(Err(Failure::new(
                Exit::Error,
                "UNKNOWN_STATE",
                format!(
                    "the gateway names a state of server {} that this program does not know",
                    self.server.name
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

    fn overtaken(&self) -> Failure {
        let name = &self.server.name;
        let state = state_word(self.server.state());
        Failure::new(
            Exit::Conflict,
            "SERVER_CHANGED",
            format!("server {name} is {state} now"),
        )
        .caused_by("somebody else changed it meanwhile")
        .traced(self.trace_id.clone())
    }

    fn too_late(&self, timeout: Duration) -> Failure {
        let name = &self.server.name;
        let state = state_word(self.server.state());
        Failure::new(
            Exit::WaitTimeout,
            "WAIT_TIMEOUT",
            format!(
                "server {name} is still {state} after {}; it goes on",
                text::wait(timeout)
            ),
        )
        .try_this(advice(self.session.program().name(), name))
        .traced(self.trace_id.clone())
    }

    /// Prints milestones as they come, and the live line.
    fn tell(&mut self) -> Result<()> {
        if matches!(self.goal, Goal::Ready) {
            match self.server.state() {
                pb::ServerState::Queued if !self.told.queued => {
                    self.told.queued = true;
                    let eta = eta(&self.server).map_or_else(|| "unknown".to_owned(), text::minutes);
                    self.console.milestone(&format!("✓ Queued... ETA {eta}"))?;
                }
                pb::ServerState::Provisioning if !self.told.provisioning => {
                    self.told.provisioning = true;
                    let eta = eta(&self.server).map_or_else(|| "unknown".to_owned(), text::wait);
                    self.console
                        .milestone(&format!("✓ Provisioning... ETA {eta}"))?;
                }
                _ => {}
            }
        }
        self.show()
    }

    fn show(&mut self) -> Result<()> {
        let phase = match phase_word(self.server.phase()) {
            "" => state_word(self.server.state()),
            phase => phase,
        };
        let mut line = format!("  {}", phase_and_detail(phase, &self.server.phase_detail));
        line.push_str(&format!(" ({})", text::elapsed(self.started.elapsed())));
        self.console.progress(phase, &line)
    }
}

/// How a stream of news ended.
enum Ended {
    /// The server is where it was sent.
    Goal,
    /// The stream broke, or ended without a word.
    Lost(Option<Status>),
}

/// Both, unless the detail says the phase already.
fn phase_and_detail(phase: &str, detail: &str) -> String {
    if detail.is_empty() {
        phase.to_owned()
    } else if detail.starts_with(phase) {
        detail.to_owned()
    } else {
        format!("{phase}: {detail}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_twice() {
        assert_eq!(phase_and_detail("starting", ""), "starting");
        assert_eq!(
            phase_and_detail("starting", "starting JupyterLab"),
            "starting JupyterLab"
        );
        assert_eq!(
            phase_and_detail("building", "installing x"),
            "building: installing x"
        );
    }
}
