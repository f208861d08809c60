//! Follows something that goes on by itself until it is where it was sent, and says where it
//! stands meanwhile.
//!
//! **Invariants**: a lost connection is taken up again, since the work goes on without us; news
//! older than the answer to our own request are not believed.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::{Code, Status, Streaming};

use crate::{
    console::Console,
    error::{Exit, Failure, Result},
    session::{Answer, Session},
    text,
};

/// How often the live line is rewritten.
const REFRESH: Duration = Duration::from_millis(250);
/// How long a gateway may be away before waiting is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(500);

/// What is followed, and until when.
pub trait Subject {
    /// One state of it.
    type News: Clone;

    /// Grows with every change.
    fn version(&self, news: &Self::News) -> u64;

    /// Opens a stream of its states.
    fn watch(
        &self,
        session: &Session,
        news: &Self::News,
    ) -> impl Future<Output = Result<Answer<Streaming<Self::News>>, Status>>;

    /// Whether it is over, and how.
    fn judge(&self, session: &Session, news: &Self::News) -> Option<Result<Self::News>>;

    /// Takes in that it is not there any more. Answers whether that was to be expected.
    fn is_gone(&self, news: &mut Self::News) -> bool;

    /// Prints milestones, each once.
    ///
    /// # Errors
    /// When nothing can be written.
    fn tell(&mut self, console: &mut Console, news: &Self::News) -> Result<()>;

    /// The present phase, and the same with its detail.
    fn phase(&self, news: &Self::News) -> (&'static str, String);

    /// What to say when the time is over.
    fn too_late(&self, session: &Session, news: &Self::News, timeout: Duration) -> Failure;
}

/// Follows from this state on, at most for `timeout`.
///
/// # Errors
/// When it ends elsewhere, the time is over, or the gateway stays away.
pub async fn follow<S: Subject>(
    session: &Session,
    console: &mut Console,
    subject: S,
    first: S::News,
    timeout: Option<Duration>,
) -> Result<S::News> {
    let started = Instant::now();
    let mut follower = Follower {
        session,
        console,
        subject,
        started,
        news: first,
        trace_id: None,
    };
    let result = match timeout {
        // On the heap: it is large, and commands contain it several times.
        None => Box::pin(follower.follow()).await,
        Some(timeout) => {
            let deadline = sleep_until(started + timeout);
            tokio::select! {
                biased;
                result = Box::pin(follower.follow()) => result,
                () = deadline => Err(follower.too_late(timeout)),
            }
        }
    };
    console.settle()?;
    result
}

struct Follower<'a, S: Subject> {
    session: &'a Session,
    console: &'a mut Console,
    subject: S,
    started: Instant,
    news: S::News,
    trace_id: Option<String>,
}

impl<S: Subject> Follower<'_, S> {
    async fn follow(&mut self) -> Result<S::News> {
        let mut last_contact = Instant::now();
        loop {
            if let Some(end) = self.judge() {
                return end;
            }
            self.tell()?;
            let lost = match self.subject.watch(self.session, &self.news).await {
                Ok(answer) => {
                    self.trace_id = answer.trace_id.or(self.trace_id.take());
                    match self.read(answer.message, &mut last_contact).await? {
                        Ended::Goal => return Ok(self.news.clone()),
                        Ended::Lost(status) => status,
                    }
                }
                Err(status) => Some(status),
            };
            if let Some(status) = lost {
                if status.code() == Code::NotFound && self.subject.is_gone(&mut self.news) {
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
        mut stream: Streaming<S::News>,
        last_contact: &mut Instant,
    ) -> Result<Ended> {
        let mut tick = interval(REFRESH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                next = stream.message() => match next {
                    Ok(Some(news)) => {
                        *last_contact = Instant::now();
                        // Our own request made a newer version than these news are of.
                        if self.subject.version(&news) < self.subject.version(&self.news) {
                            continue;
                        }
                        self.news = news;
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

    fn judge(&self) -> Option<Result<S::News>> {
        let end = self.subject.judge(self.session, &self.news)?;
        Some(end.map_err(|failure| failure.traced(self.trace_id.clone())))
    }

    fn too_late(&self, timeout: Duration) -> Failure {
        let late = self.subject.too_late(self.session, &self.news, timeout);
        late.traced(self.trace_id.clone())
    }

    fn tell(&mut self) -> Result<()> {
        self.subject.tell(self.console, &self.news)?;
        self.show()
    }

    fn show(&mut self) -> Result<()> {
        let (phase, what) = self.subject.phase(&self.news);
        let line = format!("  {what} ({})", text::elapsed(self.started.elapsed()));
        self.console.progress(phase, &line)
    }
}

/// How a stream of news ended.
enum Ended {
    /// It is where it was sent.
    Goal,
    /// The stream broke, or ended without a word.
    Lost(Option<Status>),
}

/// Runs something until it ends or Ctrl-C is pressed.
///
/// # Errors
/// What the work fails with, or what Ctrl-C means for it.
pub async fn interruptible<T>(
    work: impl Future<Output = Result<T>>,
    interrupted: impl FnOnce() -> Failure,
) -> Result<T> {
    tokio::select! {
        result = work => result,
        signal = tokio::signal::ctrl_c() => match signal {
            Ok(()) => Err(interrupted()),
            Err(error) => Err(Failure::local("Ctrl-C cannot be noticed", &error)),
        },
    }
}

/// Both, unless the detail says the phase already.
#[must_use]
pub fn phase_and_detail(phase: &str, detail: &str) -> String {
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
