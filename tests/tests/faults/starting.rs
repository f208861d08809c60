//! A stack that cannot start: the folder or port is taken, a database is damaged, the GPUs
//! are not there.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::{free_port, wait_until};
use cnlab_tests::stack::{http_get, signal};

use crate::{
    Refusal,
    place::{PATIENCE, Place, refused_start},
};

const DATABASES: [&str; 4] = ["billing-svc", "migration-svc", "cloud-svc", "scheduler-svc"];

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_or_a_port_that_is_taken() -> Result<()> {
    let mut place = Place::with_a_record().await?;
    let before = place.idle().await?;
    let pid = place.up.as_ref().context("it runs")?.pid()?.to_string();
    let data = place.data().display().to_string();

    let other_port = free_port()?;
    let second = refused_start(&place.cli, place.data(), other_port, "simulated").await?;
    Refusal {
        code: 1,
        reason: "START_FAILED",
        says: &[&data, &pid, "in use by another cnlab up"],
        advises: &["--data-dir"],
    }
    .check(&second)?;
    drop(TcpListener::bind((Ipv4Addr::LOCALHOST, other_port)).context("its port is still open")?);

    let other = place.beside("other");
    let taken = refused_start(&place.cli, &other, place.port, "simulated").await?;
    let port = place.port.to_string();
    Refusal {
        code: 1,
        reason: "START_FAILED",
        says: &[&format!("127.0.0.1:{port}"), "in use"],
        advises: &[&port],
    }
    .check(&taken)?;
    ensure!(
        databases(&other)?.is_empty(),
        "a start that was refused made databases"
    );

    // Whoever was there first did not notice.
    place.unchanged_since(&before).await?;
    place.stop().await?;
    // And both folders are good for a start.
    place.start().await?;
    place.unchanged_since(&before).await?;
    place.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_named_and_left_alone() -> Result<()> {
    let mut place = Place::with_a_record().await?;
    let before = place.records().await?;
    place.stop().await?;
    let db = place.data().join("db");
    let damaged = |good: &[u8]| {
        [
            ("damaged", vec![b'?'; good.len()]),
            ("damaged", good[..good.len() / 2 + 7].to_vec()),
            ("empty", Vec::new()),
        ]
    };
    for service in DATABASES {
        let file = db.join(format!("{service}.sqlite"));
        let good = fs::read(&file)?;
        for (word, bytes) in damaged(&good) {
            fs::write(&file, &bytes)?;
            let others = databases_but(&db, service)?;
            let answer = place.refused_start().await?;
            Refusal {
                code: 1,
                reason: "START_FAILED",
                says: &[path(&file)?, word],
                advises: &[path(&file)?, "backup"],
            }
            .check(&answer)?;
            ensure!(
                fs::read(&file)? == bytes,
                "{service}: the damaged file was written to"
            );
            ensure!(
                databases_but(&db, service)? == others,
                "{service}: another database is gone"
            );
            place.nothing_runs()?;
            for rest in ["-wal", "-shm"] {
                // As the advice has it, where the refused start has left them.
                drop(fs::remove_file(db.join(format!("{service}.sqlite{rest}"))));
            }
        }
        fs::write(&file, good)?;
    }
    // Restored from a backup, nothing is missing.
    place.start().await?;
    ensure!(place.records().await? == before);
    place.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nvml_where_there_is_none() -> Result<()> {
    let place = Place::new()?;
    if Path::new("/proc/driver/nvidia/version").exists() {
        // The counter-check: where NVML is, the same command starts.
        let (data, port) = (path(place.data())?.to_owned(), place.port.to_string());
        let mut up = place
            .cli
            .command(&["up", "--data-dir", &data, "--port", &port, "--gpu", "nvml"])
            .spawn()?;
        wait_until(PATIENCE, "the stack", async || {
            http_get(place.port, "127.0.0.1", "/readyz")
                .await
                .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await?;
        signal(i32::try_from(up.id().context("it ended")?)?, "INT").await?;
        ensure!(up.wait().await?.success());
        return place.nothing_runs();
    }
    let answer = refused_start(&place.cli, place.data(), place.port, "nvml").await?;
    Refusal {
        code: 1,
        reason: "START_FAILED",
        says: &["NVIDIA driver library"],
        advises: &["install the NVIDIA driver", "--gpu simulated"],
    }
    .check(&answer)?;
    let twice = answer.stderr.matches("libnvidia-ml.so.1").count() > 2;
    ensure!(!twice, "the same cause twice: {answer:?}");
    place.nothing_runs()?;
    // The folder is as good as new.
    let mut place = place;
    place.start().await?;
    place.idle().await?;
    place.end().await
}

fn path(file: &Path) -> Result<&str> {
    file.to_str().context("a folder with an odd name")
}

/// The names of all database files.
fn databases(data: &Path) -> Result<Vec<String>> {
    Ok(fs::read_dir(data.join("db"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

/// The database files of the other services, in order.
fn databases_but(db: &Path, service: &str) -> Result<Vec<String>> {
    let mut names: Vec<_> = fs::read_dir(db)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".sqlite") && !name.starts_with(service))
        .collect();
    names.sort();
    Ok(names)
}
