//! The use cases of a node: launch, stop, look, remove.
//!
//! ```text
//! <data>/nodes/<name>/node.json book.json uids.json gpus.json lock
//! <data>/nodes/<name>/workloads/<workload>/<fence>/record.json token log exit.json run/
//! <data>/volumes/<volume>/
//! <data>/envs/…                                   see `environment`
//! ```
//!
//! **Invariants**
//! - A life's record and its fence are on disk before anything of it is started.
//! - A life's blocks are free only after its processes were seen gone.

mod drive;
mod end;
mod facts;
mod last_words;
mod lease;
pub(crate) mod life;
mod logs;
mod recover;
mod volumes;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cnlab_model::id::{NodeId, VolumeId};
use cnlab_service::{Runtime, StartError, Wake};
use nix::fcntl::{Flock, FlockArg};
use node_core::{Ask, Book, GpuSize, Holder, WorkloadId, book};
use serde::{Deserialize, Serialize};

use crate::{
    adapters::{self, ChosenGpus, run_process::ProcessRunner},
    config::Config,
    disk::{self, Durability},
    environment::Environments,
    error::{NodeError, storage},
    ports::{GpuError, Gpus, Runner},
};

pub(crate) use facts::storage as storage_sentence;
use lease::Lease;
use life::{Launch, Life, Record, Snapshot};
use volumes::Volumes;

/// One node: the machine, and what runs on it.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) id: NodeId,
    folder: PathBuf,
    /// Held for as long as this process runs: two nodes never share a book.
    _lock: Flock<File>,
    book: Mutex<Book>,
    lives: Mutex<BTreeMap<Holder, Arc<Life>>>,
    pub(crate) gpus: ChosenGpus,
    runner: Arc<dyn Runner>,
    pub(crate) environments: Environments,
    pub(crate) volumes: Volumes,
    /// Lives whose state the scheduler has not heard of yet.
    unreported: Mutex<BTreeSet<Holder>>,
    pub(crate) report: Wake,
    pub(crate) register: Wake,
    pub(crate) renew: Wake,
    /// Where the node answers; known once it listens.
    pub(crate) endpoint: OnceLock<String>,
    pub(crate) lease: Lease,
}

#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    id: NodeId,
}

impl Node {
    /// Opens the node of a data folder and takes up what an earlier run left.
    ///
    /// # Errors
    /// When another process has it open, or its state is damaged.
    pub(crate) async fn open(config: Config, runtime: Runtime) -> Result<Arc<Self>, StartError> {
        let opened = tokio::task::spawn_blocking(move || Self::open_blocking(config, runtime))
            .await
            .map_err(|error| StartError::new("opening the node failed").caused_by(error))?;
        let node = Arc::new(opened?);
        tracing::info!(node = %node.id, gpus = %node.gpus.why, "node opened");
        node.recover().await?;
        Ok(node)
    }

    fn open_blocking(config: Config, runtime: Runtime) -> Result<Self, StartError> {
        let data = std::path::absolute(&config.data_dir).map_err(|error| {
            StartError::new(format!(
                "the data folder {} has no absolute path",
                config.data_dir.display()
            ))
            .caused_by(error)
        })?;
        let folder = data.join("nodes").join(&config.name);
        let at = |what: &str| {
            let text = format!("{what} in {}", folder.display());
            move |error: std::io::Error| StartError::new(text).caused_by(error)
        };
        std::fs::create_dir_all(&data).map_err(at("cannot make the data folder"))?;
        disk::make_dir(&folder, 0o700).map_err(at("cannot make the node's folder"))?;
        let lock = File::create(folder.join("lock")).map_err(at("cannot lock the node"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
            StartError::new(format!(
                "another node-svc runs the node {} of this data folder",
                config.name
            ))
            .caused_by(error)
            .try_this("stop it first, or choose another name or data folder")
        })?;
        let identity = folder.join("node.json");
        let id = match disk::read_json::<Identity>(&identity)
            .map_err(at("cannot read the node's id"))?
        {
            Some(identity) => identity.id,
            None => {
                let id = NodeId::from_ulid(runtime.ids.ulid());
                disk::write_json(&identity, &Identity { id }, Durability::Synced)
                    .map_err(at("cannot keep the node's id"))?;
                id
            }
        };
        let gpus = adapters::choose_gpus(&config.gpu, id, &folder.join("gpus.json"))
            .map_err(|error| no_gpus(&error))?;
        let sizes: Vec<GpuSize> = gpus
            .gpus
            .facts()
            .iter()
            .map(|gpu| GpuSize {
                uuid: gpu.uuid.clone(),
                memory_bytes: gpu.memory_bytes,
            })
            .collect();
        let book: Book = disk::read_json(&folder.join("book.json"))
            .map_err(|error| {
                at("cannot read the GPU book")(error).try_this(
                    "restore book.json from a copy; without it old grants could not be told from new ones",
                )
            })?
            .unwrap_or_default();
        let runner = ProcessRunner::open(&config.process).map_err(|failure| {
            StartError::new(failure.message)
                .caused_by(failure.cause)
                .try_this(failure.try_this)
        })?;
        let volumes = Volumes::open(
            data.join("volumes"),
            folder.join("uids.json"),
            &config.process,
            runner.needs_own_users(),
        )
        .map_err(at("cannot open the volumes"))?;
        let folder_of_environments = config.environment.folder.clone();
        let environments = Environments::open(
            folder_of_environments.unwrap_or_else(|| data.join("envs")),
            config.environment.clone(),
            &runtime,
        )
        .map_err(at("cannot open the environments"))?;
        Ok(Self {
            config,
            runtime,
            id,
            folder,
            _lock: lock,
            book: Mutex::new(book.with_gpus(&sizes)),
            lives: Mutex::default(),
            gpus,
            runner: Arc::new(runner),
            environments,
            volumes,
            unreported: Mutex::default(),
            report: Wake::new(),
            register: Wake::new(),
            renew: Wake::new(),
            endpoint: OnceLock::new(),
            lease: Lease::new(),
        })
    }

