//! Why a workload's process ended, as far as its end and its log tell.
//!
//! **Invariant**: whatever a workload wrote into its log, reading its last words ends soon and
//! needs no more than a few kilobytes.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use cnlab_service::Span;
use node_core::Event;
use node_sandbox::{Boottime, Deadline};

use super::life::{EndCause, Life};
use crate::{
    failure::Failure,
    ports::{Ended, Exit},
};

/// Bytes at the end of the log in which the cause of a failure is looked for.
const LAST_WORDS: u64 = 4_096;

/// The failure of a server whose process ended by itself.
pub(super) async fn died(life: &Life, ended: &Ended) -> Failure {
    let words = last_words(life).await;
    let cause = if words.is_empty() {
        ended.how.clone()
    } else {
        format!("{}; its last words: {words}", ended.how)
    };
    if ended.out_of_memory {
        return Failure::new("OUT_OF_MEMORY", "the server used all of its memory")
            .caused_by(cause)
            .try_this("start it again on a profile with more memory");
    }
    Failure::new("NOTEBOOK_ENDED", "the server's process ended by itself")
        .caused_by(cause)
        .try_this("look at the server's log, then start it again; its files are kept")
}

/// How the life of a run ends.
#[derive(Debug)]
pub(super) struct CommandEnd {
    pub(super) event: Event,
    pub(super) failure: Option<Failure>,
    pub(super) exit: Option<Exit>,
    pub(super) cause: Option<EndCause>,
}

/// The end of a run whose grant could not be renewed.
pub(super) fn grant_expired() -> CommandEnd {
    let failure = Failure::new("GRANT_EXPIRED", "the grant of the run expired")
        .caused_by("the node could not reach the scheduler to renew it, or did not run")
        .try_this("submit it again with `cnlab run submit`");
    CommandEnd {
        event: Event::Failed,
        failure: Some(failure),
        exit: None,
        cause: Some(EndCause::GrantExpired),
    }
}

/// The end of a run whose longest time was over.
fn time_over(longest: Span) -> CommandEnd {
    let failure = Failure::new(
        "MAX_RUNTIME_REACHED",
        format!("the command was ended after its longest time of {longest}"),
    )
    .try_this("submit it again with a longer --max-runtime");
    CommandEnd {
        event: Event::Failed,
        failure: Some(failure),
        exit: None,
        cause: Some(EndCause::MaxRuntime),
    }
}

/// The end of a command that ended by itself, or for a deadline.
pub(super) async fn command_ended(life: &Life, ended: &Ended) -> CommandEnd {
    match ended.deadline {
        Some(Deadline::Lease) => return grant_expired(),
        Some(Deadline::Runtime) => {
            let longest = life.command().and_then(|command| command.max_runtime);
            return time_over(Span(longest.unwrap_or_default()));
        }
        None => {}
    }
    // A supervisor that was killed because it did not end it in time leaves no word.
    let passed = life
        .lease()
        .is_some_and(|lease| lease.kill_at <= Boottime::now());
    if ended.exit.is_none() && passed {
        return grant_expired();
    }
    let of = |failure| CommandEnd {
        event: Event::Failed,
        failure: Some(failure),
        exit: ended.exit,
        cause: None,
    };
    let words = async || {
        let words = last_words(life).await;
        if words.is_empty() {
            words
        } else {
            format!("its last words: {words}")
        }
    };
    match ended.exit {
        Some(Exit::Code(0)) => CommandEnd {
            event: Event::Succeeded,
            failure: None,
            exit: ended.exit,
            cause: None,
        },
        _ if ended.out_of_memory => of(Failure::new(
            "OUT_OF_MEMORY",
            "the run used all of its memory",
        )
        .caused_by(ended.how.clone())
        .try_this("submit it again on a profile with more memory")),
        Some(_) => of(Failure::new(
            "COMMAND_FAILED",
            format!("the command ended with {}", ended.how),
        )
        .caused_by(words().await)
        .try_this("look at what it wrote with `cnlab run logs`")),
        None => CommandEnd {
            cause: Some(EndCause::Lost),
            ..of(
                Failure::new("PROCESS_ENDED", "nobody knows how the command ended")
                    .caused_by(ended.how.clone())
                    .try_this("submit it again with `cnlab run submit`"),
            )
        },
    }
}

/// The last line of the log, as far as [`LAST_WORDS`] reaches.
pub(super) async fn last_words(life: &Life) -> String {
    let log = life.folder.join("log");
    // A log that cannot be read leaves a failure without its last words.
    tokio::task::spawn_blocking(move || last_line(&log, LAST_WORDS))
        .await
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default()
}

/// The last line that is not empty among the last bytes of a file, without the spaces around
/// it; empty when there is none. Blocks, but reads no more than those bytes.
///
/// # Errors
/// When the file cannot be read.
fn last_line(path: &Path, within: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(within)))?;
    let mut bytes = Vec::new();
    file.take(within).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text
        .trim()
        .lines()
        .next_back()
        .unwrap_or("")
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use cnlab_model::{Timestamp, id::ServerId};
    use node_core::{Holder, WorkloadId};

    use super::*;
    use crate::app::life::Record;

    #[tokio::test]
    async fn last_words_have_an_end_whatever_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let holder = Holder {
            workload: WorkloadId::Server(ServerId::from_ulid(cnlab_model::id::Ulid(1))),
            fence: 1,
        };
        let record = Record::new(holder, None, None, Timestamp(1));
        let life = Life::new(folder.path().to_owned(), record, String::new());
        assert_eq!(last_words(&life).await, "");
        // More than any channel holds, and no line break in it.
        let mut log = b"first\n".to_vec();
        log.resize(3 << 20, b'x');
        std::fs::write(folder.path().join("log"), &log).unwrap();
        let ended = Ended {
            exit: Some(Exit::Code(1)),
            how: "exit code 1".to_owned(),
            deadline: None,
            out_of_memory: false,
        };
        let failure = tokio::time::timeout(cnlab_testkit::GENEROUS, died(&life, &ended))
            .await
            .expect("a long line has an end");
        let words = "x".repeat(usize::try_from(LAST_WORDS).unwrap());
        assert_eq!(
            failure.cause,
            format!("exit code 1; its last words: {words}")
        );
        std::fs::write(folder.path().join("log"), "one\ntwo \n\n").unwrap();
        assert_eq!(last_words(&life).await, "two");
    }
}
