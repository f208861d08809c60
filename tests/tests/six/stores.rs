//! The loss of what Redis holds stops nothing, and after a crash of PostgreSQL every service
//! goes on with everything that was acknowledged.

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{wait_for, wait_until};
use cnlab_tests::{
    cli::Cli,
    six::{PATIENCE, SERVICES, Six},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{IMAGE, create, link, on_six, servers, show, wait_for_state};

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_redis_and_a_crash_of_postgres_stop_nothing() -> Result<()> {
    on_six(None, async |six| {
        let cli = six.admin().await?;
        let id = create(&cli, "held", "h100-25pct").await?;
        let jupyter = six.jupyter(&id)?;
        let pids: Vec<u32> = SERVICES.iter().map(|s| six.pid(s)).collect::<Result<_>>()?;

        wait_for_a_lease(six).await?;
        redis(six, "FLUSHALL").await?;
        // Renewed anew from the rows, at the next renewal.
        wait_for_a_lease(six).await?;
        still_ready(&cli).await?;

        six.redis().kill();
        let told = "leases were not renewed";
        wait_until(PATIENCE, "a renewal without Redis", async || {
            six.log_of("scheduler-svc")
                .is_ok_and(|log| log.contains(told))
        })
        .await?;
        still_ready(&cli).await?;
        // Even what is new needs no Redis.
        create(&cli, "without-redis", "a100-50pct").await?;
        six.redis().restart().await?;
        wait_for_a_lease(six).await?;
        still_ready(&cli).await?;
        ensure!(
            six.jupyter(&id)? == jupyter,
            "the loss of a lease ended a server"
        );

        postgres(six, &cli).await?;
        ensure!(
            six.jupyter(&id)? == jupyter,
            "the crash of the database ended a server"
        );
        let now: Vec<u32> = SERVICES.iter().map(|s| six.pid(s)).collect::<Result<_>>()?;
        ensure!(now == pids, "a service had to be started anew");
        Ok(())
    })
    .await
}

async fn still_ready(cli: &Cli) -> Result<()> {
    let server = show(cli, "held").await?;
    ensure!(server["state"] == "SERVER_STATE_READY", "{server}");
    Ok(())
}

/// A server that was acknowledged just before the crash is there after it, and becomes ready
/// without anybody's help.
async fn postgres(six: &mut Six, cli: &Cli) -> Result<()> {
    cli.ok(&[
        "server",
        "create",
        "--name",
        "just-before",
        "--image",
        IMAGE,
        "--profile",
        "l40s-block",
        "--storage",
        "1gb",
        "--no-wait",
    ])
    .await?;
    six.postgres().kill();
    let refused = cli.run(&["server", "list"]).await?;
    ensure!(
        refused.code != 0 && refused.stderr.contains("error["),
        "without its database the scheduler answered {refused:?}"
    );
    six.postgres().restart().await?;
    let names = wait_for(PATIENCE, "the list of servers", async || {
        let servers = servers(cli).await.ok()?;
        Some(
            servers
                .into_iter()
                .map(|[name, ..]| name)
                .collect::<Vec<_>>(),
        )
    })
    .await?;
    ensure!(
        names == ["held", "just-before", "without-redis"],
        "{names:?}"
    );
    wait_for_state(cli, "just-before", "READY").await?;
    still_ready(cli).await?;
    // Billing answers again too.
    ensure!(link(cli, "held").await?.starts_with("http://srv-"));
    cli.ok(&["server", "stop", "just-before"]).await?;
    cli.ok(&["server", "delete", "just-before", "--yes"])
        .await?;
    Ok(())
}

async fn wait_for_a_lease(six: &mut Six) -> Result<()> {
    let port = six.redis().port();
    wait_until(PATIENCE, "a lease in Redis", async || {
        ask(port, "DBSIZE")
            .await
            .is_ok_and(|answer| answer.starts_with(':') && answer != ":0")
    })
    .await
}

async fn redis(six: &mut Six, command: &str) -> Result<()> {
    let answer = ask(six.redis().port(), command).await?;
    ensure!(answer == "+OK", "{command}: {answer}");
    Ok(())
}

/// One command without arguments, and the one line that answers it.
async fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(format!("{command}\r\nQUIT\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    answer
        .lines()
        .next()
        .map(str::to_owned)
        .context("redis-server closed the connection")
}
