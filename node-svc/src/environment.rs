//! Software environments: one Python environment per image recipe, built once and then only read.
//!
//! ```text
//! <data>/envs/<image>/<hash>.json         what is in it; written last, so it marks a finished build
//! <data>/envs/<image>/<hash>-<build>/     the environment
//! <data>/envs/<image>/<hash>.log          what the last build said
//! <data>/envs/<image>/<hash>.lock         held while a build runs
//! ```
//!
//! **Invariants**
//! - A folder without a marker that names it is never used, and is removed by the next build.
//! - One build at a time per recipe, also among several node-svc on one data folder.
//! - A build's processes end with node-svc, however it ends.

mod build;
mod group;
mod pip;
mod python;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use cnlab_service::{Runtime, metrics::Durations, runtime::Tasks};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::{
    config::EnvironmentConfig,
    disk::{self, Durability},
    failure::Failure,
};

/// Part of every recipe's hash: raise it when environments are built in another way.
const LAYOUT: &str = "1";

/// What an image consists of on a node without containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Short name such as `pytorch:2.4-cuda12.4`.
    pub image: String,
    /// Requirement lines for the Python index.
    pub packages: Vec<String>,
}

/// An environment that can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Short name of the image.
    pub image: String,
    /// Its folder; `bin/python` is in it.
    pub path: PathBuf,
    /// Version such as `3.11.7`.
    pub python_version: String,
    /// Where the Python that it was made from is installed.
    pub base_prefix: PathBuf,
    /// Installed packages as `name==version`.
    pub installed: Vec<String>,
}

/// How far a build is.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It goes on; a few words about what it does now.
    Running(String),
    /// It is over.
    Done(Arc<Result<Environment, Failure>>),
}

/// What [`Environments::ensure`] found.
#[derive(Debug)]
pub enum Found {
    /// It had been built before.
    Ready(Environment),
    /// It is being built, for this caller or an earlier one.
    Building(watch::Receiver<Progress>),
}

/// The environments of one data folder.
#[derive(Clone)]
pub struct Environments(Arc<Inner>);

struct Inner {
    root: PathBuf,
    config: EnvironmentConfig,
    tasks: Tasks,
    runtime: Runtime,
    python: tokio::sync::OnceCell<python::Python>,
    builds: Mutex<BTreeMap<String, watch::Receiver<Progress>>>,
    build_took: Durations,
}

impl fmt::Debug for Environments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Environments").field(&self.0.root).finish()
    }
}

/// The files of one recipe.
#[derive(Debug, Clone)]
struct Place {
    folder: PathBuf,
    hash: String,
}

