//! The steps of one build: make the environment, install, compile, take stock.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    Environment, Recipe,
    group::{Step, StepError},
    pip::{PipReader, explain},
    python::{Method, Python},
};
use crate::{config::EnvironmentConfig, disk, failure::Failure};

const INVENTORY: &str = include_str!("inventory.py");
/// How often the folder is looked at while pip installs without a word.
const LOOK: Duration = Duration::from_millis(200);
/// Lines of output that are kept for the explanation of a failure.
const TAIL: usize = 60;

/// Variables of the host that reach pip: how to get to the index, and where things are.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NETRC",
    "LD_LIBRARY_PATH",
];
const PASSED_PREFIXES: &[&str] = &["PIP_", "UV_", "XDG_", "LC_", "PYENV_"];
/// Settings of pip that would install somewhere else, or not at all.
const NOT_PASSED: &[&str] = &[
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_REQUIREMENT",
    "PIP_EDITABLE",
    "PIP_QUIET",
    "PIP_VERBOSE",
    "PIP_LOG",
    "PIP_NO_DEPS",
    "PIP_SRC",
];

/// One build.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) python: &'a Python,
    pub(super) config: &'a EnvironmentConfig,
    pub(super) path: &'a Path,
    pub(super) stop: &'a CancellationToken,
}

#[derive(Debug, Deserialize)]
struct Inventory {
    version: String,
    base_prefix: PathBuf,
    installed: Vec<String>,
}

