//! Starts, ends, and everybody's death in between.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use node_sandbox::{Exit, Identity, Running};

use crate::fixture::{Fixture, Guard, harness, lives, processes_of, until};

const GENEROUS: Duration = Duration::from_secs(60);
/// A command that ignores being asked, with two descendants that left its session.
const STUBBORN: &str = "trap '' TERM; (setsid sleep 1000 &); (setsid sh -c 'sleep 1000 & wait' &); \
                        sleep 1000 & echo ready; while :; do sleep 1; done";

fn kill(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[test]
fn the_way_a_command_ends_is_recorded() {
    let cases = [
        ("exit 0", Exit::Code(0)),
        ("exit 7", Exit::Code(7)),
        ("kill -SEGV $$", Exit::Signal(11)),
        ("sleep 1000 & kill -KILL $$", Exit::Signal(9)),
        ("(setsid sleep 1000 &); exit 1", Exit::Code(1)),
    ];
    for (script, expected) in cases {
        let fixture = Fixture::new();
        let (record, _) = fixture.run_script(script);
        assert_eq!(record.exit, expected, "{script}");
        assert_eq!(record.id, fixture.id);
        assert!(!record.oom_killed && record.finished_at_unix_ms > 1_600_000_000_000);
    }
}

#[test]
fn a_command_that_listens_ends_itself() {
    let fixture = Fixture::new();
    let spec = fixture.script("trap 'echo bye; exit 5' TERM; echo ready; sleep 1000 & wait");
    let running = fixture.start(&spec);
    fixture.wait_for(&running, "ready");
    let record = running.terminate(GENEROUS).unwrap().unwrap();
    assert_eq!(record.exit, Exit::Code(5));
    assert!(fixture.log().contains("bye"));
    fixture.assert_nothing_left(running.identity());
    // Again is the same.
    assert_eq!(running.terminate(GENEROUS).unwrap(), Some(record));
}

#[test]
fn nothing_escapes_from_a_stubborn_command() {
    let fixture = Fixture::new();
    let running = fixture.start(&fixture.script(STUBBORN));
    fixture.wait_for(&running, "ready");
    assert!(until(|| running.pids().len() >= 5), "{:?}", running.pids());
    let pids = running.pids();
    let record = running
        .terminate(Duration::from_millis(100))
        .unwrap()
        .unwrap();
    assert_eq!(record.exit, Exit::Signal(9));
    assert!(!record.oom_killed);
    assert_eq!(pids.into_iter().filter(|pid| lives(*pid)).count(), 0);
    fixture.assert_nothing_left(running.identity());
    assert!(running.pids().is_empty() && !running.is_alive());
}

#[test]
fn ended_orphans_are_reaped_inside() {
    let fixture = Fixture::new();
    let script = "for i in 1 2 3 4 5; do (setsid true &); done; sleep 0.3; \
                  echo zombies $(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l)";
    let (_, log) = fixture.run_script(script);
    assert_eq!(log, "zombies 0\n");
}

#[test]
fn the_workload_outlives_its_starter_and_is_found_again() {
    let fixture = Fixture::new();
    let spec = fixture.script("while :; do echo tick >> /workspace/ticks; sleep 0.02; done");
    let path = fixture.folder.path().join("spec.json");
    std::fs::write(&path, serde_json::to_vec(&spec).unwrap()).unwrap();
    let mut starter = Command::new(harness())
        .arg("start")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(starter.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
    let identity: Identity = serde_json::from_value(answer["identity"].clone()).unwrap();
    starter.kill().unwrap();
    starter.wait().unwrap();

    let running = Guard(Running::adopt(&identity).expect("it lives on"));
    let ticks = || std::fs::metadata(fixture.volume().join("ticks")).map_or(0, |file| file.len());
    let before = ticks();
    assert!(until(|| ticks() > before), "the command goes on");
    assert!(running.is_alive() && !running.pids().is_empty());
    assert!(running.memory_current().is_some_and(|bytes| bytes > 0));
    assert_eq!(running.exit_record().unwrap(), None);
    let record = running.terminate(GENEROUS).unwrap().unwrap();
    assert_eq!(record.exit, Exit::Signal(15));
    assert!(Running::adopt(&identity).is_none());
    identity.remove_leftovers().unwrap();
    fixture.assert_nothing_left(&identity);
}

#[test]
fn all_ends_with_the_supervisor_and_the_id_can_be_used_again() {
    let fixture = Fixture::new();
    let running = fixture.start(&fixture.script(STUBBORN));
    fixture.wait_for(&running, "ready");
    assert!(until(|| running.pids().len() >= 5));
    let identity = running.identity().clone();
    let pids = running.pids();
    kill(identity.supervisor.pid);
    assert!(running.wait(Some(GENEROUS)));
    assert!(until(
        || !pids.iter().any(|pid| lives(*pid)) && !lives(identity.init.pid)
    ));
    assert!(Running::adopt(&identity).is_none());
    assert_eq!(identity.exit_record().unwrap(), None);
    assert!(
        identity.cgroups.iter().any(|group| group.path.exists()),
        "nobody removed them"
    );

    // A start takes over what is left ...
    let (record, _) = fixture.run_script("exit 3");
    assert_eq!(record.exit, Exit::Code(3));
    // ... and so does being asked to, any number of times.
    let running = fixture.start(&fixture.script("exec sleep 1000"));
    kill(running.identity().supervisor.pid);
    assert!(running.wait(Some(GENEROUS)));
    for _ in 0..2 {
        running.identity().remove_leftovers().unwrap();
        fixture.assert_nothing_left(running.identity());
    }
    assert_eq!(running.terminate(GENEROUS).unwrap(), None);
}

#[test]
fn killing_init_ends_all_and_is_recorded() {
    let fixture = Fixture::new();
    let running = fixture.start(&fixture.script(STUBBORN));
    fixture.wait_for(&running, "ready");
    kill(running.identity().init.pid);
    assert!(running.wait(Some(GENEROUS)));
    assert_eq!(
        running.exit_record().unwrap().unwrap().exit,
        Exit::Signal(9)
    );
    fixture.assert_nothing_left(running.identity());
}

#[test]
fn an_id_in_use_is_refused_and_its_workload_goes_on() {
    let fixture = Fixture::new();
    let running = fixture.start(&fixture.script("exec sleep 1000"));
    let mut second = fixture.script("exit 1");
    second.exit_record = fixture.folder.path().join("second.json");
    let error = fixture.try_start(&second).unwrap_err();
    assert_eq!(error.reason(), "SANDBOX_STILL_RUNNING", "{error}");
    assert!(running.is_alive());
    assert!(!second.exit_record.exists());
    let mut supervisor_and_init = processes_of(&fixture.id);
    supervisor_and_init.sort_unstable();
    let identity = running.identity();
    assert_eq!(
        supervisor_and_init,
        [identity.supervisor.pid, identity.init.pid]
    );
}

#[test]
fn a_command_that_is_over_at_once_is_a_start_all_the_same() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        let running = fixture.start(&fixture.script("exit 4"));
        assert!(running.wait(Some(GENEROUS)));
        assert_eq!(running.exit_record().unwrap().unwrap().exit, Exit::Code(4));
        let supervisor = format!("/proc/{}", running.identity().supervisor.pid);
        assert!(
            !std::path::Path::new(&supervisor).exists(),
            "not a zombie either"
        );
    }
}
