//! Waiting: Ctrl-C, timeouts, lost connections, and what happens to a server meanwhile.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
};

use cnlab_testkit::{ChildGuard, GENEROUS, Signal};

use crate::harness::{World, program};

/// Starts a command, waits for a line on its stderr, and sends Ctrl-C; answers with the exit
/// code, stdout and the rest of stderr.
async fn interrupted_after(
    world: &World,
    args: &[&str],
    line_with: &str,
) -> (Option<i32>, String, String) {
    let mut command = world.command(program());
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = ChildGuard::spawn(command).unwrap();
    let mut stderr = BufReader::new(child.child_mut().stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(line_with) {
        line.clear();
        assert!(
            stderr.read_line(&mut line).unwrap() > 0,
            "it ended without {line_with:?}"
        );
    }
    child.signal(Signal::SIGINT).unwrap();
    let status = child.wait_exit(GENEROUS).await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child
        .child_mut()
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    stderr.read_to_string(&mut err).unwrap();
    (status.code(), out, err)
}

#[tokio::test]
async fn ctrl_c_leaves_the_server_and_says_so() {
    let world = World::new();
    let args = [
        "server",
        "create",
        "--name",
        "stuck",
        "--image",
        "base:3.12",
        "--profile",
        "h100-25pct",
        "--storage",
        "1gb",
    ];
    let (code, out, err) = interrupted_after(&world, &args, "sending to the node").await;
    assert_eq!(code, Some(130));
    assert_eq!(out, "✓ Provisioning... ETA 18s\n");
    assert_eq!(
        err,
        "error[INTERRUPTED]: stopped waiting; the creation of server stuck goes on\n  cause: Ctrl-C\n  try: `cnlab \
         server show --watch stuck` to watch it\n    `cnlab server delete stuck` to remove it\n"
    );
    assert!(world.peer.state().find("stuck").is_some());
    assert!(world.peer.calls("DeleteServer").is_empty());
}

#[tokio::test]
async fn ctrl_c_leaves_a_drain_and_says_so() {
    let world = World::new();
    let args = ["node", "drain", "--wait", "far-box"];
    let (code, out, err) = interrupted_after(&world, &args, "to answer again").await;
    assert_eq!((code, out.as_str()), (Some(130), ""));
    assert_eq!(
        err,
        "error[INTERRUPTED]: stopped waiting; the drain of node far-box goes on\n  cause: Ctrl-C\n  try: `cnlab node \
         show far-box` to see what it waits for\n    `cnlab node uncordon far-box` to use it again\n"
    );
    assert!(world.peer.calls("UncordonNode").is_empty());
}

#[test]
fn a_drain_that_somebody_else_ended_is_no_success() {
    let world = World::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.cnlab(&["node", "drain", "--wait", "far-box"]));
        while world.peer.calls("GetNode").is_empty() {
            std::thread::yield_now();
        }
        world.cnlab(&["node", "uncordon", "far-box"]).ok();
        let ran = waiting.join().unwrap().fails(8);
        assert!(ran.err.contains("error[NODE_UNCORDONED]"), "{ran:?}");
    });
}

#[tokio::test]
async fn ctrl_c_ends_followed_logs_without_a_word() {
    let world = World::new();
    world.put("one");
    world.peer.state().logs = vec!["first line\n".to_owned()];
    let mut command = world.command(program());
    command
        .args(["server", "logs", "-f", "one"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = ChildGuard::spawn(command).unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.child_mut().stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "first line\n");
    child.signal(Signal::SIGINT).unwrap();
    assert_eq!(child.wait_exit(GENEROUS).await.unwrap().code(), Some(130));
    let mut err = String::new();
    child
        .child_mut()
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!(err, "");
}

#[test]
fn a_wait_timeout_exits_with_124_and_the_server_goes_on() {
    let world = World::new();
    let ran = world.create("stuck", &["--wait-timeout", "1"]).fails(124);
    assert!(
        ran.err.contains(
            "error[WAIT_TIMEOUT]: server stuck is still provisioning after 1s; it goes on"
        ),
        "{ran:?}"
    );
    assert!(ran.err.contains("trace: 0af7"), "{ran:?}");
    assert!(world.peer.state().find("stuck").is_some());
}

#[test]
fn a_broken_watch_is_taken_up_again() {
    let world = World::new();
    world.peer.state().broken_watches = vec!["flaky".to_owned(), "flaky".to_owned()];
    let ran = world.create("flaky", &[]).ok();
    assert!(
        ran.out.ends_with('\n') && ran.out.contains("✓ Ready: http://nb.localhost:"),
        "{ran:?}"
    );
    assert_eq!(ran.out.matches("✓ Provisioning").count(), 1);
    assert!(ran.err.contains("connection lost, trying again"), "{ran:?}");
    assert_eq!(world.peer.calls("WatchServer").len(), 3);
}

#[test]
fn no_wait_returns_at_once() {
    let world = World::new();
    let ran = world.create("stuck", &["--no-wait"]).ok();
    assert_eq!(ran.out, "✓ Accepted: stuck\n");
    assert!(
        ran.err.contains("cnlab server show --watch stuck"),
        "{ran:?}"
    );
    assert!(world.peer.calls("WatchServer").is_empty());
}

#[test]
fn show_watch_follows_to_the_end() {
    let world = World::new();
    world.create("one", &["--no-wait"]).ok();
    let ran = world.cnlab(&["server", "show", "-w", "one"]).ok();
    assert!(ran.out.contains("State:          ready"), "{ran:?}");
    assert!(
        ran.err
            .contains("building the environment: installing jupyterlab"),
        "{ran:?}"
    );
}

#[test]
fn one_line_per_phase_on_a_pipe() {
    let world = World::new();
    let ran = world.create("one", &[]).ok();
    for phase in [
        "sending to the node",
        "building the environment",
        "starting",
        "waiting for the page",
    ] {
        assert_eq!(
            ran.err
                .lines()
                .filter(|line| line.trim_start().starts_with(phase))
                .count(),
            1,
            "{ran:?}"
        );
    }
    assert!(
        !ran.err.contains('\u{1b}') && !ran.err.contains('\r'),
        "{ran:?}"
    );
}