    pub(crate) fn gpus(&self) -> &Arc<dyn Gpus> {
        &self.gpus.gpus
    }

    pub(crate) fn runner(&self) -> &Arc<dyn Runner> {
        &self.runner
    }

    /// Accepts a launch, or answers with the life that it already began. The work goes on in a
    /// task of its own.
    ///
    /// # Errors
    /// When a newer fence was seen, the slice makes no sense, or the disk refuses.
    pub(crate) async fn launch(
        self: &Arc<Self>,
        holder: Holder,
        launch: Launch,
    ) -> Result<Snapshot, NodeError> {
        let traceparent = cnlab_service::trace::current_traceparent();
        let node = Arc::clone(self);
        let admitted =
            tokio::task::spawn_blocking(move || node.admit(holder, launch, traceparent)).await??;
        let (life, is_new) = admitted;
        if is_new {
            self.changed(&life);
            self.spawn_driver(Arc::clone(&life), drive::Begin::New);
        }
        Ok(life.snapshot())
    }

    /// Writes a new life down: first its record, then its fence; only then does it exist.
    fn admit(
        &self,
        holder: Holder,
        launch: Launch,
        traceparent: Option<String>,
    ) -> Result<(Arc<Life>, bool), NodeError> {
        // The book's lock makes admissions one after another.
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = self.newest(holder.workload) {
            let seen = newest.holder.fence;
            if seen == holder.fence {
                return Ok((newest, false));
            }
            if seen > holder.fence {
                return Err(NodeError::FenceTooLow {
                    fence: holder.fence,
                    seen,
                });
            }
        }
        let (next, _) = book::carve(&book, &ask(holder, &launch))?;
        let now = self.runtime.clock.now();
        let folder = self.life_folder(holder);
        let record = Record::new(holder, Some(launch), traceparent, now);
        let life = Arc::new(Life::new(folder.clone(), record, String::new()));
        // The record last but one: a folder without it never began, and is cleared away.
        let kept = life
            .make_token(&self.runtime)
            .and_then(|()| life.keep(Durability::Synced))
            .and_then(|()| self.keep_book(&next));
        if let Err(error) = kept {
            // Without its fence on disk the life does not exist, so neither may its record.
            if let Err(rest) = disk::remove_dir(&folder) {
                tracing::warn!(%rest, "a refused launch left its folder");
            }
            return Err(storage("the launch")(error));
        }
        *book = next;
        self.first_lease(&life);
        // Before the next one looks: a stop of this fence must find it.
        self.lives().insert(holder, Arc::clone(&life));
        drop(book);
        self.forget_older(holder);
        Ok((life, true))
    }

    /// Clears away earlier lives of a workload that are over; nobody can ask for them any more.
    fn forget_older(&self, newest: Holder) {
        for life in self.all_lives() {
            let older = life.holder.workload == newest.workload && life.holder < newest;
            if older
                && life.is_over()
                && let Err(error) = self.forget(&life)
            {
                tracing::warn!(%error, "an earlier life of a workload could not be cleared away");
            }
        }
    }

    /// The newest life of a workload.
    pub(crate) fn newest(&self, workload: WorkloadId) -> Option<Arc<Life>> {
        let of = |fence| Holder { workload, fence };
        self.lives()
            .range(of(0)..=of(u64::MAX))
            .next_back()
            .map(|(_, life)| Arc::clone(life))
    }

    /// The newest life of a workload.
    ///
    /// # Errors
    /// When nothing is known of it.
    pub(crate) fn get(&self, workload: WorkloadId) -> Result<Arc<Life>, NodeError> {
        self.newest(workload).ok_or(NodeError::NoWorkload(workload))
    }