impl Place {
    fn marker(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.hash))
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.hash))
    }

    fn lock(&self) -> PathBuf {
        self.folder.join(format!("{}.lock", self.hash))
    }

    fn ready(&self) -> io::Result<Option<Environment>> {
        let Some(environment) = disk::read_json::<Environment>(&self.marker())? else {
            return Ok(None);
        };
        // Whoever removed the folder by hand wants it built anew.
        Ok(environment
            .path
            .join("bin/python")
            .exists()
            .then_some(environment))
    }

    /// Removes what builds left that did not finish. Call it under the lock.
    fn remove_unfinished(&self) -> io::Result<()> {
        let prefix = format!("{}-", self.hash);
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                disk::remove_dir(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl Environments {
    /// The environments below `root`, which is made if it is not there.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(root: PathBuf, config: EnvironmentConfig, runtime: &Runtime) -> io::Result<Self> {
        disk::make_dir(&root, 0o755)?;
        Ok(Self(Arc::new(Inner {
            root: std::path::absolute(root)?,
            config,
            tasks: runtime.tasks.clone(),
            runtime: runtime.clone(),
            python: tokio::sync::OnceCell::new(),
            builds: Mutex::default(),
            build_took: Durations::named(
                "cnlab_node_environment_build_seconds",
                "how long building an environment took, by how it ended",
            ),
        })))
    }

    /// Finds the environment of a recipe, or begins to build it.
    ///
    /// # Errors
    /// When there is no usable Python, or the folder cannot be read.
    pub async fn ensure(&self, recipe: &Recipe) -> Result<Found, Failure> {
        let python = self.python().await?.clone();
        let place = self.place(recipe, &python);
        let found = {
            let place = place.clone();
            blocking(move || place.ready()).await
        };
        let found = found.map_err(|error| Failure::disk("reading the environment", &error))?;
        if let Some(environment) = found {
            return Ok(Found::Ready(environment));
        }
        let mut builds = self.0.builds.lock().unwrap_or_else(PoisonError::into_inner);
        // A build that has said its result is over, even while its task still ends: what it
        // built may have been removed since.
        if let Some(running) = builds.get(&place.hash)
            && running.has_changed().is_ok()
            && !matches!(*running.borrow(), Progress::Done(_))
        {
            return Ok(Found::Building(running.clone()));
        }
        let (sender, receiver) = watch::channel(Progress::Running("preparing".to_owned()));
        builds.insert(place.hash.clone(), receiver.clone());
        drop(builds);
        let this = self.clone();
        let recipe = recipe.clone();
        self.0.tasks.spawn("environment-build", async move {
            let done = this.build(&recipe, &python, &place, &sender).await;
            if let Err(failure) = &done {
                tracing::warn!(image = %recipe.image, reason = %failure.reason, cause = %failure.cause, "environment build failed");
            }
            sender.send_replace(Progress::Done(Arc::new(done)));
        });
        Ok(Found::Building(receiver))
    }

    /// Short names of the images that are ready to use.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub async fn ready_images(&self) -> io::Result<Vec<String>> {
        let root = self.0.root.clone();
        blocking(move || {
            let mut images = Vec::new();
            for folder in std::fs::read_dir(&root)? {
                let folder = folder?.path();
                if !folder.is_dir() {
                    continue;
                }
                for entry in std::fs::read_dir(folder)? {
                    let path = entry?.path();
                    if path.extension().is_some_and(|ext| ext == "json")
                        && let Ok(Some(environment)) = disk::read_json::<Environment>(&path)
                        && environment.path.join("bin/python").exists()
                    {
                        images.push(environment.image);
                    }
                }
            }
            images.sort();
            images.dedup();
            Ok(images)
        })
        .await
    }

    /// Begins to look for Python, so that the first launch need not wait for that.
    pub(crate) fn look_for_python(&self) {
        let this = self.clone();
        self.0.tasks.spawn("python", async move {
            if let Err(failure) = this.python().await {
                tracing::warn!(reason = %failure.reason, cause = %failure.cause, try_this = %failure.try_this, "no environment can be built");
            }
        });
    }

    async fn python(&self) -> Result<&python::Python, Failure> {
        self.0
            .python
            .get_or_try_init(|| python::find(&self.0.config.python))
            .await
    }

    fn place(&self, recipe: &Recipe, python: &python::Python) -> Place {
        let mut hash = Sha256::new();
        let fixed = [LAYOUT, &python.version, &python.base_prefix];
        for part in fixed
            .into_iter()
            .chain(recipe.packages.iter().map(String::as_str))
        {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash: String = hash
            .finalize()
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Place {
            folder: self.0.root.join(folder_name(&recipe.image)),
            hash,
        }
    }

    async fn build(
        &self,
        recipe: &Recipe,
        python: &python::Python,
        place: &Place,
        progress: &watch::Sender<Progress>,
    ) -> Result<Environment, Failure> {
        let say = |detail: String| {
            progress.send_replace(Progress::Running(detail));
        };
        let storage = |error: io::Error| Failure::disk("preparing the environment", &error);
        let _lock = self.lock(place, &say).await.map_err(storage)?;
        let checked = place.clone();
        let found = blocking(move || {
            let found = checked.ready()?;
            if found.is_none() {
                checked.remove_unfinished()?;
            }
            Ok(found)
        });
        // Another node-svc on this data folder may have built it meanwhile.
        if let Some(environment) = found.await.map_err(storage)? {
            return Ok(environment);
        }
        let build = self.0.runtime.ids.ulid().to_string().to_lowercase();
        let path = place.folder.join(format!("{}-{build}", place.hash));
        let job = build::Job {
            recipe,
            python,
            config: &self.0.config,
            path: &path,
            stop: self.0.tasks.token(),
        };
        let mut log = Vec::new();
        let began = tokio::time::Instant::now();
        let built =
            match tokio::time::timeout(self.0.config.build_within.0, job.run(&say, &mut log)).await
            {
                Ok(built) => built,
                Err(_) => Err(Failure::new(
                    "ENVIRONMENT_BUILD_FAILED",
                    format!(
                        "building the environment took longer than {}",
                        self.0.config.build_within
                    ),
                )
                .try_this("raise environment.build_within, or look at the network")),
            };
        let built = self.conclude(place, &path, built, log).await;
        let outcome = match &built {
            Ok(_) => "built",
            Err(failure) => failure.reason.as_str(),
        };
        self.0
            .build_took
            .record(began.elapsed(), &[("outcome", outcome)]);
        built
    }

    /// Marks the environment as finished, or removes it.
    async fn conclude(
        &self,
        place: &Place,
        path: &Path,
        built: Result<Environment, Failure>,
        log: Vec<String>,
    ) -> Result<Environment, Failure> {
        let place = place.clone();
        let path = path.to_owned();
        blocking(move || {
            // The log is for people; a build does not fail because it could not be kept.
            if let Err(error) = disk::write(
                &place.log(),
                log.join("\n").as_bytes(),
                Durability::Atomic,
            ) {
                tracing::debug!(%error, "the log of the build could not be kept");
            }
            let built = built.and_then(|environment| {
                disk::write_json(&place.marker(), &environment, Durability::Synced)
                    .map_err(|error| Failure::disk("marking the environment as finished", &error))?;
                Ok(environment)
            });
            if built.is_err()
                && let Err(error) = disk::remove_dir(&path)
            {
                tracing::warn!(%error, path = %path.display(), "the unfinished environment could not be removed");
            }
            Ok(built)
        })
        .await
        .map_err(|error| Failure::disk("finishing the environment", &error))?
    }

    /// Waits for the lock of a recipe. The system gives it back when its holder dies.
    async fn lock(&self, place: &Place, say: &impl Fn(String)) -> io::Result<Flock<std::fs::File>> {
        loop {
            let place = place.clone();
            let lock = blocking(move || {
                disk::make_dir(&place.folder, 0o755)?;
                let file = std::fs::File::create(place.lock())?;
                match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    Ok(lock) => Ok(Some(lock)),
                    Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
                    Err((_, error)) => Err(error.into()),
                }
            })
            .await?;
            if let Some(lock) = lock {
                return Ok(lock);
            }
            say("waiting for another node-svc that builds this environment".to_owned());
            tokio::select! {
                () = tokio::time::sleep(std::time::Duration::from_millis(200)) => {}
                () = self.0.tasks.token().cancelled() => {
                    return Err(io::Error::other("node-svc is stopping"));
                }
            }
        }
    }
}

/// An image name as a folder name: no separators, never hidden, never too long.
fn folder_name(image: &str) -> String {
    let mut name: String = image
        .chars()
        .take(64)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' => c,
            _ => '_',
        })
        .collect();
    if name.is_empty() || name.starts_with('.') {
        name.insert(0, '_');
    }
    name
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_stay_inside_the_folder() {
        assert_eq!(folder_name("pytorch:2.4-cuda12.4"), "pytorch_2.4-cuda12.4");
        for hostile in ["..", "../../etc", "", ".hidden", "a/b", "\u{7}"] {
            let name = folder_name(hostile);
            assert!(
                !name.is_empty() && !name.starts_with('.') && !name.contains('/'),
                "{name}"
            );
        }
        assert!(folder_name(&"x".repeat(10_000)).len() <= 65);
    }
}
