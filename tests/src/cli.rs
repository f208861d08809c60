//! The command line as a user types it: the real `cnlab` binary with a configuration folder
//! of its own.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::process::Command;

/// Nothing that a test types may take longer; a fresh environment is the slowest.
const LONGEST: Duration = Duration::from_secs(600);

/// Where cargo put a binary of this workspace.
///
/// # Errors
/// When it was not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let mut folder = std::env::current_exe()?;
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join(name);
    ensure!(
        path.is_file(),
        "{} is missing: run `cargo build --workspace` first, or `cargo xtask test`",
        path.display()
    );
    Ok(path)
}

/// A person at a terminal.
#[derive(Debug)]
pub struct Cli {
    binary: PathBuf,
    home: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

/// What a command answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Exit code; 128 + signal where a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Cli {
    /// A person who has not configured anything.
    ///
    /// # Errors
    /// When the binary was not built.
    pub fn new() -> Result<Self> {
        Ok(Self {
            binary: binary("cnlab")?,
            home: tempfile::tempdir()?,
            environment: Vec::new(),
        })
    }

    /// With a variable in the environment of every command.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The configuration file of this person.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.home.path().join("config.toml")
    }

    /// A command that has not been started: nothing of the test's own environment that
    /// could steer it is left.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .env("HOME", self.home.path())
            .env("CNLAB_CONFIG", self.config())
            .env_remove("CNLAB_ENDPOINT")
            .env_remove("CNLAB_TOKEN")
            .env_remove("AUTOLAB_TOKEN")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn run(&self, arguments: &[&str]) -> Result<Answer> {
        let output = tokio::time::timeout(LONGEST, self.command(arguments).output())
            .await
            .with_context(|| format!("cnlab {} did not end", arguments.join(" ")))??;
        Ok(Answer::from(&output))
    }

    /// Runs a command that must succeed, and answers with its standard output.
    ///
    /// # Errors
    /// When it fails; the error holds what it said.
    pub async fn ok(&self, arguments: &[&str]) -> Result<String> {
        let answer = self.run(arguments).await?;
        if answer.code != 0 {
            bail!("cnlab {}: {answer:?}", arguments.join(" "));
        }
        Ok(answer.stdout)
    }

    /// Runs a command with `-o json` that must succeed.
    ///
    /// # Errors
    /// When it fails or does not answer in JSON.
    pub async fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let text = self.ok(&all).await?;
        serde_json::from_str(&text)
            .with_context(|| format!("cnlab {} answered {text:?}", arguments.join(" ")))
    }

    /// Signs in with the token in a file.
    ///
    /// # Errors
    /// When the token is refused.
    pub async fn login(&self, endpoint: &str, token: &Path) -> Result<()> {
        let token = std::fs::read_to_string(token)?;
        self.ok(&["--endpoint", endpoint, "login", "--token", token.trim()])
            .await
            .map(drop)
    }
}

impl From<&Output> for Answer {
    fn from(output: &Output) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        Self {
            code: output
                .status
                .code()
                .unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
