//! Follows a run until it is where it is waited for, and says where it stands meanwhile.
//!
//! **Invariant**: each milestone is printed once per attempt.

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

/// Where a run is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Nothing of it runs, and it does not begin anew; what leads there is told.
    Over,
    /// The same, and nothing is told.
    Ended,
    /// It is gone.
    Deleted,
    /// Its command began, in this attempt or a later one; or it is over.
    Begun(u32),
}

/// Follows `run` until `goal`, at most for `timeout`.
///
/// # Errors
/// When it ends elsewhere, the time is over, or the gateway stays away.
pub async fn until(
    session: &Session,
    console: &mut Console,
    run: pb::Run,
    goal: Goal,
    timeout: Option<Duration>,
) -> Result<pb::Run> {
    let wait = Wait {
        goal,
        told: Told::default(),
    };
    follow(session, console, wait, run, timeout).await
}

/// What was printed already, of which attempt.
#[derive(Debug, Default)]
struct Told {
    attempt: u32,
    queued: bool,
    provisioning: bool,
    running: bool,
}

struct Wait {
    goal: Goal,
    told: Told,
}

/// Whether nothing more happens to it by itself.
pub(super) const fn is_over(state: pb::RunState) -> bool {
    match state {
        pb::RunState::Succeeded
        | pb::RunState::Failed
        | pb::RunState::Cancelled
        | pb::RunState::TimedOut
        | pb::RunState::Deleted => true,
        pb::RunState::Unspecified
        | pb::RunState::Queued
        | pb::RunState::Provisioning
        | pb::RunState::Running
        | pb::RunState::Cancelling
        | pb::RunState::Deleting => false,
    }
}

impl Subject for Wait {
    type News = pb::Run;

    fn version(&self, run: &pb::Run) -> u64 {
        run.version
    }

    async fn watch(
        &self,
        session: &Session,
        run: &pb::Run,
    ) -> Result<Answer<Streaming<pb::Run>>, Status> {
        let request = pb::WatchRunRequest {
            run: run.id.clone(),
        };
        let send = async |request| session.runs().watch_run(request).await;
        session.stream(request, send).await
    }

    fn judge(&self, _: &Session, run: &pb::Run) -> Option<Result<pb::Run>> {
        let reached = match self.goal {
            Goal::Over | Goal::Ended => is_over(run.state()),
            Goal::Deleted => run.state() == pb::RunState::Deleted,
            Goal::Begun(attempt) => {
                let begun = matches!(
                    run.state(),
                    pb::RunState::Running | pb::RunState::Cancelling
                );
                is_over(run.state()) || (begun && run.attempt >= attempt)
            }
        };
        if reached {
            return Some(Ok(run.clone()));
        }
        (run.state() == pb::RunState::Unspecified).then(|| {
            Err(Failure::new(
                Exit::Error,
                "UNKNOWN_STATE",
                format!(
                    "the gateway names a state of run {} that this program does not know",
                    run.name
                ),
            )
            .try_this("update this program"))
        })
    }

    fn is_gone(&self, run: &mut pb::Run) -> bool {
        let expected = self.goal == Goal::Deleted;
        if expected {
            run.set_state(pb::RunState::Deleted);
        }
        expected
    }

    fn tell(&mut self, console: &mut Console, run: &pb::Run) -> Result<()> {
        if self.goal != Goal::Over {
            return Ok(());
        }
        if self.told.attempt < run.attempt {
            if self.told.attempt > 0 {
                let why = text::one_line(&run.requeued_because);
                console.milestone(&format!("✗ Begins anew: {why}"))?;
            }
            self.told = Told {
                attempt: run.attempt,
                ..Told::default()
            };
        }
        match run.state() {
            pb::RunState::Queued if !self.told.queued => {
                self.told.queued = true;
                let eta = eta(run).map_or_else(|| "unknown".to_owned(), text::minutes);
                console.milestone(&format!("✓ Queued... ETA {eta}"))
            }
            pb::RunState::Provisioning if !self.told.provisioning => {
                self.told.provisioning = true;
                let eta = eta(run).map_or_else(|| "unknown".to_owned(), text::wait);
                console.milestone(&format!("✓ Provisioning... ETA {eta}"))
            }
            pb::RunState::Running if !self.told.running => {
                self.told.running = true;
                console.milestone("✓ Running")
            }
            _ => Ok(()),
        }
    }

    fn phase(&self, run: &pb::Run) -> (&'static str, String) {
        let phase = match phase_word(run.phase()) {
            "" => state_word(run.state()),
            phase => phase,
        };
        (phase, phase_and_detail(phase, &run.phase_detail))
    }

    fn too_late(&self, session: &Session, run: &pb::Run, timeout: Duration) -> Failure {
        let name = &run.name;
        let state = state_word(run.state());
        Failure::new(
            Exit::WaitTimeout,
            "WAIT_TIMEOUT",
            format!(
                "run {name} is still {state} after {}; it goes on",
                text::wait(timeout)
            ),
        )
        .try_this(advice(session.program().name(), name))
    }
}

/// Says how a run ended that was waited for.
///
/// # Errors
/// When it did not succeed; the exit code is that of its command.
pub fn verdict(session: &Session, console: &mut Console, run: &pb::Run) -> Result<()> {
    let name = &run.name;
    let program = session.program();
    let exit = match (run.state(), run.exit_code, run.signal) {
        (pb::RunState::Succeeded, ..) => {
            return console.milestone(&format!("✓ Succeeded: {name}"));
        }
        (pb::RunState::Cancelled, ..) => {
            return Err(Failure::new(
                Exit::Conflict,
                "RUN_CANCELLED",
                format!("run {name} was cancelled"),
            ));
        }
        (pb::RunState::TimedOut, ..) => Exit::WaitTimeout,
        (_, Some(code), _) => u8::try_from(code)
            .ok()
            .filter(|code| *code > 0)
            .map_or(Exit::Error, Exit::Command),
        (_, None, Some(signal)) => u8::try_from(signal)
            .ok()
            .and_then(|signal| signal.checked_add(128))
            .map_or(Exit::Error, Exit::Command),
        (_, None, None) => Exit::Error,
    };
    let failure = Failure::of_run(name, run.failure.as_ref(), exit);
    Err(failure.or_try(|| format!("`{program} run logs {name}` shows what it wrote")))
}
