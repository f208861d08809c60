//! The use case of ending: one workload when asked, or everything.
//!
//! **Invariants**
//! - After a stop of a fence was answered, no life of the workload up to that fence runs or will.
//! - Launches and stops are admitted one after another, under the book's lock.

use std::{
    cmp::Ordering,
    sync::{Arc, PoisonError},
    time::Duration,
};

use node_core::{Event, Holder, Phase};

use super::{
    Node,
    drive::Begin,
    life::{Life, Record, Snapshot},
};
use crate::{
    disk::Durability,
    error::{NodeError, storage},
};

/// How long a stop that came before its launch is remembered: far longer than any launch is on
/// its way.
const REMEMBERED: Duration = Duration::from_secs(3_600);

impl Node {
    /// Ends a workload and answers when its processes are gone and its slice is free.
    ///
    /// A stop that comes before its launch ends what earlier lives run, and is remembered, so
    /// that the late launch finds itself stopped.
    ///
    /// # Errors
    /// When the fence is that of an older life, or the disk refuses.
    pub(crate) async fn stop(self: &Arc<Self>, holder: Holder) -> Result<Snapshot, NodeError> {
        let node = Arc::clone(self);
        let (life, is_new) =
            tokio::task::spawn_blocking(move || node.life_to_stop(holder)).await??;
        if !life.is_over() {
            if is_new {
                self.spawn_driver(Arc::clone(&life), Begin::New);
            } else {
                self.ask_to_stop(&life).await;
            }
            life.over().await;
        }
        Ok(life.snapshot())
    }

    /// The life that a stop is for, and whether it was made for the stop, without a launch.
    fn life_to_stop(&self, holder: Holder) -> Result<(Arc<Life>, bool), NodeError> {
        // A launch of the same fence either is known before this, or finds what is made here.
        let _admission = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = self.newest(holder.workload) {
            match newest.holder.fence.cmp(&holder.fence) {
                Ordering::Less => {}
                Ordering::Equal => return Ok((newest, false)),
                Ordering::Greater => {
                    return Err(NodeError::FenceTooLow {
                        fence: holder.fence,
                        seen: newest.holder.fence,
                    });
                }
            }
        }
        let mut record = Record::new(holder, None, None, self.runtime.clock.now());
        record.phase = if self.earlier(holder).is_empty() {
            Phase::Stopped
        } else {
            Phase::Stopping
        };
        let life = Arc::new(Life::new(self.life_folder(holder), record, String::new()));
        life.keep(Durability::Synced).map_err(storage("the stop"))?;
        self.lives().insert(holder, Arc::clone(&life));
        Ok((life, true))
    }

    /// Forgets stops that no launch followed, once their launch cannot be on its way any more.
    /// Blocks.
    pub(crate) fn forget_buried(&self) {
        let _admission = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.runtime.clock.now();
        for life in self.all_lives() {
            let record = life.snapshot().record;
            if record.launch.is_none()
                && life.is_over()
                && record.changed_at.plus(REMEMBERED) <= now
                && let Err(error) = self.forget(&life)
            {
                tracing::warn!(%error, "a stop without a launch could not be cleared away");
            }
        }
    }

    /// Lives of the same workload with lower fences that are not over.
    fn earlier(&self, holder: Holder) -> Vec<Arc<Life>> {
        let first = Holder { fence: 0, ..holder };
        self.lives()
            .range(first..holder)
            .filter(|(_, life)| !life.is_over())
            .map(|(_, life)| Arc::clone(life))
            .collect()
    }

    /// Ends every earlier life of a workload, and waits until all are over.
    pub(super) async fn end_earlier(&self, holder: Holder) {
        self.end_these(&self.earlier(holder)).await;
    }

    /// Marks a life as being stopped and tells its driver; does not wait.
    pub(crate) async fn ask_to_stop(&self, life: &Arc<Life>) {
        self.tell(life, Event::StopAsked, "ending its processes", |_| {})
            .await;
        life.stop.cancel();
    }

    /// Ends everything that runs here. Called at an orderly shutdown.
    pub(crate) async fn end_all(self: &Arc<Self>) {
        let running: Vec<_> = self
            .all_lives()
            .into_iter()
            .filter(|life| !life.is_over())
            .collect();
        self.end_these(&running).await;
    }

