//! The launchers against the real programs, and what is left after them.

use std::process::{Command, Stdio};
use std::time::Duration;

use cnlab_testkit::{
    ChildGuard, GENEROUS, PostgresServer, RedisServer, ScratchDir, Signal, find_program, free_port,
    marked, tied_command, tree_of, wait_for, wait_until,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn redis(server: &RedisServer, command: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await?;
    stream
        .write_all(format!("{command}\r\nQUIT\r\n").as_bytes())
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn redis_restarts_empty_on_its_port() {
    let mut server = RedisServer::start().await.unwrap();
    let url = server.url();
    assert_eq!(redis(&server, "SET a 1").await.unwrap(), "+OK");
    server.kill();
    assert!(redis(&server, "GET a").await.is_err());
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(redis(&server, "GET a").await.unwrap(), "$-1");
}

#[tokio::test]
async fn a_paused_redis_answers_only_after_it_was_resumed() {
    let server = RedisServer::start().await.unwrap();
    server.pause().unwrap();
    // The kernel still accepts the connection; only the program does not answer.
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0_u8; 7];
    let silent = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut answer)).await;
    assert!(silent.is_err());
    server.resume().unwrap();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[tokio::test]
async fn postgres_gives_each_test_an_empty_database() {
    let server = PostgresServer::shared().await.unwrap();
    let (one, two) = tokio::join!(server.create_database(), server.create_database());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one, two);
    server
        .query(&one, "create table t (n int); insert into t values (7)")
        .await
        .unwrap();
    assert_eq!(server.query(&one, "select n from t").await.unwrap(), "7");
    let missing = server.query(&two, "select n from t").await.unwrap_err();
    assert!(missing.to_string().contains("does not exist"), "{missing}");
}

#[tokio::test]
async fn postgres_keeps_its_data_over_a_crash() {
    let mut server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    server.query(&url, "create table t (n int)").await.unwrap();
    server.kill();
    assert!(server.query(&url, "select 1").await.is_err());
    server.restart().await.unwrap();
    assert_eq!(
        server.query(&url, "select count(*) from t").await.unwrap(),
        "0"
    );
}

/// In the environment of a test process that is to be killed.
const MARK: &str = "CNLAB_TESTKIT_HOLDER";

/// By itself it shows that both servers run side by side; the next test also runs it in a process
/// of its own, where it stays until that is killed.
#[tokio::test]
async fn servers_run_side_by_side() {
    let redis = RedisServer::start().await.unwrap();
    let postgres = PostgresServer::shared().await.unwrap();
    let scratch = ScratchDir::new("held").unwrap();
    assert_ne!(redis.port(), postgres.port());
    if std::env::var_os(MARK).is_some() {
        println!("holding {}", scratch.path().display());
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn everything_ends_with_a_killed_test_process() {
    let mark = format!("{}-{}", std::process::id(), free_port().unwrap());
    let temporary = ScratchDir::new("holder").unwrap();
    // The postgres user must be able to pass through.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(temporary.path(), mode).unwrap();
    let output = temporary.path().join("output");
    let mut command = tied_command(std::env::current_exe().unwrap(), Signal::SIGKILL);
    command
        .args(["--exact", "servers_run_side_by_side", "--nocapture"])
        .env("TMPDIR", temporary.path())
        .env(MARK, &mark)
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(Stdio::null());
    let holder = ChildGuard::spawn(command).unwrap();
    wait_until(GENEROUS, "the holder to start its servers", async || {
        std::fs::read_to_string(&output).is_ok_and(|text| text.contains("holding "))
    })
    .await
    .unwrap();
    let commands = |all: Vec<cnlab_testkit::ProcessEntry>| {
        all.into_iter()
            .map(|process| process.command)
            .collect::<Vec<_>>()
    };
    let below = commands(tree_of(holder.pid()));
    for part in ["redis-server", "postgres", "cnlab-testkit-sweeper"] {
        assert!(
            below.iter().any(|line| line.contains(part)),
            "no {part} in {below:?}"
        );
    }

    holder.signal(Signal::SIGKILL).unwrap();

    wait_until(GENEROUS, "the holder's processes to end", async || {
        marked(MARK, &mark).unwrap().is_empty()
    })
    .await
    .unwrap_or_else(|late| panic!("{late}: {:?}", commands(marked(MARK, &mark).unwrap())));
    let left: Vec<_> = std::fs::read_dir(temporary.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "output")
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[tokio::test]
async fn a_guard_ends_the_whole_tree() {
    let mut command = tied_command("sh", Signal::SIGKILL);
    // setsid leaves the group; the guard must find it all the same.
    command
        .args(["-c", "setsid sleep 600 & sleep 600 & wait"])
        .stdin(Stdio::null());
    let guard = ChildGuard::spawn(command).unwrap();
    let below = wait_for(GENEROUS, "both sleeps", async || {
        let below: Vec<_> = tree_of(guard.pid())
            .into_iter()
            .filter(|process| process.command.starts_with("sleep"))
            .collect();
        (below.len() == 2).then_some(below)
    })
    .await
    .unwrap();
    assert!(below.iter().all(cnlab_testkit::ProcessEntry::is_alive));
    drop(guard);
    wait_until(GENEROUS, "the sleeps to end", async || {
        !below.iter().any(cnlab_testkit::ProcessEntry::is_alive)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_child_outlives_the_thread_that_asked_for_it() {
    let guard = std::thread::spawn(|| {
        let mut command = tied_command("sleep", Signal::SIGKILL);
        command.arg("600");
        ChildGuard::spawn(command).unwrap()
    })
    .join()
    .unwrap();
    let mut seen = 0;
    wait_until(
        GENEROUS,
        "the child to be seen alive several times",
        async || {
            assert!(std::path::Path::new(&format!("/proc/{}", guard.pid())).exists());
            seen += 1;
            seen > 5
        },
    )
    .await
    .unwrap();
    assert!(guard.signal(Signal::SIGCONT).is_ok());
}

#[test]
fn a_missing_program_names_its_package() {
    let error = find_program("no-such-program", "no-such-package").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("apt-get install no-such-package"),
        "{error}"
    );
}

#[test]
fn ports_are_handed_out_once() {
    let mut ports: Vec<_> = (0..50).map(|_| free_port().unwrap()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
    assert!(Command::new("true").status().is_ok());
}
