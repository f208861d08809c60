//! The demo as `cnlab up --demo` calls it: the same functions, without a process.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use cnlab::{
    connect::Endpoint, console::Console, demo, environment::Program, output::Format,
    session::Session,
};

use crate::{
    harness::World,
    peer::{Peer, TOKEN},
};

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the demo; answers with the link, stdout and stderr.
async fn run(peer: &Peer) -> (String, String, String) {
    let endpoint = Endpoint::parse(&peer.endpoint()).unwrap();
    let session = Session::with_token(Program::Cnlab, endpoint, None, TOKEN).unwrap();
    let (out, err) = (Kept::default(), Kept::default());
    let mut console =
        Console::of_writers(Box::new(out.clone()), Box::new(err.clone()), Format::Table);
    let link = demo::run(&session, &mut console).await.unwrap().link;
    let text = |kept: &Kept| String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    (link, text(&out), text(&err))
}

#[tokio::test]
async fn the_quickstart_runs_and_runs_again() {
    let world = World::new();
    let (link, out, _) = run(&world.peer).await;
    assert!(link.contains("first-experiment"), "{link}");
    assert!(
        out.starts_with("✓ Provisioning... ETA 18s\n✓ Ready: http://nb.localhost:"),
        "{out}"
    );
    let made = world.peer.state().find(demo::SERVER).unwrap();
    assert_eq!(
        (
            made.image.as_str(),
            made.profile.as_str(),
            made.storage_bytes
        ),
        (demo::IMAGE, demo::PROFILE, 50_000_000_000)
    );
    // It is still ready.
    let (_, out, err) = run(&world.peer).await;
    assert!(out.starts_with("✓ Ready: "), "{out}");
    assert!(err.contains("is there already"), "{err}");
    // It was stopped, as by Ctrl-C.
    world.cnlab(&["server", "stop", demo::SERVER]).ok();
    let (_, out, _) = run(&world.peer).await;
    assert!(
        out.starts_with("✓ Provisioning... ETA 18s\n✓ Ready: "),
        "{out}"
    );
    assert_eq!(world.peer.state().servers.len(), 1);
    assert_eq!(world.peer.calls("StartServer").len(), 1);
}

#[tokio::test]
async fn another_gpu_gets_the_nearest_profile_and_it_is_said() {
    let world = World::new();
    world
        .peer
        .state()
        .profiles
        .retain(|profile| profile.gpu_type == "L40S");
    let (_, _, err) = run(&world.peer).await;
    assert!(err.contains("h100-25pct needs an H100; on this machine's L40S the demo takes the nearest profile, l40s-block"), "{err}");
    assert_eq!(
        world.peer.state().find(demo::SERVER).unwrap().profile,
        "l40s-block"
    );
}
