//! Exit codes, and the machine-readable forms of results and errors.

use serde_json::Value;

use crate::harness::{Ran, World};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn create(world: &World, name: &str, profile: &str, more: &[&str]) -> Ran {
    let mut args = vec![
        "server",
        "create",
        "--name",
        name,
        "--image",
        "base:3.12",
        "--profile",
        profile,
        "--storage",
        "1gb",
    ];
    args.extend(more);
    world.cnlab(&args)
}

#[test]
fn every_exit_code() {
    let world = World::new();
    world.put("one");
    world.cnlab(&["whoami"]).ok();
    create(&world, "a", "broken", &[]).fails(1);
    world.cnlab(&["nope"]).fails(2);
    create(&world, "a", "unknown", &[]).fails(3);
    world.cnlab(&["server", "show", "nobody"]).fails(3);
    World::signed_out().cnlab(&["whoami"]).fails(4);
    create(&world, "a", "denied", &[]).fails(5);
    create(&world, "a", "over-quota", &[]).fails(5);
    create(&world, "a", "no-capacity", &[]).fails(6);
    create(&world, "a", "over-budget", &[]).fails(7);
    create(&world, "one", "h100-25pct", &[]).fails(8);
    world.cnlab(&["server", "start", "one"]).fails(8);
    create(&world, "stuck", "h100-25pct", &["--wait-timeout", "1s"]).fails(124);
    // 130 is in `waiting`, where Ctrl-C is pressed.
}

#[test]
fn errors_are_documents_where_documents_are_wanted() {
    let world = World::new();
    for (args, reason, code) in [
        (
            &["server", "show", "nobody", "-o", "json"][..],
            "SERVER_NOT_FOUND",
            3,
        ),
        (
            &["server", "show", "UPPER", "-o", "json"],
            "SERVER_NAME_INVALID",
            2,
        ),
        (&["-o", "json", "nope"], "USAGE", 2),
        (&["server", "create", "--output=json"], "USAGE", 2),
    ] {
        let ran = world.cnlab(args).fails(code);
        assert_eq!(ran.out, "");
        let document = json(&ran.err);
        assert_eq!(document["apiVersion"], "cnlab/v1");
        assert_eq!(document["kind"], "Error");
        assert_eq!(document["reason"], reason);
        assert_eq!(document["exitCode"], code);
    }
    let ran = world
        .cnlab(&["server", "show", "nobody", "-o", "yaml"])
        .fails(3);
    let document: Value = serde_yaml_ng::from_str(&ran.err).unwrap();
    assert_eq!(document["reason"], "SERVER_NOT_FOUND");
    assert_eq!(document["tryThis"], "see `cnlab server list`");
    assert_eq!(document["traceId"], "0af7651916cd43dd8448eb211c80319c");
}

#[test]
fn every_command_has_every_form() {
    let world = World::new();
    world.put("one");
    for (args, kind, name) in [
        (&["whoami"][..], "Identity", "admin\n"),
        (&["login"], "Identity", "admin\n"),
        (
            &["profiles", "list"],
            "ProfileList",
            "h100-25pct\nh100-full\na100-50pct\nl40s-block\n",
        ),
        (
            &["images", "list"],
            "ImageList",
            "pytorch:2.4-cuda12.4\nbase:3.12\n",
        ),
        (&["server", "list"], "ServerList", "one\n"),
        (&["server", "show", "one"], "Server", "one\n"),
        (&["server", "stop", "one"], "Server", "one\n"),
        (&["server", "start", "one"], "Server", ""),
        (
            &["node", "list"],
            "NodeList",
            "far-box\ngpu-box\nidle-box\nnode_01J00000000000000000000004\nnode_01J00000000000000000000005\n",
        ),
        (&["node", "show", "gpu-box"], "Node", "gpu-box\n"),
        (&["node", "cordon", "gpu-box"], "Node", "gpu-box\n"),
        (&["node", "drain", "gpu-box", "--wait"], "Node", "gpu-box\n"),
        (&["node", "uncordon", "gpu-box"], "Node", "gpu-box\n"),
        (
            &["version"],
            "Version",
            concat!(env!("CARGO_PKG_VERSION"), "\n"),
        ),
        (&["completion", "bash"], "Completion", "bash\n"),
        (&["logout"], "Logout", ""),
    ] {
        // A start needs a stop before it.
        let with = |format: &str| {
            if args == ["server", "start", "one"] {
                world.cnlab(&["server", "stop", "one", "-q"]).ok();
            }
            world.cnlab(&[args, &["-o", format]].concat()).ok()
        };
        let document = json(&with("json").out);
        assert_eq!(document["apiVersion"], "cnlab/v1", "{args:?}");
        assert_eq!(document["kind"], kind);
        let yaml: Value = serde_yaml_ng::from_str(&with("yaml").out).unwrap();
        assert_eq!(yaml["kind"], kind);
        let names = with("name").out;
        assert!(name.is_empty() || names == name, "{args:?}: {names}");
        assert!(!with("table").out.is_empty(), "{args:?}");
    }
}

#[test]
fn created_servers_are_one_document_with_the_names_of_the_http_api() {
    let world = World::new();
    let ran = create(&world, "one", "h100-25pct", &["-o", "json"]).ok();
    let server = json(&ran.out);
    assert_eq!(server["kind"], "Server");
    assert_eq!(server["state"], "SERVER_STATE_READY");
    assert_eq!(server["storageBytes"], "1000000000");
    assert_eq!(server["grant"]["slices"][0]["blocks"][0]["count"], 25);
    assert_eq!(server["runtime"]["simulatedGpu"], true);
    assert_eq!(server["installHeavy"], false);
    let ran = create(&world, "two", "h100-25pct", &["-o", "name", "-q"]).ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("two\n", ""));
    let ran = create(
        &world,
        "three",
        "h100-25pct",
        &["-o", "yaml", "--no-wait", "--with-heavy-packages"],
    )
    .ok();
    let server: Value = serde_yaml_ng::from_str(&ran.out).unwrap();
    assert_eq!(server["installHeavy"], true);
}

