//! Environments from the real Python index, and everything that can go wrong with them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cnlab_proto::node::v1::WorkloadState;
use cnlab_service::Runtime;
use cnlab_testkit::{free_port, wait_for, wait_until};
use nix::mount::{MsFlags, mount, umount};
use node_svc::{
    config::EnvironmentConfig,
    environment::{Environment, Environments, Found, Progress, Recipe},
    failure::Failure,
};

use crate::support::{Leftovers, OwnProcess, Scheduler, launch_request, until};

const LONG: std::time::Duration = std::time::Duration::from_secs(300);

fn small() -> Recipe {
    Recipe {
        image: "tests:small".to_owned(),
        packages: vec!["six==1.17.0".to_owned(), "packaging".to_owned()],
    }
}

fn open(root: &Path, config: EnvironmentConfig) -> Environments {
    Environments::open(root.to_owned(), config, &Runtime::system()).unwrap()
}

/// The result of a build and everything that it said on the way.
async fn build(
    environments: &Environments,
    recipe: &Recipe,
) -> (Arc<Result<Environment, Failure>>, Vec<String>) {
    let mut said = Vec::new();
    let mut progress = match environments.ensure(recipe).await {
        Ok(Found::Ready(environment)) => return (Arc::new(Ok(environment)), said),
        Ok(Found::Building(progress)) => progress,
        Err(failure) => return (Arc::new(Err(failure)), said),
    };
    loop {
        let now = progress.borrow_and_update().clone();
        match now {
            Progress::Running(detail) => said.push(detail),
            Progress::Done(done) => return (done, said),
        }
        tokio::time::timeout(LONG, progress.changed())
            .await
            .expect("the build ends")
            .unwrap();
    }
}

async fn failure(environments: &Environments) -> Failure {
    let (done, _) = build(environments, &small()).await;
    done.as_ref().as_ref().unwrap_err().clone()
}

