//! What can happen to an SQLite file: a crash, damage, a full disk, a folder that is not there.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cnlab_db::{DatabaseConfig, Db, DbError, kit_migrations, migrate, outbox};
use cnlab_model::{ErrorKind, Fault, Timestamp};
use cnlab_testkit::{ScratchDir, find_program};
use sea_orm::ConnectionTrait;
use sea_orm_migration::{MigrationTrait, MigratorTrait};

struct Tables;

impl MigratorTrait for Tables {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        kit_migrations()
    }
}

fn writer() -> PathBuf {
    // target/debug/deps/sqlite_file-… -> target/debug/examples/sqlite_writer
    let this = std::env::current_exe().unwrap();
    let program = this
        .parent()
        .unwrap()
        .with_file_name("examples")
        .join("sqlite_writer");
    assert!(
        program.is_file(),
        "this test needs the example sqlite_writer: run cargo test -p cnlab-db"
    );
    program
}

async fn open(file: &Path) -> Result<Db, DbError> {
    let db = Db::connect(&DatabaseConfig::sqlite(file)).await?;
    migrate::<Tables>(&db).await?;
    Ok(db)
}

/// A database with some rows, checkpointed and closed.
async fn made(file: &Path) {
    let db = open(file).await.unwrap();
    for number in 0..50 {
        db.write(|tx| async move {
            let message = outbox::NewMessage {
                topic: "test".to_owned(),
                aggregate: number.to_string(),
                destination: "test".to_owned(),
                payload: serde_json::Value::String("x".repeat(1_000)),
                traceparent: None,
                now: Timestamp(0),
            };
            outbox::push(&tx, message).await
        })
        .await
        .unwrap();
    }
    db.close().await;
}