#[test]
fn a_failed_server_is_an_error_document() {
    let world = World::new();
    let ran = create(&world, "doomed", "h100-25pct", &["-o", "json", "-q"]).fails(1);
    assert_eq!(ran.out, "");
    let document = json(&ran.err);
    assert_eq!(document["reason"], "ENVIRONMENT_BUILD_FAILED");
    assert_eq!(
        document["cause"],
        "pip: no matching distribution\npip: \u{1b}[31mgiving up\u{1b}[0m"
    );
    assert!(!ran.err.contains('\u{1b}'), "{ran:?}");
}

#[test]
fn ambiguous_names_are_written_in_full() {
    let world = World::new();
    world.put("one");
    let id = world.put("two");
    {
        let mut state = world.peer.state();
        let server = state.servers.get_mut(&id).unwrap();
        server.name = "one".to_owned();
        server.project = "local/other".to_owned();
    }
    assert_eq!(
        world.cnlab(&["server", "list", "-o", "name"]).ok().out,
        "local/default/one\nlocal/other/one\n"
    );
    assert!(
        world
            .cnlab(&["server", "list"])
            .ok()
            .out
            .starts_with("PROJECT")
    );
}

#[test]
fn links_are_printed_alone_and_only_where_they_are_links() {
    let world = World::new();
    world.put("one");
    world.put("hostile");
    let link = format!(
        "http://srv-one.localhost:{}/_cnlab/open?code=c0de\n",
        world.peer.port()
    );
    let ran = world.cnlab(&["server", "open", "--print", "one"]).ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), (link.as_str(), ""));
    // Without a display it is printed too, with a note.
    let ran = world.cnlab(&["server", "open", "one"]).ok();
    assert_eq!(ran.out, link);
    let document = json(
        &world
            .cnlab(&["server", "open", "one", "-o", "json"])
            .ok()
            .out,
    );
    assert_eq!(document["kind"], "ServerLink");
    assert_eq!(document["link"], link.trim_end());
    let ran = world
        .cnlab(&["server", "open", "--print", "hostile"])
        .fails(1);
    assert!(
        ran.out.is_empty() && ran.err.contains("LINK_MALFORMED"),
        "{ran:?}"
    );
}

#[test]
fn the_desktop_opens_the_link_and_it_is_not_shown() {
    let world = World::new();
    world.put("one");
    // A real opener would need a browser; this one keeps what it was given.
    let opener = world.bin().join("xdg-open");
    std::fs::write(
        &opener,
        "#!/bin/sh\nprintf '%s' \"$1\" > \"$HOME/opened\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&opener, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = || {
        let mut command = world.command("cnlab");
        Ran::of(
            command
                .env("DISPLAY", ":9")
                .args(["server", "open", "one"])
                .output()
                .unwrap(),
        )
        .ok()
    };
    let ran = run();
    assert!(
        ran.out.starts_with("✓ Opened: http://nb.localhost:"),
        "{ran:?}"
    );
    assert!(
        !ran.out.contains("code=") && !ran.err.contains("code="),
        "{ran:?}"
    );
    let opened = std::fs::read_to_string(world.home().join("opened")).unwrap();
    assert!(opened.ends_with("code=c0de"), "{opened}");
    std::fs::write(&opener, "#!/bin/sh\nexit 3\n").unwrap();
    let ran = run();
    assert!(ran.out.ends_with("code=c0de\n"), "{ran:?}");
    assert!(ran.err.contains("the desktop could not open it"), "{ran:?}");
}

#[test]
fn logs_go_to_a_pipe_as_they_are() {
    let world = World::new();
    world.put("one");
    world.peer.state().logs = ["a\u{1b}[31mb\r\n", "c\n", "d\n"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(
        world.cnlab(&["server", "logs", "one"]).ok().out,
        "a\u{1b}[31mb\r\nc\nd\n"
    );
    assert_eq!(
        world.cnlab(&["server", "logs", "-n", "1", "one"]).ok().out,
        "d\n"
    );
    let ran = world.cnlab(&["server", "logs", "one", "-o", "json"]).ok();
    let chunks: Vec<Value> = ran.out.lines().map(json).collect();
    assert_eq!(chunks.len(), 3);
    assert_eq!(chunks[0]["kind"], "LogChunk");
    assert_eq!(chunks[0]["text"], "a\u{1b}[31mb\r\n");
    world.cnlab(&["server", "logs", "-n", "0", "one"]).fails(2);
}

#[test]
fn wrong_values_are_refused_before_anything_is_sent() {
    let world = World::new();
    let long = "x".repeat(10_240);
    for (name, storage) in [
        ("a/b", "1gb"),
        ("a\u{1b}[2J", "1gb"),
        (long.as_str(), "1gb"),
        ("", "1gb"),
        ("a", "0"),
        ("a", "-1gb"),
        ("a", "lots"),
    ] {
        let args = [
            "server",
            "create",
            "--name",
            name,
            "--image",
            "i",
            "--profile",
            "p",
            "--storage",
            storage,
        ];
        let ran = world.cnlab(&args).fails(2);
        assert!(ran.err.contains("_INVALID]: "), "{ran:?}");
        assert!(
            ran.err.len() < 400 && !ran.err.contains('\u{1b}'),
            "{ran:?}"
        );
    }
    assert!(world.peer.state().calls.is_empty());
}