    async fn end_these(&self, lives: &[Arc<Life>]) {
        for life in lives {
            self.ask_to_stop(life).await;
        }
        for life in lives {
            life.over().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use cnlab_model::id::{ServerId, Ulid, VolumeId};
    use cnlab_service::Runtime;
    use node_core::{Slice, WorkloadId};

    use super::*;
    use crate::{app::life::Launch, disk};

    fn holder(n: u8, fence: u64) -> Holder {
        Holder {
            workload: WorkloadId::Server(ServerId::from_ulid(Ulid(n.into()))),
            fence,
        }
    }

    fn launch(node: &Node) -> Launch {
        Launch {
            slices: vec![Slice {
                gpu: node.gpus().facts()[0].uuid.clone(),
                blocks: "0-24".parse().unwrap(),
                vram_bytes: 1 << 30,
            }],
            image: "tests:none".to_owned(),
            packages: vec!["six".to_owned()],
            heavy_packages: Vec::new(),
            install_heavy: false,
            volume: VolumeId::from_ulid(Ulid(1)),
            storage_bytes: 1,
            memory_bytes: 0,
            cpu_milli: 0,
            hostname: "tests".to_owned(),
            command: None,
        }
    }

    #[tokio::test]
    async fn a_stop_and_its_launch_agree_whoever_comes_first() {
        let data = tempfile::tempdir().unwrap();
        let node = Node::simulated(data.path(), Runtime::system()).await;
        for n in 1..60_u8 {
            let holder = holder(n, n.into());
            let (one, two) = (Arc::clone(&node), Arc::clone(&node));
            let launch = launch(&node);
            let (launched, stopped) = tokio::join!(
                tokio::task::spawn_blocking(move || one.admit(holder, launch, None)),
                tokio::task::spawn_blocking(move || two.life_to_stop(holder)),
            );
            let (launched, stopped) = (launched.unwrap().unwrap(), stopped.unwrap().unwrap());
            assert!(Arc::ptr_eq(&launched.0, &stopped.0), "two lives of a fence");
            assert_ne!(launched.1, stopped.1, "one of them makes it");
            let kept: Record = disk::read_json(&launched.0.folder.join("record.json"))
                .unwrap()
                .unwrap();
            assert_eq!(kept, launched.0.snapshot().record);
        }
    }

    #[tokio::test]
    async fn a_stop_is_over_only_when_every_earlier_life_is() {
        let data = tempfile::tempdir().unwrap();
        let node = Node::simulated(data.path(), Runtime::system()).await;
        // No driver: it runs until this test says that it is over.
        let (older, _) = node.admit(holder(1, 4), launch(&node), None).unwrap();
        let asked = Arc::clone(&node);
        let stop = node
            .runtime
            .tasks
            .spawn("stop", async move { asked.stop(holder(1, 6)).await });
        tokio::time::timeout(cnlab_testkit::GENEROUS, older.stop.cancelled())
            .await
            .expect("the earlier life is asked to end");
        let buried = node.newest(holder(1, 6).workload).unwrap();
        assert_eq!((buried.holder.fence, buried.phase()), (6, Phase::Stopping));
        // The late launches find themselves too late.
        let (late, is_new) = node.admit(holder(1, 6), launch(&node), None).unwrap();
        assert!(Arc::ptr_eq(&late, &buried) && !is_new);
        let refused = node.admit(holder(1, 5), launch(&node), None).unwrap_err();
        assert!(matches!(refused, NodeError::FenceTooLow { seen: 6, .. }));
        assert!(!stop.is_finished());

        older.set_over();
        let stopped = tokio::time::timeout(cnlab_testkit::GENEROUS, stop).await;
        let stopped = stopped.expect("the stop ends").unwrap().unwrap();
        assert_eq!(stopped.record.phase, Phase::Stopped);
        assert_eq!(stopped.record.holder, holder(1, 6));
        let refused = node.stop(holder(1, 5)).await.unwrap_err();
        assert!(matches!(refused, NodeError::FenceTooLow { seen: 6, .. }));
    }
}