/// Folders of builds, finished or not.
fn builds(root: &Path) -> Vec<PathBuf> {
    let Ok(images) = fs::read_dir(root) else {
        return Vec::new();
    };
    images
        .flatten()
        .flat_map(|image| fs::read_dir(image.path()).unwrap().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_is_built_once_and_says_how_far_it_is() {
    let root = tempfile::tempdir().unwrap();
    let recipe = small();
    // An earlier node-svc died in the middle.
    let first = open(root.path(), EnvironmentConfig::default());
    let second = open(root.path(), EnvironmentConfig::default());
    let (one, two, three) = tokio::join!(
        build(&first, &recipe),
        build(&first, &recipe),
        build(&second, &recipe)
    );
    let environment = one.0.as_ref().as_ref().unwrap().clone();
    for other in [&two, &three] {
        assert_eq!(other.0.as_ref().as_ref().unwrap(), &environment);
    }
    assert_eq!(builds(root.path()), std::slice::from_ref(&environment.path));
    let said = [one.1, two.1, three.1].concat().join("\n");
    for words in [
        "creating the virtual environment",
        "downloading six (package 1)",
        " of 2)",
        "compiling",
        "waiting for another node-svc",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    assert!(environment.installed.contains(&"six==1.17.0".to_owned()));
    let mode = fs::metadata(&environment.path)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755, "other users read it");
    let site = fs::read_dir(environment.path.join("lib"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let bytecode = site.path().join("site-packages/__pycache__");
    let compiled = fs::read_dir(bytecode).unwrap().flatten();
    assert!(
        compiled
            .into_iter()
            .any(|file| file.file_name().to_string_lossy().starts_with("six."))
    );

    assert!(matches!(first.ensure(&recipe).await, Ok(Found::Ready(_))));
    assert_eq!(first.ready_images().await.unwrap(), ["tests:small"]);
    // A marker whose folder somebody removed is no environment, and rests are cleared away.
    let rest = environment.path.with_file_name(format!(
        "{}-rest",
        environment
            .path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .split('-')
            .next()
            .unwrap()
    ));
    fs::rename(&environment.path, &rest).unwrap();
    let (again, _) = build(&first, &recipe).await;
    let again = again.as_ref().as_ref().unwrap().clone();
    assert_eq!(builds(root.path()), std::slice::from_ref(&again.path));
    // Another recipe is another environment.
    let mut other = recipe.clone();
    other.packages.pop();
    let (other, _) = build(&first, &other).await;
    assert_ne!(other.as_ref().as_ref().unwrap().path, again.path);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_does_not_answer_is_named() {
    let root = tempfile::tempdir().unwrap();
    let closed = format!("http://me:secret@127.0.0.1:{}/simple", free_port().unwrap());
    let environments = open(
        root.path(),
        EnvironmentConfig {
            index_url: Some(closed),
            ..EnvironmentConfig::default()
        },
    );
    let failure = failure(&environments).await;
    assert_eq!(failure.reason, "PYTHON_INDEX_UNREACHABLE", "{failure:?}");
    assert!(failure.try_this.contains("PIP_INDEX_URL"));
    assert!(!format!("{failure:?}").contains("secret"), "{failure:?}");
    assert!(builds(root.path()).is_empty());
    // The next try is a new one, and succeeds once the index is there.
    let repaired = open(root.path(), EnvironmentConfig::default());
    let (done, _) = build(&repaired, &small()).await;
    assert!(done.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_package_is_not_a_network_failure() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(root.path(), EnvironmentConfig::default());
    let recipe = Recipe {
        image: "tests:none".to_owned(),
        packages: vec!["six==99.99".to_owned()],
    };
    let (done, _) = build(&environments, &recipe).await;
    let failure = done.as_ref().as_ref().unwrap_err().clone();
    assert_eq!(failure.reason, "PACKAGE_NOT_FOUND", "{failure:?}");
    assert!(builds(root.path()).is_empty());
}

/// A Python that lacks the modules named.
fn python_without(folder: &Path, modules: &[&str]) -> String {
    let hidden = folder.join("hidden");
    fs::create_dir_all(&hidden).unwrap();
    for module in modules {
        fs::write(
            hidden.join(format!("{module}.py")),
            "raise ImportError('not installed')\n",
        )
        .unwrap();
    }
    let program = folder.join("python");
    let script = format!(
        "#!/bin/sh\nPYTHONPATH={} exec python3 \"$@\"\n",
        hidden.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_without_venv_takes_another_way_or_names_the_package() {
    let root = tempfile::tempdir().unwrap();
    let envs = root.path().join("envs");
    let python = python_without(root.path(), &["venv", "ensurepip", "virtualenv"]);
    let config = |python: String| EnvironmentConfig {
        python,
        ..EnvironmentConfig::default()
    };
    let environments = open(&envs, config(python));
    let (done, _) = build(&environments, &small()).await;
    let others = ["virtualenv", "uv"].map(|program| cnlab_testkit::find_program(program, program));
    if others.iter().any(Result::is_ok) {
        assert!(done.is_ok(), "{done:?}");
    } else {
        let failure = done.as_ref().as_ref().unwrap_err().clone();
        assert_eq!(failure.reason, "PYTHON_WITHOUT_VENV");
        assert_eq!(failure.try_this, "apt-get install python3-venv");
        assert!(builds(&envs).is_empty());
    }
}

/// Real alternatives: Python's own pip, and the module virtualenv.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_python_has_instead_is_used() {
    let root = tempfile::tempdir().unwrap();
    let environments = open(&root.path().join("tools"), EnvironmentConfig::default());
    let tools = Recipe {
        image: "tests:tools".to_owned(),
        packages: vec!["virtualenv".to_owned()],
    };
    let (done, _) = build(&environments, &tools).await;
    let tools = done.as_ref().as_ref().unwrap().path.clone();
    let site = fs::read_dir(tools.join("lib"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    for hidden in ["ensurepip=None", "venv=None, ensurepip=None"] {
        fs::write(
            site.path().join("site-packages/hidden.pth"),
            format!("import sys; sys.modules.update({hidden})\n"),
        )
        .unwrap();
        let envs = root.path().join(hidden);
        let python = tools.join("bin/python").to_str().unwrap().to_owned();
        let environments = open(
            &envs,
            EnvironmentConfig {
                python,
                ..EnvironmentConfig::default()
            },
        );
        let (done, _) = build(&environments, &small()).await;
        let environment = done.as_ref().as_ref().unwrap();
        assert!(
            environment.installed.contains(&"six==1.17.0".to_owned()),
            "{hidden}"
        );
    }
}

/// A small file system of its own.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(crate) fn new(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        mount(
            Some("tmpfs"),
            folder.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(format!("size={size}").as_str()),
        )
        .expect("this test mounts a small tmpfs: run it as root");
        Self(folder)
    }
}

impl SmallDisk {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount(self.0.path()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_left_as_it_was() {
    let disk = SmallDisk::new("6m");
    let environments = open(disk.path(), EnvironmentConfig::default());
    let failure = failure(&environments).await;
    assert_eq!(failure.reason, "DISK_FULL", "{failure:?}");
    assert!(failure.try_this.contains("free space"));
    assert!(builds(disk.path()).is_empty());
}

/// Processes whose command line names a folder.
fn processes_in(folder: &str) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(folder)
                && entry.file_name() != std::process::id().to_string().as_str()
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_dies_with_its_node_and_the_next_node_builds_anew() {
    let (data, envs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let scheduler = Scheduler::start().await;
    let node = OwnProcess::start(data.path(), &scheduler, envs.path()).await;
    let mut request = launch_request(&scheduler.registrations()[0].gpus[0], 1);
    let _leftovers = Leftovers(vec![request.workload_id.clone()]);
    let image = request.image.as_mut().unwrap();
    // Enough to be in the middle of, and no JupyterLab: what matters here is the environment.
    image.packages = vec!["jupyterlab-server".to_owned()];
    node.client
        .clone()
        .launch_workload(request.clone())
        .await
        .unwrap();
    let id = request.workload_id.clone();
    wait_for(LONG, "the build to download", async || {
        scheduler.reports().into_iter().rev().find(|report| {
            report.workload_id == id
                && report.state() == WorkloadState::BuildingEnvironment
                && report.detail.starts_with("downloading")
        })
    })
    .await
    .unwrap();
    // The environments' folder is also on node-svc's own command line.
    let inside = envs.path().join("tests_lab");
    let inside = inside.to_str().unwrap();
    assert!(processes_in(inside) > 0);
    let unfinished = builds(envs.path());
    node.kill().await;
    wait_until(LONG, "the build to end", async || processes_in(inside) == 0)
        .await
        .unwrap();

    let node = OwnProcess::start(data.path(), &scheduler, envs.path()).await;
    let failed = until(&node.client, &request.workload_id, WorkloadState::Failed).await;
    // Built, then started, and only then found to be without JupyterLab.
    assert_eq!(failed.failure.unwrap().reason, "NOTEBOOK_ENDED");
    assert!(
        failed
            .installed
            .iter()
            .any(|line| line.starts_with("jupyterlab_server==")
                || line.starts_with("jupyterlab-server=="))
    );
    let finished = builds(envs.path());
    assert_eq!(finished.len(), 1);
    assert_ne!(finished, unfinished);
}