fn assert_names_file(error: &DbError, file: &Path) {
    let path = file.to_str().unwrap();
    assert_eq!(error.reason(), "DATABASE_CORRUPT", "{error:?}");
    assert!(error.to_string().contains(path), "{error}");
    let hint = error.try_this().unwrap();
    assert!(hint.contains(&format!("{path}-wal")), "{hint}");
    assert!(hint.contains("backup"), "{hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_truncation_give_one_error_that_names_the_file() {
    let dir = ScratchDir::new("db").unwrap();
    for (name, damage) in [
        (
            "garbage",
            &(|bytes: &mut Vec<u8>| bytes.fill(b'?')) as &dyn Fn(&mut Vec<u8>),
        ),
        ("header", &|bytes| bytes[..16].fill(0)),
        ("truncated", &|bytes| bytes.truncate(bytes.len() / 2)),
        ("cut", &|bytes| bytes.truncate(50)),
        ("schema", &|bytes| bytes[100..4096].fill(0xff)),
    ] {
        let file = dir.path().join(format!("{name}.sqlite"));
        made(&file).await;
        let mut bytes = std::fs::read(&file).unwrap();
        damage(&mut bytes);
        std::fs::write(&file, &bytes).unwrap();
        let error = Db::connect(&DatabaseConfig::sqlite(&file))
            .await
            .unwrap_err();
        assert_names_file(&error, &file);
        assert_eq!(
            std::fs::read(&file).unwrap(),
            bytes,
            "{name}: the file is left as it was"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_inside_a_table_names_the_file_when_it_is_read() {
    let dir = ScratchDir::new("db").unwrap();
    let file = dir.path().join("rows.sqlite");
    made(&file).await;
    let length = std::fs::metadata(&file).unwrap().len();
    let mut bytes = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    // All but the first page, which holds the list of tables.
    bytes.seek(SeekFrom::Start(4_096)).unwrap();
    let rest = usize::try_from(length - 4_096).unwrap();
    bytes.write_all(&vec![0xab; rest]).unwrap();
    drop(bytes);

    let db = Db::connect(&DatabaseConfig::sqlite(&file)).await.unwrap();
    let read = db
        .read()
        .execute_unprepared("SELECT sum(length(payload)) FROM outbox")
        .await;
    assert_names_file(&read.unwrap_err().into(), &file);
    let room = outbox::Room::for_any(10);
    let written = outbox::claim(&db, "me", Timestamp(1), Timestamp(2), &room).await;
    assert_names_file(&written.unwrap_err(), &file);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_is_a_new_database() {
    let dir = ScratchDir::new("db").unwrap();
    let file = dir.path().join("empty.sqlite");
    std::fs::write(&file, b"").unwrap();
    open(&file).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_folder_is_named() {
    let dir = ScratchDir::new("db").unwrap();
    let file = dir.path().join("absent/store.sqlite");
    let error = open(&file).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(
        error.to_string().contains(file.to_str().unwrap()),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_loses_nothing_acknowledged() {
    let dir = ScratchDir::new("db").unwrap();
    let file = dir.path().join("crash.sqlite");
    let mut acknowledged = 0_u64;
    for round in 1..=5_usize {
        let mut child = Command::new(writer())
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let read = lines
            .by_ref()
            .take(round * 40)
            .filter(Result::is_ok)
            .count();
        assert_eq!(read, round * 40);
        child.kill().unwrap();
        child.wait().unwrap();
        // What was still in the pipe was acknowledged as well; a torn last line was not.
        acknowledged += u64::try_from(read + lines.map_while(Result::ok).count()).unwrap();

        let db = open(&file).await.unwrap();
        let stored = outbox::waiting(&db).await.unwrap();
        // At most one transaction per round was committed without being acknowledged.
        let rounds = u64::try_from(round).unwrap();
        assert!(
            (acknowledged..=acknowledged + rounds).contains(&stored),
            "{stored} rows, {acknowledged} acknowledged"
        );
        db.close().await;
    }
}

#[test]
fn a_full_disk_is_one_clear_error_and_loses_nothing() {
    let unshare = find_program("unshare", "util-linux").unwrap();
    let dir = ScratchDir::new("db").unwrap();
    // A private mount namespace: the small file system goes away with the processes in it.
    // The second run finds the disk still full; the third waits for room and goes on.
    let script = r#"
        wait_for() {
            tries=0
            until "$@"; do
                tries=$((tries + 1))
                [ "$tries" -lt 600 ] || { kill "$pid"; exit 8; }
                sleep 0.1
            done
        }
        full() { grep -q DATABASE_FULL "$3/third"; }
        goes_on() { tail -n 1 "$3/third" | grep -q '^[0-9]'; }
        mount -t tmpfs -o size=2m tmpfs "$1" || exit 9
        "$2" "$1/full.sqlite" > "$3/first"
        "$2" "$1/full.sqlite" > "$3/second"
        "$2" "$1/full.sqlite" patient > "$3/third" &
        pid=$!
        wait_for full "$@"
        mount -o remount,size=64m "$1" || exit 9
        wait_for goes_on "$@"
        kill "$pid"
        exit 0
    "#;
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let status = Command::new(unshare)
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(&disk)
        .arg(writer())
        .arg(dir.path())
        .status()
        .unwrap();
    assert_ne!(
        status.code(),
        Some(9),
        "this test needs the right to mount (root or CAP_SYS_ADMIN)"
    );
    assert!(status.success(), "{status}");

    let full = disk.join("full.sqlite");
    let run = |name: &str| {
        let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (mut ids, mut errors) = (Vec::<i64>::new(), Vec::new());
        for line in text.lines() {
            match line.parse() {
                Ok(id) => ids.push(id),
                Err(_) => errors.push(line.to_owned()),
            }
        }
        for error in &errors {
            assert!(error.starts_with("DATABASE_FULL: "), "{name}: {error}");
            assert!(error.contains(full.to_str().unwrap()), "{name}: {error}");
            assert!(error.contains("free space"), "{name}: {error}");
        }
        assert!(!errors.is_empty(), "{name} never found the disk full");
        ids
    };
    let mut ids = run("first");
    assert!(!ids.is_empty());
    ids.extend(run("second"));
    let before = ids.len();
    ids.extend(run("third"));
    assert!(ids.len() > before, "it goes on once there is room");
    // Ids continue after the last stored row, so a lost one would be given out again.
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
}
