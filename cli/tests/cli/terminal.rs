//! On a real pseudo-terminal: the live line, the question before a deletion, hostile text.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use cnlab_testkit::find_program;

use crate::harness::{Ran, World};

/// What erases the live line.
const ERASE: &str = "\r\u{1b}[2K";

/// Runs a shell command on a terminal of its own and answers with all that it showed.
fn on_terminal(world: &World, command: &str, typed: &str) -> Ran {
    let script = find_program("script", "bsdutils").unwrap();
    let mut child: Command = world.bounded(script);
    child
        .args(["-qec", command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(typed.as_bytes())
        .unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    Ran {
        out: ran.out.replace("\r\n", "\n"),
        ..ran
    }
}

const CREATE: &str =
    "cnlab server create --image base:3.12 --profile h100-25pct --storage 50gb --name";

#[test]
fn the_live_line_is_rewritten_and_leaves_nothing() {
    let world = World::new();
    let ran = on_terminal(&world, &format!("{CREATE} one"), "").ok();
    assert!(
        ran.out.contains(&format!(
            "{ERASE}  building the environment: installing jupyterlab (0s)"
        )),
        "{ran:?}"
    );
    assert!(
        ran.out
            .contains(&format!("{ERASE}✓ Ready: http://nb.localhost:")),
        "{ran:?}"
    );
    // Erasing is all that it does to the terminal.
    assert!(!ran.out.replace(ERASE, "").contains('\u{1b}'), "{ran:?}");
    // A line of the live kind is never followed by a line feed.
    assert!(
        !ran.out.lines().any(|line| line.ends_with("(0s)")),
        "{ran:?}"
    );
}

#[test]
fn the_live_line_fits_a_narrow_terminal() {
    let world = World::new();
    let ran = on_terminal(&world, &format!("stty cols 30; {CREATE} one"), "").ok();
    assert!(
        ran.out
            .contains(&format!("{ERASE}  building the environment: …")),
        "{ran:?}"
    );
}

#[test]
fn quiet_and_dumb_terminals_get_no_live_line() {
    let world = World::new();
    let ran = on_terminal(&world, &format!("{CREATE} one -q"), "").ok();
    assert!(
        !ran.out.contains(ERASE) && ran.out.starts_with("✓ Provisioning"),
        "{ran:?}"
    );
    let ran = on_terminal(&world, &format!("TERM=dumb {CREATE} two"), "").ok();
    assert!(
        !ran.out.contains('\u{1b}') && ran.out.contains("starting (0s)\n"),
        "{ran:?}"
    );
}

#[test]
fn a_deletion_is_asked_about() {
    let world = World::new();
    let id = world.put("one");
    let ran = on_terminal(&world, "cnlab server delete one", "n\n").fails(1);
    assert!(
        ran.out
            .contains("delete server one and its files (50 GB)? [y/N] "),
        "{ran:?}"
    );
    assert!(
        ran.out
            .contains("error[CANCELLED]: server one was not deleted"),
        "{ran:?}"
    );
    assert!(world.peer.state().servers.contains_key(&id));
    on_terminal(&world, "cnlab server delete one", "y\n").ok();
    assert!(world.peer.state().servers.is_empty());
    world.put("two");
    let ran = on_terminal(&world, "cnlab server delete -y two", "").ok();
    assert!(!ran.out.contains("[y/N]"), "{ran:?}");
    // Without a terminal there is nobody to ask.
    world.put("three");
    world.cnlab(&["server", "delete", "three"]).ok();
}

#[test]
fn hostile_text_never_reaches_the_terminal() {
    let world = World::new();
    let id = world.put("one");
    {
        let mut state = world.peer.state();
        let server = state.servers.get_mut(&id).unwrap();
        server.node_name = "n\u{1b}[2J\u{9b}31m\nfake".to_owned();
        server.url = "http://x\u{1b}]0;owned\u{7}".to_owned();
        server.profile = "\u{202e}gpj".to_owned();
        state.profiles[0].name = "p\u{1b}c".to_owned();
        state.images[0].description = "d\u{8}\u{8}\u{8}".to_owned();
        state.logs = vec!["\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[32mgreen\u{1b}[0m\n".to_owned()];
    }
    for command in [
        "cnlab server list",
        "cnlab server show one",
        "cnlab server list -o json",
        "cnlab server show one -o yaml",
        "cnlab profiles list",
        "cnlab profiles list -o name",
        "cnlab images list",
        "cnlab server show \"$(printf 'x\\033[2Jy')\"",
        "cnlab \"$(printf 'x\\033[2Jy')\"",
        "cnlab server create --name a --image base:3.12 --profile hostile --storage 1gb",
        "cnlab server create --name hostile --image base:3.12 --profile h100-25pct --storage 1gb",
        "cnlab server create --name doomed --image base:3.12 --profile h100-25pct --storage 1gb",
        "cnlab server logs one",
    ] {
        let ran = on_terminal(&world, command, "");
        let shown = ran
            .out
            .replace(ERASE, "")
            .replace("\u{1b}[32m", "")
            .replace("\u{1b}[0m", "");
        let bad = shown
            .chars()
            .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad, None, "{command}: {ran:?}");
        assert!(!shown.is_empty(), "{command}");
        assert!(!shown.contains("\nfake"), "{command}: {ran:?}");
    }
    assert!(
        on_terminal(&world, "cnlab server logs one", "")
            .out
            .contains("\u{1b}[32mgreen\u{1b}[0m")
    );
}
