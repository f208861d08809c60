//! Time that runs out: a lease that nobody renews, a longest time, and a supervisor that sees to
//! neither.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use node_sandbox::{
    Boottime, Deadline, Exit, Lease, Leased, Running, RuntimeLimit, SandboxSpec, Wanted,
};

use crate::fixture::{Fixture, lives, until};

const GENEROUS: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
/// Notes that it was asked, and goes on.
const STUBBORN: &str = "trap 'echo asked' TERM; (setsid sleep 1000 &); echo ready; \
                        while :; do sleep 0.05; done";

/// A lease from now on; each time counts from the one before.
fn lease(ask: Duration, grace: Duration, reserve: Duration) -> Lease {
    let renewed_at = Boottime::now();
    let ask_at = renewed_at.plus(ask);
    let kill_at = ask_at.plus(grace);
    Lease {
        renewed_at,
        ask_at,
        kill_at,
        gone_by: kill_at.plus(reserve),
    }
}

fn leased(fixture: &Fixture, script: &str, first: Lease) -> SandboxSpec {
    let mut spec = fixture.script(script);
    spec.lease = Some(Leased {
        first,
        renewals: fixture.folder.path().join("renewals"),
    });
    spec
}

fn signal(running: &Running, signal: Signal) {
    let pid = nix::unistd::Pid::from_raw(running.identity().supervisor.pid);
    kill(pid, signal).unwrap();
}

#[test]
fn what_nobody_renews_is_asked_and_then_killed() {
    let soon = Duration::from_millis(300);
    for isolation in [Wanted::Full, Wanted::ProcessOnly] {
        let fixture = Fixture::new();
        let mut spec = leased(&fixture, STUBBORN, lease(soon, soon, HOUR));
        spec.isolation = isolation;
        let (record, log) = fixture.run(&spec);
        assert_eq!(record.deadline, Some(Deadline::Lease));
        assert_eq!(record.exit, Exit::Signal(9));
        assert_eq!(log.matches("asked").count(), 1, "{log}");
    }

    let fixture = Fixture::new();
    let listens = "trap 'exit 5' TERM; sleep 1000 & wait";
    let (record, _) = fixture.run(&leased(&fixture, listens, lease(soon, HOUR, HOUR)));
    assert_eq!(record.deadline, Some(Deadline::Lease));
    assert_eq!(record.exit, Exit::Code(5));
}

#[test]
fn who_ends_in_time_ended_for_no_deadline() {
    let fixture = Fixture::new();
    let (record, _) = fixture.run(&leased(&fixture, "exit 3", lease(HOUR, HOUR, HOUR)));
    assert_eq!((record.exit, record.deadline), (Exit::Code(3), None));

    // Whoever is asked by its caller and by its lease at once is asked once.
    let fixture = Fixture::new();
    let running = fixture.start(&leased(&fixture, STUBBORN, lease(HOUR, HOUR, HOUR)));
    fixture.wait_for(&running, "ready");
    signal(&running, Signal::SIGTERM);
    fixture.wait_for(&running, "asked");
    let pause = Duration::from_millis(200);
    running.renew(&lease(Duration::ZERO, pause, HOUR)).unwrap();
    assert!(running.wait(Some(GENEROUS)));
    let record = running.exit_record().unwrap().unwrap();
    assert_eq!(record.deadline, Some(Deadline::Lease));
    assert_eq!(fixture.log().matches("asked").count(), 1);
}

#[test]
fn renewals_keep_it_alive_whoever_sends_them() {
    let fixture = Fixture::new();
    let moment = Duration::from_millis(100);
    let first = lease(Duration::from_secs(5), moment, moment);
    let ticks = "while :; do echo tick >> /workspace/ticks; sleep 0.02; done";
    let running = fixture.start(&leased(&fixture, ticks, first));
    running.renew(&lease(HOUR, HOUR, HOUR)).unwrap();
    // One that is late in the pipe does not undo it.
    running.renew(&first).unwrap();
    assert!(until(|| Boottime::now() > first.gone_by.plus(moment)));
    let ticks = || std::fs::metadata(fixture.volume().join("ticks")).map_or(0, |file| file.len());
    let before = ticks();
    assert!(until(|| ticks() > before), "the command goes on");

    // A caller that comes later finds the pipe, too; a newer lease holds although it is shorter.
    let adopted = Running::adopt(running.identity()).unwrap();
    adopted.renew(&lease(moment, moment, HOUR)).unwrap();
    assert!(adopted.wait(Some(GENEROUS)));
    let record = adopted.exit_record().unwrap().unwrap();
    assert_eq!(record.deadline, Some(Deadline::Lease));
    fixture.assert_nothing_left(running.identity());
    // Nobody is there any more; that harms nobody.
    let _no_matter = adopted.renew(&lease(HOUR, HOUR, HOUR));
    assert!(!adopted.is_alive());
}

#[test]
fn a_supervisor_that_stands_still_is_killed_with_all_it_holds() {
    for isolation in [Wanted::Full, Wanted::ProcessOnly] {
        let fixture = Fixture::new();
        let first = lease(
            Duration::from_secs(4),
            Duration::ZERO,
            Duration::from_secs(1),
        );
        let mut spec = leased(&fixture, STUBBORN, first);
        spec.isolation = isolation;
        let running = fixture.start(&spec);
        signal(&running, Signal::SIGSTOP);
        let pids = running.pids();
        assert!(!pids.is_empty());
        assert!(running.wait(Some(GENEROUS)));
        assert!(until(|| !pids.iter().any(|pid| lives(*pid))));
        running.identity().remove_leftovers().unwrap();
        let record = running.exit_record().unwrap();
        assert_eq!(record, None, "nobody could write it");
        fixture.assert_nothing_left(running.identity());
    }
}

#[test]
fn what_slept_through_its_lease_is_killed_when_it_wakes() {
    let fixture = Fixture::new();
    let first = lease(Duration::from_secs(3), Duration::from_millis(1), HOUR);
    let running = fixture.start(&leased(&fixture, STUBBORN, first));
    signal(&running, Signal::SIGSTOP);
    assert!(until(|| Boottime::now() > first.kill_at));
    assert!(running.is_alive());
    signal(&running, Signal::SIGCONT);
    assert!(running.wait(Some(GENEROUS)));
    let record = running.exit_record().unwrap().unwrap();
    assert_eq!(record.deadline, Some(Deadline::Lease));
    assert_eq!(
        fixture.log().matches("asked").count(),
        0,
        "its time was over"
    );
}

#[test]
fn a_longest_time_ends_it_without_a_lease_and_with_one() {
    let soon = Duration::from_millis(200);
    let limit = RuntimeLimit {
        after: soon,
        grace: soon,
    };
    for first in [None, Some(lease(HOUR, HOUR, HOUR))] {
        let fixture = Fixture::new();
        let mut spec = fixture.script(STUBBORN);
        if let Some(first) = first {
            spec = leased(&fixture, STUBBORN, first);
        }
        spec.max_runtime = Some(limit);
        let (record, _) = fixture.run(&spec);
        assert_eq!(record.deadline, Some(Deadline::Runtime));
        assert_eq!(record.exit, Exit::Signal(9));
    }
}

#[test]
fn a_lease_that_is_over_starts_nothing_that_stays() {
    let fixture = Fixture::new();
    let over = lease(Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let started = fixture.try_start(&leased(&fixture, STUBBORN, over));
    if let Ok(running) = &started {
        assert!(running.wait(Some(GENEROUS)));
        running.identity().remove_leftovers().unwrap();
    }
    assert_eq!(crate::fixture::processes_of(&fixture.id), [0_i32; 0]);
}