    /// The newest life of every workload.
    pub(crate) fn list(&self) -> Vec<Arc<Life>> {
        let newest: BTreeMap<WorkloadId, Arc<Life>> = self
            .lives()
            .iter()
            .map(|(holder, life)| (holder.workload, Arc::clone(life)))
            .collect();
        newest.into_values().collect()
    }

    /// Every life, also those that a newer one displaces.
    pub(crate) fn all_lives(&self) -> Vec<Arc<Life>> {
        self.lives().values().map(Arc::clone).collect()
    }

    /// Removes a volume that nothing uses, with the lives that used it.
    ///
    /// # Errors
    /// When something uses it, or it cannot be removed.
    pub(crate) async fn remove_volume(self: &Arc<Self>, volume: VolumeId) -> Result<(), NodeError> {
        let users: Vec<Arc<Life>> = self
            .all_lives()
            .into_iter()
            .filter(|life| life.volume() == Some(volume))
            .collect();
        if let Some(user) = users.iter().find(|life| !life.phase().is_over()) {
            return Err(NodeError::VolumeInUse {
                volume,
                workload: user.holder.workload,
            });
        }
        for user in &users {
            // The scheduler may have heard of the end before the slice was freed here.
            user.over().await;
        }
        let node = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            node.volumes
                .remove(volume)
                .map_err(storage("the removal of the volume"))?;
            for life in users {
                node.forget(&life)?;
            }
            Ok(())
        })
        .await?
    }

    fn forget(&self, life: &Life) -> Result<(), NodeError> {
        disk::remove_dir(&life.folder).map_err(storage("the removal of a workload"))?;
        if let Some(parent) = life.folder.parent() {
            // Fails while another life of the workload is there, which is right.
            drop(std::fs::remove_dir(parent));
        }
        self.lives().remove(&life.holder);
        Ok(())
    }

    fn keep_book(&self, book: &Book) -> std::io::Result<()> {
        disk::write_json(&self.folder.join("book.json"), book, Durability::Synced)
    }

    /// Frees a life's blocks, after its processes were seen gone.
    fn free(&self, holder: Holder) -> std::io::Result<()> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let next = book.clone().free(holder);
        // Freed in memory even where the disk refuses: the next start finds nothing running.
        let kept = if next == *book {
            Ok(())
        } else {
            self.keep_book(&next)
        };
        *book = next;
        kept
    }

    fn in_the_way(&self, holder: Holder) -> Vec<Holder> {
        self.book
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .in_the_way(holder)
    }

    fn life_folder(&self, holder: Holder) -> PathBuf {
        self.workloads_folder()
            .join(holder.workload.to_string())
            .join(holder.fence.to_string())
    }

    fn workloads_folder(&self) -> PathBuf {
        self.folder.join("workloads")
    }

    pub(crate) fn data_folder(&self) -> &Path {
        // The volumes' file system is the one whose size matters.
        self.volumes.root()
    }

    fn lives(&self) -> std::sync::MutexGuard<'_, BTreeMap<Holder, Arc<Life>>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the scheduler must hear of this life.
    pub(crate) fn changed(&self, life: &Life) {
        self.unreported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(life.holder);
        self.report.wake();
    }

    /// Notes a life again whose report did not arrive, without waking the reporter at once.
    pub(crate) fn keep_unreported(&self, life: &Life) {
        self.unreported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(life.holder);
    }

    /// Takes one life that the scheduler has not heard of.
    pub(crate) fn take_unreported(&self) -> Option<Arc<Life>> {
        loop {
            let holder = self
                .unreported
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_first()?;
            if let Some(life) = self.lives().get(&holder) {
                return Some(Arc::clone(life));
            }
        }
    }
}

/// Why a node without GPUs does not start.
fn no_gpus(error: &GpuError) -> StartError {
    let cause = std::error::Error::source(error).map(cnlab_service::status::chain);
    let start = StartError::new(error.to_string());
    let start = match cause {
        Some(cause) => start.caused_by(cause),
        None => start,
    };
    match error {
        GpuError::Driver(_) | GpuError::None => start.try_this(
            "install the NVIDIA driver, or set gpu.source to \"auto\" or \"simulated\" \
             (`--gpu auto` or `--gpu simulated` of `cnlab up`)",
        ),
        _ => start.try_this("free space in the data folder, and see that it may be written"),
    }
}

fn ask(holder: Holder, launch: &Launch) -> Ask {
    Ask {
        workload: holder.workload,
        fence: holder.fence,
        slices: launch.slices.clone(),
    }
}

#[cfg(test)]
impl Node {
    /// A node on simulated GPUs that keeps everything in this folder.
    pub(crate) async fn simulated(data: &std::path::Path, runtime: Runtime) -> Arc<Self> {
        let mut config = Config {
            data_dir: data.to_owned(),
            ..Config::default()
        };
        config.gpu.source = crate::config::GpuSource::Simulated;
        Self::open(config, runtime).await.unwrap()
    }
}
