//! Decides when a workload has to end because its time is over; knows no clock.
//!
//! ```text
//!  renewed_at ──── renewals replace it ────▶ ask_at ──── grace ────▶ kill_at ── reserve ──▶ gone_by
//!                                            SIGTERM                 SIGKILL                nothing is left
//! ```
//!
//! **Invariants**: a lease that was let pass is over, whatever arrives afterwards; a renewal that
//! arrives out of order never takes the place of a newer one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::boottime::Boottime;

/// How long a workload may run if nobody renews this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// What it counts from; the newest one holds, also if it is shorter.
    pub renewed_at: Boottime,
    /// When the command is asked to end.
    pub ask_at: Boottime,
    /// When everything is killed.
    pub kill_at: Boottime,
    /// By when nothing may be left.
    pub gone_by: Boottime,
}

impl Lease {
    /// Whether the moments are in their order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.renewed_at <= self.ask_at
            && self.ask_at <= self.kill_at
            && self.kill_at <= self.gone_by
    }

    /// When the kernel kills a supervisor that has not ended everything: half of the reserve is
    /// left for what dies with it.
    pub(crate) fn last_resort(&self) -> Boottime {
        self.kill_at.plus(self.gone_by.since(self.kill_at) / 2)
    }
}

/// The longest time that a command may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeLimit {
    /// After which it is asked to end.
    pub after: Duration,
    /// After which, from then on, everything is killed.
    pub grace: Duration,
}

/// What a workload was ended for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// Its lease was not renewed in time.
    Lease,
    /// Its longest time was over.
    Runtime,
}

/// What has to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ask,
    Kill,
}

#[derive(Debug, Clone, Copy)]
struct RuntimeEnd {
    ask_at: Boottime,
    kill_at: Boottime,
}

/// The deadlines of one workload.
#[derive(Debug)]
pub(crate) struct Deadlines {
    lease: Option<Lease>,
    runtime: Option<RuntimeEnd>,
    /// The one that was passed first.
    passed: Option<Deadline>,
    killed: bool,
}

impl Deadlines {
    pub(crate) fn new(
        lease: Option<Lease>,
        limit: Option<RuntimeLimit>,
        started: Boottime,
    ) -> Self {
        Self {
            lease,
            runtime: limit.map(|limit| {
                let ask_at = started.plus(limit.after);
                RuntimeEnd {
                    ask_at,
                    kill_at: ask_at.plus(limit.grace),
                }
            }),
            passed: None,
            killed: false,
        }
    }

    /// Takes a renewal over; whether it changed anything.
    pub(crate) fn renew(&mut self, renewal: Lease) -> bool {
        match &mut self.lease {
            Some(lease)
                if self.passed != Some(Deadline::Lease)
                    && renewal.is_ordered()
                    && renewal.renewed_at > lease.renewed_at =>
            {
                *lease = renewal;
                true
            }
            _ => false,
        }
    }

    /// What has to be done at this moment. Each thing is said once.
    pub(crate) fn due(&mut self, now: Boottime) -> Due {
        let over = |at: Option<Boottime>| at.is_some_and(|at| at <= now);
        let before = self.passed;
        if over(self.lease.map(|lease| lease.ask_at)) {
            self.passed.get_or_insert(Deadline::Lease);
        }
        if over(self.runtime.map(|runtime| runtime.ask_at)) {
            self.passed.get_or_insert(Deadline::Runtime);
        }
        if !self.killed && over(self.kill_at()) {
            self.killed = true;
            return Due::Kill;
        }
        if before == self.passed {
            Due::Nothing
        } else {
            Due::Ask
        }
    }

    fn kill_at(&self) -> Option<Boottime> {
        let lease = self.lease.map(|lease| lease.kill_at);
        let runtime = self.runtime.map(|runtime| runtime.kill_at);
        lease.into_iter().chain(runtime).min()
    }

    /// When to look again at the latest.
    pub(crate) fn next(&self) -> Option<Boottime> {
        if self.killed {
            return None;
        }
        if self.passed.is_some() {
            return self.kill_at();
        }
        let lease = self.lease.map(|lease| lease.ask_at);
        let runtime = self.runtime.map(|runtime| runtime.ask_at);
        lease.into_iter().chain(runtime).min()
    }

    /// When the kernel kills a supervisor that does nothing.
    pub(crate) fn last_resort(&self) -> Option<Boottime> {
        self.lease.map(|lease| lease.last_resort())
    }

