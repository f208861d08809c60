//! Tokens: where they come from, where they are kept, and that they are not shown.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::{
    harness::{Ran, World},
    peer::TOKEN,
};

fn credentials(world: &World) -> std::path::PathBuf {
    world.home().join(".config/cnlab/credentials.toml")
}

#[test]
fn a_token_is_kept_for_its_owner_and_its_gateway() {
    let world = World::signed_out();
    let ran = world.cnlab(&["login", "--token", TOKEN]).ok();
    assert_eq!(
        ran.out,
        format!("✓ Logged in as admin at {}\n", world.peer.endpoint())
    );
    assert_eq!(
        fs::metadata(credentials(&world))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    world.cnlab(&["whoami"]).ok();
    // Without an endpoint in the environment the context that login wrote counts.
    let ran = Ran::of(
        world
            .command("cnlab")
            .env_remove("CNLAB_ENDPOINT")
            .arg("whoami")
            .output()
            .unwrap(),
    );
    assert!(ran.ok().out.contains("admin"));
    // Another gateway never gets this token.
    let other = World::signed_out();
    let ran = world
        .cnlab(&["--endpoint", &other.peer.endpoint(), "whoami"])
        .fails(4);
    assert!(ran.err.contains("NOT_LOGGED_IN"), "{ran:?}");
    assert!(other.peer.state().calls.is_empty());
    world.cnlab(&["logout"]).ok();
    world.cnlab(&["whoami"]).fails(4);
    assert!(
        !fs::read_to_string(credentials(&world))
            .unwrap()
            .contains(TOKEN)
    );
}

#[test]
fn stdin_and_both_variables_are_read() {
    let world = World::signed_out();
    world
        .cnlab_fed(&["login", "--token-stdin"], &format!("{TOKEN}\n"))
        .ok();
    world.cnlab(&["whoami"]).ok();
    for variable in ["CNLAB_TOKEN", "AUTOLAB_TOKEN"] {
        let world = World::signed_out();
        let run = |args: &[&str]| {
            Ran::of(
                world
                    .command("cnlab")
                    .env(variable, TOKEN)
                    .args(args)
                    .output()
                    .unwrap(),
            )
        };
        run(&["whoami"]).ok();
        run(&["login"]).ok();
        world.cnlab(&["whoami"]).ok();
    }
}

#[test]
fn a_refused_token_is_not_kept_and_no_token_is_ever_shown() {
    let world = World::signed_out();
    let wrong = "cnl_wr0ng";
    for args in [
        &["login", "--token", wrong][..],
        &["login", "--token", wrong, "-o", "json"],
        &["login", "--token", "two words"],
        &["login", "--token", wrong, "--token-stdin"],
    ] {
        let ran = world.cnlab(args);
        assert!(matches!(ran.code, Some(2 | 4)), "{ran:?}");
        assert!(
            !ran.err.contains(wrong) && !ran.out.contains(wrong),
            "{ran:?}"
        );
    }
    assert!(!credentials(&world).exists());
}

#[test]
fn the_other_name_is_the_same_program() {
    let world = World::signed_out();
    let run = |args: &[&str]| {
        Ran::of(
            world
                .command("autolab")
                .env("AUTOLAB_TOKEN", TOKEN)
                .args(args)
                .output()
                .unwrap(),
        )
    };
    assert!(run(&["version"]).ok().out.starts_with("autolab "));
    assert!(run(&["--help"]).ok().out.contains("Usage: autolab"));
    run(&["whoami"]).ok();
    let ran = world.command("autolab").arg("whoami").output().unwrap();
    assert!(
        Ran::of(ran)
            .fails(4)
            .err
            .contains("`autolab login --token-stdin`")
    );
    // Its own variable wins over the other one's.
    let ran = world
        .command("autolab")
        .env("AUTOLAB_TOKEN", TOKEN)
        .env("CNLAB_TOKEN", "cnl_wr0ng")
        .arg("whoami")
        .output()
        .unwrap();
    Ran::of(ran).ok();
}

#[test]
fn a_damaged_credentials_file_is_named_and_left_alone() {
    let world = World::signed_out();
    world.cnlab(&["login", "--token", TOKEN]).ok();
    let damaged = format!("gateways = \"{TOKEN}");
    fs::write(credentials(&world), &damaged).unwrap();
    let ran = world.cnlab(&["whoami"]).fails(2);
    assert!(
        ran.err.contains("CONFIG_INVALID") && ran.err.contains("credentials.toml"),
        "{ran:?}"
    );
    assert!(!ran.err.contains(TOKEN), "{ran:?}");
    world.cnlab(&["login", "--token", TOKEN]).fails(2);
    assert_eq!(fs::read_to_string(credentials(&world)).unwrap(), damaged);
}
