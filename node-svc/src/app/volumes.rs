//! Volumes: one folder each, owned by a user of its own.
//!
//! **Invariant**: a user id is given to one volume only, also after that volume was removed,
//! until the range is used up.

use std::{
    fs, io,
    ops::Range,
    os::unix::fs::{MetadataExt as _, lchown},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use cnlab_model::id::VolumeId;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::{
    config::ProcessConfig,
    disk::{self, Durability},
};

/// Names that begin so are being made or removed.
const PASSING: &str = ".passing-";

/// The folder of all volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    root: PathBuf,
    counter: PathBuf,
    /// `None` when all volumes belong to the node's own user.
    uids: Option<Range<u32>>,
    lock: Mutex<()>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Counter {
    next: u32,
}

/// A volume on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) path: PathBuf,
    pub(crate) uid: u32,
}

impl Volumes {
    pub(crate) fn open(
        root: PathBuf,
        counter: PathBuf,
        config: &ProcessConfig,
        own_users: bool,
    ) -> io::Result<Self> {
        disk::make_dir(&root, 0o711)?;
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PASSING) {
                disk::remove_dir(&entry.path())?;
            }
        }
        let last = config.first_uid.saturating_add(config.uid_count);
        Ok(Self {
            root,
            counter,
            uids: own_users.then_some(config.first_uid..last),
            lock: Mutex::new(()),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, volume: VolumeId) -> PathBuf {
        self.root.join(volume.to_string())
    }

    /// The volume, made if it is not there. Blocks.
    pub(crate) fn ensure(&self, volume: VolumeId) -> io::Result<Volume> {
        let _one_at_a_time = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(volume);
        let Some(range) = &self.uids else {
            disk::make_dir(&path, 0o700)?;
            let uid = geteuid().as_raw();
            return Ok(Volume { path, uid });
        };
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() && range.contains(&meta.uid()) => Ok(Volume {
                path,
                uid: meta.uid(),
            }),
            Ok(meta) if meta.is_dir() => {
                // From a node that ran as another user: everything in it changes hands.
                let uid = self.next_uid(range)?;
                give(&path, uid)?;
                Ok(Volume { path, uid })
            }
            Ok(_) => Err(io::Error::other(format!("{} is no folder", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let uid = self.next_uid(range)?;
                let new = self.root.join(format!("{PASSING}{volume}"));
                disk::remove_dir(&new)?;
                disk::make_dir(&new, 0o700)?;
                lchown(&new, Some(uid), Some(uid))?;
                fs::rename(&new, &path)?;
                Ok(Volume { path, uid })
            }
            Err(error) => Err(error),
        }
    }

    fn next_uid(&self, range: &Range<u32>) -> io::Result<u32> {
        let kept = disk::read_json::<Counter>(&self.counter)?.map_or(range.start, |kept| kept.next);
        // Volumes of another node on this data folder have taken ids too.
        let mut next = kept.max(range.start);
        for entry in fs::read_dir(&self.root)? {
            let uid = entry?.metadata()?.uid();
            if range.contains(&uid) {
                next = next.max(uid.saturating_add(1));
            }
        }
        if !range.contains(&next) {
            return Err(io::Error::other(format!(
                "all user ids from {} to {} are used up; raise process.uid_count",
                range.start, range.end
            )));
        }
        let counter = Counter {
            next: next.saturating_add(1),
        };
        disk::write_json(&self.counter, &counter, Durability::Synced)?;
        Ok(next)
    }

    /// Removes a volume; one that is gone is no error. Blocks.
    pub(crate) fn remove(&self, volume: VolumeId) -> io::Result<()> {
        let _one_at_a_time = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let away = self.root.join(format!("{PASSING}{volume}"));
        disk::remove_dir(&away)?;
        match fs::rename(self.path(volume), &away) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        disk::remove_dir(&away)
    }

    /// Bytes on disk of a volume. Blocks.
    pub(crate) fn used(&self, volume: VolumeId) -> io::Result<u64> {
        let path = self.path(volume);
        let device = fs::symlink_metadata(&path)?.dev();
        let mut used: u64 = 0;
        let mut folders = vec![path];
        while let Some(folder) = folders.pop() {
            // What disappears while this looks is not there any more.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                let Ok(meta) = entry.path().symlink_metadata() else {
                    continue;
                };
                used = used.saturating_add(meta.blocks().saturating_mul(512));
                if meta.is_dir() && meta.dev() == device {
                    folders.push(entry.path());
                }
            }
        }
        Ok(used)
    }
}

/// Gives a folder and everything in it to a user. Links are not followed.
fn give(path: &Path, uid: u32) -> io::Result<()> {
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            lchown(&path, Some(uid), Some(uid))?;
            if path.symlink_metadata()?.is_dir() {
                folders.push(path);
            }
        }
    }
    lchown(path, Some(uid), Some(uid))
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::Ulid;

    use super::*;

    fn volume(n: u128) -> VolumeId {
        VolumeId::from_ulid(Ulid(n))
    }

    fn open(folder: &Path, count: u32) -> Volumes {
        let config = ProcessConfig {
            uid_count: count,
            ..ProcessConfig::default()
        };
        let own_users = geteuid().is_root();
        Volumes::open(
            folder.join("volumes"),
            folder.join("uids.json"),
            &config,
            own_users,
        )
        .unwrap()
    }

    #[test]
    fn a_volume_keeps_its_user_and_no_other_gets_it() {
        assert!(
            geteuid().is_root(),
            "this test gives folders to other users: run it as root"
        );
        let folder = tempfile::tempdir().unwrap();
        let volumes = open(folder.path(), 3);
        let one = volumes.ensure(volume(1)).unwrap();
        let two = volumes.ensure(volume(2)).unwrap();
        assert_ne!(one.uid, two.uid);
        fs::write(one.path.join("file"), "kept").unwrap();
        let again = open(folder.path(), 3);
        assert_eq!(again.ensure(volume(1)).unwrap(), one);
        again.remove(volume(2)).unwrap();
        again.remove(volume(2)).unwrap();
        let three = again.ensure(volume(3)).unwrap();
        assert!(three.uid != one.uid && three.uid != two.uid);
        let error = again.ensure(volume(4)).unwrap_err().to_string();
        assert!(error.contains("uid_count"), "{error}");
        assert!(again.used(volume(1)).unwrap() >= 4096);
        assert_eq!(fs::read_dir(again.root()).unwrap().count(), 2);
    }
}
