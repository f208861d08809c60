//! Tokens that are not good, and a gateway that is not there.

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::find_program;
use cnlab_tests::{cli::Cli, stack::Up};
use tokio::process::Command;

use crate::{Refusal, create, place::Place};

/// The product hands out tokens without an end; one is given to it from outside.
const EXPIRE: &str = "import sqlite3, sys
store = sqlite3.connect(sys.argv[1], timeout=30)
changed = store.execute('update token set expires_at = 1').rowcount
store.commit()
print(changed)";

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_not_good() -> Result<()> {
    let mut place = Place::new()?;
    place.start().await?;
    let mut other = Place::new()?;
    other.start().await?;
    let up = place.up.as_ref().context("it runs")?;
    let endpoint = up.endpoint().to_owned();
    let good = std::fs::read_to_string(up.admin_token())?;
    let foreign = other.data().join("credentials/admin.token");
    let foreign = std::fs::read_to_string(foreign)?;
    other.end().await?;
    let good = good.trim();
    let (shorter, twisted) = (&good[..good.len() - 5], twisted(good));
    for token in [
        foreign.trim(),
        shorter,
        &twisted,
        "cnl_",
        "no token",
        "ключ",
    ] {
        let stranger = Cli::new()?;
        let login = ["--endpoint", &endpoint, "login", "--token", token];
        let answer = stranger.run(&login).await?;
        let reason = if answer.stderr.contains("TOKEN_MALFORMED") {
            "TOKEN_MALFORMED"
        } else {
            "TOKEN_INVALID"
        };
        Refusal {
            code: 4,
            reason,
            says: &["token"],
            advises: &["token"],
        }
        .check(&answer)?;
        ensure!(
            token.len() < 10 || !format!("{answer:?}").contains(token),
            "a token was printed"
        );
        // Nothing of it was kept.
        let answer = stranger
            .run(&["--endpoint", &endpoint, "server", "list"])
            .await?;
        Refusal {
            code: 4,
            reason: "NOT_LOGGED_IN",
            says: &[&endpoint],
            advises: &["login"],
        }
        .check(&answer)?;
    }
    place.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_time_is_over() -> Result<()> {
    let mut place = Place::new()?;
    // Nobody signs in: the gateway remembers for some seconds whom it has let in.
    let up = Up::start(&place.cli, place.data(), place.port, &[]).await?;
    let endpoint = up.endpoint().to_owned();
    let token = std::fs::read_to_string(up.admin_token())?;
    place.up = Some(up);
    let expired = Command::new(find_program("python3", "python3")?)
        .args(["-c", EXPIRE])
        .arg(place.data().join("db/billing-svc.sqlite"))
        .output()
        .await?;
    ensure!(
        expired.stdout.trim_ascii() == b"1",
        "the row could not be changed: {expired:?}"
    );
    let login = ["--endpoint", &endpoint, "login", "--token", token.trim()];
    let answer = place.cli.run(&login).await?;
    Refusal {
        code: 4,
        reason: "TOKEN_INVALID",
        says: &["token"],
        advises: &["login"],
    }
    .check(&answer)?;
    place.end().await
}

/// A token of the right form that nobody was given.
fn twisted(token: &str) -> String {
    let mut letters: Vec<char> = token.chars().collect();
    letters[10..].reverse();
    letters.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_not_there() -> Result<()> {
    let mut place = Place::new()?;
    place.start().await?;
    let endpoint = format!("127.0.0.1:{}", place.port);
    place.stop().await?;
    for command in [
        vec!["server", "list"],
        vec!["profiles", "list"],
        create("fresh", &[]),
        vec!["server", "open", "fresh", "--print"],
    ] {
        let answer = place.cli.run(&command).await?;
        Refusal {
            code: 1,
            reason: "GATEWAY_UNREACHABLE",
            says: &[&endpoint, "refused"],
            advises: &["cnlab up", "--endpoint"],
        }
        .check(&answer)?;
        ensure!(answer.stdout.is_empty(), "{answer:?}");
    }
    place.nothing_runs()
}
