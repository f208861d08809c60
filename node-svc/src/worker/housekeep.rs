//! Keeps logs within their limit, measures volumes, and forgets old stops, once a minute.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    sync::Arc,
    time::Duration,
};

use cnlab_service::Next;

use crate::{
    app::{Node, life::Life, storage_sentence},
    disk,
};

const EVERY: Duration = Duration::from_secs(60);

/// Looks after what grows.
#[derive(Debug)]
pub(super) struct Housekeep {
    node: Arc<Node>,
}

impl Housekeep {
    pub(super) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    pub(super) async fn tick(&self) -> Next {
        for life in self.node.all_lives() {
            if life.is_over() {
                continue;
            }
            let node = Arc::clone(&self.node);
            let looked = tokio::task::spawn_blocking(move || look(&node, &life)).await;
            if let Ok(Err(error)) = looked {
                tracing::warn!(%error, "a workload could not be looked after");
            }
        }
        let node = Arc::clone(&self.node);
        let forgot = tokio::task::spawn_blocking(move || node.forget_buried()).await;
        if let Err(error) = forgot {
            tracing::warn!(%error, "stops could not be cleared away");
        }
        Next::After(EVERY)
    }
}

fn look(node: &Node, life: &Life) -> io::Result<()> {
    begin_anew(&life.folder.join("log"), node.config.process.log_limit.0)?;
    let record = life.snapshot().record;
    let Some(launch) = record.launch.filter(|_| record.handle.is_some()) else {
        return Ok(());
    };
    let used = node.volumes.used(launch.volume)?;
    let changed = life.update(node.runtime.clock.now(), |state| {
        state.record.facts.storage = storage_sentence(Some(used), launch.storage_bytes);
    });
    if changed {
        if used > launch.storage_bytes {
            tracing::warn!(workload = %life.holder.workload, used, wanted = launch.storage_bytes, "a volume is larger than was asked for");
        }
        node.changed(life);
    }
    Ok(())
}

/// Moves a log's content aside when it is too long. The process has it open for appending, so
/// the file itself stays.
fn begin_anew(log: &Path, limit: u64) -> io::Result<()> {
    let length = match log.metadata() {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if length <= limit {
        return Ok(());
    }
    let older = log.with_extension("older");
    // The file belongs to the tenant, who may have made it a terabyte of nothing, or writes as
    // fast as we copy: its last part is kept, and it is cut whether or not that worked.
    let kept = keep_end(log, &older, length, limit);
    OpenOptions::new().write(true).open(log)?.set_len(0)?;
    kept
}

fn keep_end(log: &Path, older: &Path, length: u64, limit: u64) -> io::Result<()> {
    disk::remove_file(older)?;
    let mut from = File::open(log)?;
    from.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    io::copy(&mut from.take(limit), &mut File::create(older)?).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use cnlab_model::{Timestamp, id::Ulid};
    use cnlab_service::{
        Runtime,
        runtime::{SeededIds, TestClock},
    };
    use node_core::{Holder, WorkloadId};

    use super::*;

    #[tokio::test]
    async fn a_stop_without_a_launch_is_forgotten_in_time() {
        let data = tempfile::tempdir().unwrap();
        let clock = TestClock::at(Timestamp(1));
        let runtime = Runtime::for_tests(clock.clone(), SeededIds::new(1));
        let node = Node::simulated(data.path(), runtime).await;
        let holder = Holder {
            workload: WorkloadId::Server(cnlab_model::id::ServerId::from_ulid(Ulid(1))),
            fence: 1,
        };
        node.stop(holder).await.unwrap();
        let housekeep = Housekeep::new(Arc::clone(&node));
        clock.advance(Duration::from_secs(3_000));
        housekeep.tick().await;
        let life = node.get(holder.workload).unwrap();
        assert!(life.folder.is_dir());
        clock.advance(Duration::from_secs(600));
        housekeep.tick().await;
        assert!(node.get(holder.workload).is_err());
        assert!(!life.folder.exists());
    }

    #[test]
    fn a_long_log_is_begun_anew_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        begin_anew(&path, 10).unwrap();
        let mut writer = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        writer.write_all(b"0123456789").unwrap();
        begin_anew(&path, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 10);
        writer.write_all(b"x").unwrap();
        begin_anew(&path, 10).unwrap();
        writer.write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
        let older = std::fs::read(folder.path().join("log.older")).unwrap();
        assert_eq!(older, b"123456789x", "the last part, as long as the limit");
    }
}
