//! A disk without space: at the start, while the stack runs, and under a build.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use cnlab_testkit::ScratchDir;
use cnlab_tests::cli::Cli;

use crate::{Refusal, create, place::Place};

/// A small file system of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, size: &str) -> Result<Self> {
        fs::create_dir_all(&at)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .status()?;
        ensure!(
            mounted.success(),
            "this test mounts a small tmpfs: run it as root"
        );
        Ok(Self(at))
    }

    /// Writes until nothing more fits.
    fn fill(&self) -> Result<()> {
        let mut file = fs::File::create(self.0.join("filler"))?;
        let chunk = vec![0_u8; 64 << 10];
        while file.write_all(&chunk).is_ok() {}
        // What is smaller than a chunk.
        while file.write_all(b"0").is_ok() {}
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("filler"))?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process of a test that failed may still have a file open.
        let gone = Command::new("umount").arg("--lazy").arg(&self.0).status();
        drop(gone);
    }
}

/// A place whose data folder is on a disk of this size.
fn on_a_small_disk(size: &str) -> Result<(SmallDisk, Place)> {
    let scratch = ScratchDir::new("faults")?;
    let disk = SmallDisk::mount(scratch.path().join("disk"), size)?;
    let data = scratch.path().join("disk/data");
    let place = Place::at(scratch, data, Cli::new()?)?;
    Ok((disk, place))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a folder with an odd name")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk() -> Result<()> {
    let (disk, mut place) = on_a_small_disk("96m")?;
    disk.fill()?;
    let refused = |answer| {
        Refusal {
            code: 1,
            reason: "START_FAILED",
            says: &[text(place.data())?],
            advises: &["free", "space", "--data-dir"],
        }
        .check(&answer)
    };
    refused(place.refused_start().await?)?;
    place.nothing_runs()?;
    // As soon as there is space, the same folder does.
    disk.free()?;
    place.start().await?;
    place.idle().await?;
    place.stop().await?;
    // And it is refused again without harm.
    disk.fill()?;
    let answer = place.refused_start().await?;
    Refusal {
        code: 1,
        reason: "START_FAILED",
        says: &["full"],
        advises: &["free some space"],
    }
    .check(&answer)?;
    place.nothing_runs()?;
    disk.free()?;
    place.start().await?;
    place.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_becomes_full() -> Result<()> {
    // More than a start wants, and less than an environment takes.
    let (disk, mut place) = on_a_small_disk("72m")?;
    place.start().await?;
    let expected = Refusal {
        code: 1,
        reason: "DISK_FULL",
        says: &["the disk is full"],
        advises: &["free space"],
    };
    expected.check(&place.cli.run(&create("kept", &[])).await?)?;
    let before = place.idle().await?;

    disk.fill()?;
    let database = place.data().join("db/scheduler-svc.sqlite");
    for command in [
        create("fresh", &["--no-wait"]),
        vec!["server", "start", "kept", "--no-wait"],
        vec!["server", "delete", "kept", "-y"],
    ] {
        let answer = place.cli.run(&command).await?;
        Refusal {
            code: 1,
            reason: "DATABASE_FULL",
            says: &[text(&database)?],
            advises: &["free space"],
        }
        .check(&answer)?;
        let same = place.unchanged_since(&before).await;
        same.with_context(|| format!("{command:?}"))?;
    }
    // Killed on a full disk, it finds everything again once there is space.
    place.kill().await?;
    let answer = place.refused_start().await?;
    ensure!(
        answer.code == 1 && answer.stderr.contains("full"),
        "{answer:?}"
    );
    disk.free()?;
    place.start().await?;
    place.unchanged_since(&before).await?;
    expected.check(&place.cli.run(&["server", "start", "kept"]).await?)?;
    place.cli.ok(&["server", "delete", "kept", "-y"]).await?;
    place.idle().await?;
    place.end().await
}
