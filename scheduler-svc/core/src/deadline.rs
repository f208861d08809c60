//! Whether a run can be expected to end by its deadline, as far as is known when it is asked
//! for.

use std::time::Duration;

use cnlab_model::Timestamp;

/// What is expected of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// Until it gets a slice; `None` when nobody can say.
    pub wait: Option<Duration>,
    /// From then until its command begins.
    pub start: Duration,
    /// How long its command runs, as runs like it did; `None` when too few are known.
    pub length: Option<Duration>,
}

/// Whether a deadline can be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that is known speaks against it.
    Possible,
    /// Even its command is expected to begin only after that.
    BeginsTooLate {
        /// When.
        begins: Timestamp,
    },
    /// It begins before that, and runs like it took longer than what is left.
    EndsTooLate {
        /// When.
        ends: Timestamp,
    },
}

/// Judges a deadline.
///
/// Laws, each a property test: a later deadline is never judged worse; the less is known, the
/// more is possible.
#[must_use]
pub fn judge(outlook: Outlook, deadline: Timestamp, now: Timestamp) -> Verdict {
    let Some(wait) = outlook.wait else {
        return Verdict::Possible;
    };
    let begins = now.plus(wait).plus(outlook.start);
    if begins >= deadline {
        return Verdict::BeginsTooLate { begins };
    }
    match outlook.length {
        Some(length) if begins.plus(length) > deadline => Verdict::EndsTooLate {
            ends: begins.plus(length),
        },
        Some(_) | None => Verdict::Possible,
    }
}

impl Verdict {
    /// Why the deadline cannot be expected to be met, for people; `None` where it can.
    #[must_use]
    pub fn why_not(self, now: Timestamp) -> Option<String> {
        match self {
            Self::Possible => None,
            Self::BeginsTooLate { begins } => Some(format!(
                "it is expected to begin in {}, which is after its deadline",
                about(begins.since(now))
            )),
            Self::EndsTooLate { ends } => Some(format!(
                "as long as runs like it took, it would end in {}, which is after its deadline",
                about(ends.since(now))
            )),
        }
    }
}

/// A span in words, rounded up.
fn about(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..=119 => format!("about {seconds} s"),
        seconds @ 120..=7_199 => format!("about {} min", seconds.div_ceil(60)),
        seconds => format!("about {} h", seconds.div_ceil(3_600)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn what_is_known_decides() {
        let now = Timestamp(1_000_000);
        let outlook = Outlook {
            wait: Some(secs(10)),
            start: secs(5),
            length: Some(secs(60)),
        };
        let at = |n| now.plus(secs(n));
        assert_eq!(judge(outlook, at(75), now), Verdict::Possible);
        assert_eq!(
            judge(outlook, at(74), now),
            Verdict::EndsTooLate { ends: at(75) }
        );
        assert_eq!(
            judge(outlook, at(15), now),
            Verdict::BeginsTooLate { begins: at(15) }
        );
        let unknown = Outlook {
            length: None,
            ..outlook
        };
        assert_eq!(judge(unknown, at(16), now), Verdict::Possible);
        let silent = Outlook {
            wait: None,
            ..outlook
        };
        assert_eq!(judge(silent, at(1), now), Verdict::Possible);
    }

    #[test]
    fn it_is_said_in_words() {
        let now = Timestamp(5);
        let begins = |n| Verdict::BeginsTooLate {
            begins: now.plus(secs(n)),
        };
        let why = |n| begins(n).why_not(now).unwrap();
        assert_eq!(
            why(119),
            "it is expected to begin in about 119 s, which is after its deadline"
        );
        assert!(why(121).contains("about 3 min"));
        assert!(why(7_201).contains("about 3 h"));
        let ends = now.plus(secs(60));
        let why = Verdict::EndsTooLate { ends }.why_not(now).unwrap();
        assert!(why.contains("would end in about 60 s"), "{why}");
        assert_eq!(Verdict::Possible.why_not(now), None);
    }

    fn badness(verdict: Verdict) -> u8 {
        match verdict {
            Verdict::Possible => 0,
            Verdict::EndsTooLate { .. } => 1,
            Verdict::BeginsTooLate { .. } => 2,
        }
    }

    proptest! {
        #[test]
        fn more_time_and_less_knowledge_are_never_worse(
            wait in proptest::option::of(0_u64..100),
            start in 0_u64..100,
            length in proptest::option::of(0_u64..100),
            deadline in 0_u64..400,
            more in 0_u64..100,
        ) {
            let outlook = Outlook {
                wait: wait.map(secs),
                start: secs(start),
                length: length.map(secs),
            };
            let now = Timestamp(0);
            let at = |n| now.plus(secs(n));
            let verdict = badness(judge(outlook, at(deadline), now));
            prop_assert!(badness(judge(outlook, at(deadline + more), now)) <= verdict);
            let knows_less = Outlook { length: None, ..outlook };
            prop_assert!(badness(judge(knows_less, at(deadline), now)) <= verdict);
        }
    }
}
