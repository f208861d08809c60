//! Wrong values on the command line: refused before anything is made of them.

use anyhow::{Context as _, Result, ensure};

use crate::{Refusal, create, place::Place};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_values_make_nothing() -> Result<()> {
    let place = Place::with_a_record().await?;
    let before = place.idle().await?;
    let (long, control) = ("a".repeat(10_240), "a\u{1b}[31m\u{7}");
    let with = |option, value| replaced(create("fresh", &["--no-wait"]), option, value);
    let name = |says| refusal(2, "SERVER_NAME_INVALID", says, "first-experiment");
    for (command, expected) in [
        (
            with("--image", "jupyter:minmal"),
            refusal(3, "IMAGE_NOT_FOUND", "jupyter:minmal", "jupyter:minimal"),
        ),
        (
            with("--image", "pytorch"),
            refusal(3, "IMAGE_NOT_FOUND", "pytorch", "pytorch:2.4-cuda12.4"),
        ),
        (
            with("--profile", "h100-25pc"),
            refusal(3, "PROFILE_NOT_FOUND", "h100-25pc", "h100-25pct"),
        ),
        (
            with("--profile", "quarter"),
            refusal(3, "PROFILE_NOT_FOUND", "quarter", "profiles list"),
        ),
        (
            with("--storage", "0"),
            refusal(2, "STORAGE_INVALID", "at least 1 byte", "--storage 50gb"),
        ),
        (
            with("--storage", "-1gb"),
            refusal(2, "STORAGE_INVALID", "number", "--storage 50gb"),
        ),
        (
            with("--storage", "9999999tb"),
            refusal(2, "STORAGE_TOO_LARGE", "largest disk", "at most"),
        ),
        (with("--name", "a/b"), name("'/' at position 2")),
        (with("--name", "../../etc"), name("'.' at position 1")),
        (with("--name", control), name("'\\u{1b}' at position 2")),
        (with("--name", &long), name("at most 63 characters")),
        (with("--name", ""), name("name")),
        (
            with("--name", "kept"),
            refusal(8, "SERVER_NAME_TAKEN", "kept", "server open kept"),
        ),
        (
            vec!["server", "show", "absent"],
            refusal(3, "SERVER_NOT_FOUND", "absent", "server list"),
        ),
        (
            vec!["server", "start", "srv_01HXAYZ0000000000000000000"],
            refusal(3, "SERVER_NOT_FOUND", "srv_01HXAYZ", "server list"),
        ),
        (
            vec!["server", "delete", "absent", "--yes"],
            refusal(3, "SERVER_NOT_FOUND", "absent", "server list"),
        ),
        (
            vec!["server", "open", "kept", "--print"],
            refusal(8, "SERVER_NOT_READY", "kept", "server start kept"),
        ),
    ] {
        let answer = place.cli.run(&command).await?;
        expected(&answer)?;
        ensure!(answer.stdout.is_empty(), "{answer:?}");
        let same = place.unchanged_since(&before).await;
        same.with_context(|| format!("{command:?}"))?;
    }
    place.end().await
}

type Check<'a> = Box<dyn Fn(&cnlab_tests::cli::Answer) -> Result<()> + Send + Sync + 'a>;

fn refusal<'a>(code: i32, reason: &'a str, says: &'a str, advises: &'a str) -> Check<'a> {
    Box::new(move |answer| {
        Refusal {
            code,
            reason,
            says: &[says],
            advises: &[advises],
        }
        .check(answer)
    })
}

/// The command with another value for one option.
fn replaced<'a>(mut command: Vec<&'a str>, option: &str, value: &'a str) -> Vec<&'a str> {
    for place in 1..command.len() {
        if command[place - 1] == option {
            command[place] = value;
        }
    }
    command
}