impl Job<'_> {
    /// Builds the environment in its folder. On an error the folder is the caller's to remove.
    pub(super) async fn run(
        &self,
        say: &(impl Fn(String) + Sync),
        log: &mut Vec<String>,
    ) -> Result<Environment, Failure> {
        // What pip unpacks on the way lies in the environment's folder, so that it is on the
        // same disk, and removed with it.
        let scratch = self.path.join("tmp");
        disk::make_dir(self.path, 0o755)
            .and_then(|()| disk::make_dir(&scratch, 0o700))
            .map_err(|error| Failure::disk("making the environment's folder", &error))?;
        let env = self.variables(&scratch);
        say("creating the virtual environment".to_owned());
        self.create(&env, log).await?;
        self.install(&env, say, log).await?;
        say("compiling".to_owned());
        self.compile(&env, log).await?;
        let inventory = self.take_stock(&env, log).await?;
        self.open_to_users()
            .and_then(|()| self.keep_lab_to_itself())
            .and_then(|()| disk::remove_dir(&scratch))
            .map_err(|error| Failure::disk("finishing the environment", &error))?;
        Ok(Environment {
            image: self.recipe.image.clone(),
            path: self.path.to_owned(),
            python_version: inventory.version,
            base_prefix: inventory.base_prefix,
            installed: inventory.installed,
        })
    }

    fn inside(&self, name: &str) -> OsString {
        self.path.join(name).into_os_string()
    }

    /// Makes an environment whose `bin/python -m pip` works.
    async fn create(
        &self,
        env: &[(OsString, OsString)],
        log: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let what = "creating the virtual environment";
        let python = self.python.executable.as_os_str();
        let folder = self.path.as_os_str();
        let venv = [
            python,
            OsStr::new("-m"),
            OsStr::new("venv"),
            OsStr::new("--without-pip"),
            folder,
        ];
        let text = OsStr::new;
        match &self.python.method {
            Method::VenvAndWheel(wheel) => {
                self.step(what, &venv, env, log, |_| {}).await?;
                let inner = self.inside("bin/python");
                let pip = wheel.join("pip");
                // The index's pip is faster than the one that came with Python.
                let argv = [
                    inner.as_os_str(),
                    pip.as_os_str(),
                    text("install"),
                    text("--no-compile"),
                    text("pip"),
                ];
                self.step("installing pip", &argv, env, log, |_| {}).await
            }
            Method::VenvAndPip => {
                self.step(what, &venv, env, log, |_| {}).await?;
                let argv = [
                    python,
                    text("-m"),
                    text("pip"),
                    text("--python"),
                    folder,
                    text("install"),
                    text("--no-compile"),
                    text("pip"),
                ];
                self.step("installing pip", &argv, env, log, |_| {}).await
            }
            Method::VirtualenvModule => {
                let argv = [python, text("-m"), text("virtualenv"), folder];
                self.step(what, &argv, env, log, |_| {}).await
            }
            Method::Virtualenv(program) => {
                let argv = [program.as_os_str(), text("-p"), python, folder];
                self.step(what, &argv, env, log, |_| {}).await
            }
            Method::Uv(program) => {
                let argv = [
                    program.as_os_str(),
                    text("venv"),
                    text("--seed"),
                    text("--allow-existing"),
                    text("--python"),
                    python,
                    folder,
                ];
                self.step(what, &argv, env, log, |_| {}).await
            }
        }
    }

    async fn install(
        &self,
        env: &[(OsString, OsString)],
        say: &(impl Fn(String) + Sync),
        log: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let python = self.inside("bin/python");
        let mut argv = vec![python.as_os_str()];
        argv.extend(["-m", "pip", "install", "--no-compile", "--"].map(OsStr::new));
        argv.extend(self.recipe.packages.iter().map(OsStr::new));
        let reader = std::sync::Mutex::new(PipReader::default());
        let read = |line: &str| {
            let mut reader = reader
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(detail) = reader.line(line) {
                say(detail);
            }
        };
        let site = site_packages(self.path);
        let before = site.as_deref().map_or(0, packages_in);
        let watch = async {
            loop {
                tokio::time::sleep(LOOK).await;
                let detail = {
                    let reader = reader
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    reader.is_installing().then(|| {
                        let there = site.as_deref().map_or(0, packages_in);
                        reader.installed(there.saturating_sub(before))
                    })
                };
                if let Some(detail) = detail.flatten() {
                    say(detail);
                }
            }
        };
        tokio::select! {
            done = self.step("installing packages", &argv, env, log, read) => done,
            () = watch => Ok(()),
        }
    }

    /// Makes the bytecode, since nobody can write it later: the folder belongs to another user
    /// and is mounted read-only.
    async fn compile(
        &self,
        env: &[(OsString, OsString)],
        log: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let (python, lib) = (self.inside("bin/python"), self.inside("lib"));
        let mut argv = vec![python.as_os_str()];
        argv.extend(["-m", "compileall", "-qq", "-j", "0", "-x", "/tests/"].map(OsStr::new));
        argv.push(&lib);
        let compiled = self.step("compiling", &argv, env, log, |_| {}).await;
        match compiled {
            // Some packages carry templates that are no valid Python; that is no failure.
            Err(failure) if failure.reason == "ENVIRONMENT_BUILD_FAILED" => Ok(()),
            other => other,
        }
    }

    async fn take_stock(
        &self,
        env: &[(OsString, OsString)],
        log: &mut Vec<String>,
    ) -> Result<Inventory, Failure> {
        let python = self.inside("bin/python");
        let argv = [
            python.as_os_str(),
            OsStr::new("-I"),
            OsStr::new("-c"),
            OsStr::new(INVENTORY),
        ];
        let mut answer = String::new();
        // One line may be longer than what is kept of a line, so it goes through a file.
        let file = self.path.join("tmp/inventory.json");
        let script = [
            OsStr::new("/bin/sh"),
            OsStr::new("-c"),
            OsStr::new("out=$1; shift; exec \"$@\" >\"$out\""),
            OsStr::new("inventory"),
            file.as_os_str(),
        ];
        let argv: Vec<&OsStr> = script.into_iter().chain(argv).collect();
        self.step("listing the packages", &argv, env, log, |_| {})
            .await?;
        answer.push_str(
            &std::fs::read_to_string(&file)
                .map_err(|error| Failure::disk("listing the packages", &error))?,
        );
        serde_json::from_str(&answer).map_err(|error| {
            Failure::new(
                "ENVIRONMENT_BUILD_FAILED",
                "the environment could not be built: listing the packages",
            )
            .caused_by(error.to_string())
        })
    }

    /// Lets `pip install` inside a server put packages into the user's own folder, which is the
    /// volume: Python refuses that in an environment that hides everything outside itself.
    fn open_to_users(&self) -> std::io::Result<()> {
        let path = self.path.join("pyvenv.cfg");
        let text = std::fs::read_to_string(&path)?;
        let opened: Vec<&str> = text
            .lines()
            .map(|line| {
                if line.starts_with("include-system-site-packages") {
                    "include-system-site-packages = true"
                } else {
                    line
                }
            })
            .collect();
        std::fs::write(&path, opened.join("\n") + "\n")
    }

    /// Keeps JupyterLab from asking its first visitor about news and from looking for updates
    /// on the public internet: who may change this environment is the node.
    fn keep_lab_to_itself(&self) -> std::io::Result<()> {
        let folder = self.path.join("share/jupyter/lab/settings");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(
            folder.join("overrides.json"),
            r#"{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}"#,
        )
    }

    fn variables(&self, scratch: &Path) -> Vec<(OsString, OsString)> {
        let passes = |name: &str| {
            (PASSED.contains(&name)
                || PASSED_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix)))
                && !NOT_PASSED.contains(&name)
        };
        let mut env: Vec<(OsString, OsString)> = std::env::vars_os()
            .filter(|(name, _)| name.to_str().is_some_and(passes))
            .collect();
        let mut set = |name: &str, value: &OsStr| {
            env.retain(|(other, _)| other != name);
            env.push((name.into(), value.to_owned()));
        };
        for (name, value) in [
            ("PIP_NO_INPUT", "1"),
            ("PIP_PROGRESS_BAR", "off"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
            ("PYTHONUNBUFFERED", "1"),
            ("PYTHONNOUSERSITE", "1"),
        ] {
            set(name, OsStr::new(value));
        }
        set("TMPDIR", scratch.as_os_str());
        if let Some(index) = &self.config.index_url {
            set("PIP_INDEX_URL", OsStr::new(index));
            set("UV_INDEX_URL", OsStr::new(index));
        }
        env
    }

    async fn step(
        &self,
        what: &str,
        argv: &[&OsStr],
        env: &[(OsString, OsString)],
        log: &mut Vec<String>,
        mut on_line: impl FnMut(&str),
    ) -> Result<(), Failure> {
        log.push(format!("# {what}"));
        let from = log.len();
        let step = Step {
            argv: argv.iter().map(|part| (*part).to_owned()).collect(),
            env,
            folder: Path::new("/"),
        };
        let ended = step
            .run(self.stop, |line| {
                on_line(line);
                log.push(line.to_owned());
            })
            .await;
        let lines = log
            .get(from.max(log.len().saturating_sub(TAIL))..)
            .unwrap_or_default();
        match ended {
            Ok(()) => Ok(()),
            Err(StepError::Failed(status)) => Err(explain(what, &status, lines)),
            Err(StepError::NotStarted(error)) => Err(explain(what, &error.to_string(), lines)),
            Err(StepError::Stopped) => Err(Failure::new(
                "NODE_STOPPING",
                "the build was ended because node-svc stops",
            )
            .try_this("start again")),
        }
    }
}

fn site_packages(environment: &Path) -> Option<PathBuf> {
    std::fs::read_dir(environment.join("lib"))
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("site-packages"))
        .find(|path| path.is_dir())
}

fn packages_in(site: &Path) -> usize {
    std::fs::read_dir(site).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| {
                entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "dist-info")
            })
            .count()
    })
}
