//! What goes over the wire: keys, retries, tokens, addresses.

use crate::{
    harness::World,
    peer::{Fault, TOKEN},
};

#[test]
fn a_lost_answer_makes_no_second_server() {
    let world = World::new();
    {
        let mut state = world.peer.state();
        state.faults.push_back(("CreateServer", Fault::LoseAnswer));
        state.faults.push_back(("CreateServer", Fault::Away));
    }
    world.create("one", &[]).ok();
    let calls = world.peer.calls("CreateServer");
    assert_eq!(calls.len(), 3);
    let key = calls[0].key.clone().unwrap();
    assert_eq!(
        key.parse::<cnlab_model::id::Ulid>().unwrap().to_string(),
        key
    );
    assert!(
        calls.iter().all(|call| call.key.as_ref() == Some(&key)),
        "{calls:?}"
    );
    assert_eq!(world.peer.state().servers.len(), 1);
}

#[test]
fn keys_differ_between_commands_and_reads_have_none() {
    let world = World::new();
    world.create("one", &["--no-wait"]).ok();
    world.create("two", &["--no-wait"]).ok();
    let keys: Vec<_> = world
        .peer
        .calls("CreateServer")
        .into_iter()
        .map(|call| call.key.unwrap())
        .collect();
    assert_ne!(keys[0], keys[1]);
    world.cnlab(&["server", "list"]).ok();
    assert!(
        world
            .peer
            .calls("ListServers")
            .iter()
            .all(|call| call.key.is_none())
    );
}

#[test]
fn retries_are_bounded() {
    let world = World::new();
    world
        .peer
        .state()
        .faults
        .extend([("WhoAmI", Fault::Away); 9]);
    let ran = world.cnlab(&["whoami"]).fails(1);
    assert_eq!(
        ran.err,
        "error[UNAVAILABLE]: the scheduler is away\n  trace: 0af7651916cd43dd8448eb211c80319c\n"
    );
    assert_eq!(world.peer.calls("WhoAmI").len(), 4);
}

#[test]
fn names_under_localhost_are_dialled_on_loopback() {
    let world = World::new();
    let endpoint = format!("http://nb.localhost:{}", world.peer.port());
    world.cnlab(&["--endpoint", &endpoint, "whoami"]).ok();
}

#[test]
fn lists_go_through_all_pages() {
    let world = World::new();
    for number in 0..7 {
        world.put(&format!("s{number}"));
    }
    let ran = world.cnlab(&["server", "list", "-o", "name"]).ok();
    assert_eq!(ran.out, "s0\ns1\ns2\ns3\ns4\ns5\ns6\n");
    assert!(world.peer.calls("ListServers").len() > 3);
}

#[test]
fn the_project_chosen_is_sent() {
    let world = World::new();
    world
        .create("one", &["--no-wait", "--project", "local/other"])
        .ok();
    assert_eq!(
        world.peer.state().find("one").unwrap().project,
        "local/other"
    );
    world
        .cnlab(&["server", "show", "one", "--project", "local/default"])
        .fails(3);
    world
        .cnlab(&["server", "show", "one", "--project", "local/other"])
        .ok();
    world.cnlab(&["server", "show", "local/other/one"]).ok();
}

#[test]
fn a_gateway_that_is_not_there_is_named() {
    let world = World::new();
    let port = cnlab_testkit::free_port().unwrap();
    let ran = world
        .cnlab(&["--endpoint", &format!("http://127.0.0.1:{port}"), "whoami"])
        .fails(1);
    assert!(
        ran.err
            .contains("error[GATEWAY_UNREACHABLE]: no gateway answers at http://127.0.0.1:"),
        "{ran:?}"
    );
    assert!(ran.err.contains("cause: Connection refused"), "{ran:?}");
    assert!(ran.err.contains("try: `cnlab up`"), "{ran:?}");
}

#[test]
fn every_request_carries_the_token_and_no_trace_by_default() {
    let world = World::new();
    world.create("one", &[]).ok();
    let state = world.peer.state();
    assert!(state.calls.len() > 1);
    for call in &state.calls {
        assert_eq!(
            call.authorization.as_deref(),
            Some(format!("Bearer {TOKEN}").as_str()),
            "{call:?}"
        );
        assert_eq!(call.traceparent, None, "{call:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error_to_speak_of() {
    let world = World::new();
    world.put("one");
    let ran = crate::harness::Ran::of(
        world
            .command("sh")
            .args(["-c", "cnlab server show one | true"])
            .output()
            .unwrap(),
    )
    .ok();
    assert_eq!(ran.err, "");
}