    /// What the workload was ended for, if for one of these.
    pub(crate) fn passed(&self) -> Option<Deadline> {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Boottime {
        Boottime::after_boot(Duration::from_secs(seconds))
    }

    /// As of a lease of 30 s.
    fn lease(renewed_at: u64) -> Lease {
        Lease {
            renewed_at: at(renewed_at),
            ask_at: at(renewed_at + 17),
            kill_at: at(renewed_at + 27),
            gone_by: at(renewed_at + 30),
        }
    }

    fn limit(after: u64) -> RuntimeLimit {
        RuntimeLimit {
            after: Duration::from_secs(after),
            grace: Duration::from_secs(10),
        }
    }

    #[test]
    fn a_lease_that_nobody_renews_asks_then_kills() {
        let mut deadlines = Deadlines::new(Some(lease(100)), None, at(100));
        assert_eq!(deadlines.next(), Some(at(117)));
        assert_eq!(deadlines.due(at(116)), Due::Nothing);
        assert_eq!(deadlines.passed(), None);
        assert_eq!(deadlines.due(at(117)), Due::Ask);
        assert_eq!(deadlines.due(at(118)), Due::Nothing);
        assert_eq!(deadlines.next(), Some(at(127)));
        assert_eq!(deadlines.due(at(127)), Due::Kill);
        assert_eq!(
            (deadlines.due(at(500)), deadlines.next()),
            (Due::Nothing, None)
        );
        assert_eq!(deadlines.passed(), Some(Deadline::Lease));
    }

    #[test]
    fn the_kernel_kills_the_supervisor_before_the_lease_is_over() {
        let deadlines = Deadlines::new(Some(lease(100)), Some(limit(5)), at(100));
        let last = deadlines.last_resort().unwrap();
        assert!(lease(100).kill_at < last && last < lease(100).gone_by);
        // Nobody else waits for the end of the longest time.
        assert_eq!(
            Deadlines::new(None, Some(limit(5)), at(1)).last_resort(),
            None
        );
    }

    #[test]
    fn renewals_keep_it_alive_until_the_last_one() {
        let mut deadlines = Deadlines::new(Some(lease(100)), None, at(100));
        for renewed in (110..200).step_by(10) {
            assert!(deadlines.renew(lease(renewed)));
            assert_eq!(deadlines.due(at(renewed + 10)), Due::Nothing);
        }
        assert_eq!(deadlines.due(at(190 + 17)), Due::Ask);
    }

    #[test]
    fn a_renewal_after_the_end_or_out_of_order_changes_nothing() {
        let mut deadlines = Deadlines::new(Some(lease(100)), None, at(100));
        assert!(deadlines.renew(lease(110)));
        assert!(!deadlines.renew(lease(105)) && !deadlines.renew(lease(110)));
        let absurd = Lease {
            kill_at: at(1),
            ..lease(111)
        };
        assert!(!deadlines.renew(absurd));
        assert_eq!(deadlines.next(), Some(at(127)));
        assert_eq!(deadlines.due(at(127)), Due::Ask);
        assert!(!deadlines.renew(lease(126)));
        assert_eq!(deadlines.next(), Some(at(137)));
        // Without a lease there is nothing to renew.
        let mut none = Deadlines::new(None, None, at(0));
        assert!(!none.renew(lease(9)));
        assert_eq!((none.due(at(1_000)), none.next()), (Due::Nothing, None));
    }

    #[test]
    fn a_shorter_lease_that_is_newer_holds() {
        let mut deadlines = Deadlines::new(Some(lease(100)), None, at(100));
        let shorter = Lease {
            renewed_at: at(101),
            ask_at: at(103),
            kill_at: at(104),
            gone_by: at(105),
        };
        assert!(deadlines.renew(shorter));
        assert_eq!(deadlines.next(), Some(at(103)));
    }

    #[test]
    fn after_a_long_sleep_nobody_is_asked() {
        let mut deadlines = Deadlines::new(Some(lease(100)), None, at(100));
        assert_eq!(deadlines.due(at(5_000)), Due::Kill);
        assert_eq!(deadlines.passed(), Some(Deadline::Lease));
    }

    #[test]
    fn the_longest_time_is_over_whatever_is_renewed() {
        let mut deadlines = Deadlines::new(Some(lease(100)), Some(limit(20)), at(100));
        assert!(deadlines.renew(lease(110)));
        assert_eq!(deadlines.next(), Some(at(120)));
        assert_eq!(deadlines.due(at(120)), Due::Ask);
        // Its grace is not cut short while the lease is renewed ...
        assert!(deadlines.renew(lease(120)));
        assert_eq!(deadlines.due(at(129)), Due::Nothing);
        assert_eq!(deadlines.next(), Some(at(130)));
        assert_eq!(deadlines.due(at(130)), Due::Kill);
        assert_eq!(deadlines.passed(), Some(Deadline::Runtime));
        // ... and is when it is not.
        let mut deadlines = Deadlines::new(Some(lease(100)), Some(limit(16)), at(104));
        assert_eq!(deadlines.due(at(120)), Due::Ask);
        assert_eq!(
            deadlines.passed(),
            Some(Deadline::Lease),
            "it was the first"
        );
        assert_eq!(deadlines.due(at(127)), Due::Kill);
    }
}
