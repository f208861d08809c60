//! Runs a real PostgreSQL in a temporary folder, one per test process unless a test wants its own.
//!
//! PostgreSQL refuses to run as root, so root starts it as the `postgres` user that Debian's
//! package makes. SIGQUIT (its immediate stop) ties it to the test process: it leaves the
//! data folder as a crash does, but takes its children and its shared memory along.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};
use nix::unistd::{Uid, User};
use tokio::sync::OnceCell;

use crate::process::{ChildGuard, find_program, is_executable, tied_command};
use crate::scratch::ScratchDir;
use crate::wait::{GENEROUS, wait_for};
use crate::{Signal, free_port};

const PACKAGE: &str = "postgresql";
const SUPERUSER: &str = "postgres";

/// What was acknowledged survives a crash of the server, as in production (so no
/// `synchronous_commit=off`); only a crash of the whole machine would lose it.
const FAST: [&str; 2] = ["fsync=off", "full_page_writes=off"];

/// A PostgreSQL server process.
#[derive(Debug)]
pub struct PostgresServer {
    process: Option<ChildGuard>,
    bin: PathBuf,
    port: u16,
    settings: Vec<String>,
    account: Option<User>,
    databases: AtomicU32,
    dir: ScratchDir,
}

impl PostgresServer {
    /// The server that all tests of this process share; started by the first one that asks.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Starts a server of the caller's own, with fsync off.
    ///
    /// # Errors
    /// When PostgreSQL is not installed (the text names the package), or does not come up (the
    /// text has its log).
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&FAST).await
    }

    /// Starts a server of the caller's own with these `name=value` settings and PostgreSQL's
    /// defaults (which are durable) otherwise.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(settings: &[&str]) -> anyhow::Result<Self> {
        let mut server = Self {
            process: None,
            bin: bin_dir()?,
            port: free_port()?,
            settings: settings.iter().map(ToString::to_string).collect(),
            account: account()?,
            databases: AtomicU32::new(0),
            dir: ScratchDir::new("postgres")?,
        };
        server.init().await?;
        server.restart().await?;
        Ok(server)
    }

    /// Makes a new, empty database and returns its URL,
    /// `postgres://postgres@127.0.0.1:PORT/NAME`.
    ///
    /// # Errors
    /// When the server is down.
    pub async fn create_database(&self) -> anyhow::Result<String> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        // template0 can be copied by many at once, since nobody can be connected to it.
        self.client("createdb", &["--template", "template0", &name])
            .await?;
        Ok(format!(
            "postgres://{SUPERUSER}@127.0.0.1:{}/{name}",
            self.port
        ))
    }

    /// Runs `sql` in the database of `url` with `psql` and returns its rows, fields parted by `|`.
    ///
    /// # Errors
    /// When the server is down or refuses the statement; the text has its message.
    pub async fn query(&self, url: &str, sql: &str) -> anyhow::Result<String> {
        let name = url.rsplit('/').next().unwrap_or_default();
        let args = [
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            name,
            "-c",
            sql,
        ];
        self.client("psql", &args).await
    }

    /// The TCP port on loopback, the same for all lives of this server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the server at once with SIGKILL, as a crash would. Does nothing when it is down.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Ends the server if it runs and starts it again on the same data and port.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let mut command = tied_command(self.bin.join("postgres"), Signal::SIGQUIT);
        if let Some(account) = &self.account {
            command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
        }
        let log_path = self.dir.path().join("postgres.log");
        let log = std::fs::File::create(&log_path).context("making the log of PostgreSQL")?;
        command
            .current_dir(self.dir.path())
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-c", "max_connections=200", "-c", "shared_buffers=32MB"])
            // Files in the data folder go with it; segments in the kernel would stay after SIGKILL.
            .args(["-c", "dynamic_shared_memory_type=mmap"])
            .args(
                self.settings
                    .iter()
                    .flat_map(|setting| ["-c", setting.as_str()]),
            )
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("sharing the log of PostgreSQL")?)
            .stderr(log);
        let process = self.process.insert(ChildGuard::spawn(command)?);
        let (data, pid) = (self.dir.path().join("data"), process.pid());
        let up = wait_for(GENEROUS, "PostgreSQL to accept connections", async || {
            if is_ready(&data, pid) {
                return Some(Ok(()));
            }
            match process.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Err(format!("PostgreSQL ended with {status}"))),
                Err(error) => Some(Err(error.to_string())),
            }
        })
        .await
        .map_err(|late| late.to_string())
        .flatten();
        if let Err(why) = up {
            let log = std::fs::read_to_string(&log_path).unwrap_or_default();
            bail!("{why}; its log: {log}");
        }
        Ok(())
    }

    async fn init(&self) -> anyhow::Result<()> {
        let mut command = tokio::process::Command::new(self.bin.join("initdb"));
        if let Some(account) = &self.account {
            std::os::unix::fs::chown(
                self.dir.path(),
                Some(account.uid.as_raw()),
                Some(account.gid.as_raw()),
            )
            .context("giving the data folder to the postgres user")?;
            command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
        }
        command
            .current_dir(self.dir.path())
            .arg("-D")
            .arg(self.data())
            .args(["-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--locale=C"])
            .args(["--no-sync", "--no-instructions"]);
        run(command).await.map(drop)
    }

    async fn client(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = tokio::process::Command::new(self.bin.join(program));
        command
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-U",
                SUPERUSER,
            ])
            .args(args);
        run(command).await
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
        // A small segment that guards the data folder stays in the kernel after SIGKILL; the next
        // start would take it over, but there is none any more.
        let lines = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let segment = lines
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1));
        if let Some(id) = segment {
            let _ = std::process::Command::new("ipcrm")
                .args(["-m", id])
                .output();
        }
    }
}

async fn run(mut command: tokio::process::Command) -> anyhow::Result<String> {
    let shown = format!("{:?}", command.as_std().get_program());
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} failed with {}: {}", output.status, text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// The server writes `ready` into its eighth line once it takes connections.
fn is_ready(data: &Path, pid: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(data.join("postmaster.pid")) else {
        return false;
    };
    let mut lines = text.lines();
    lines
        .next()
        .is_some_and(|line| line.trim() == pid.to_string())
        && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

/// The programs of the newest installed version, which Debian keeps off the search path.
fn bin_dir() -> anyhow::Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path(),
            ))
        })
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, bin)| {
            is_executable(&bin.join("initdb")) && is_executable(&bin.join("postgres"))
        })
        .max();
    if let Some((_, bin)) = newest {
        return Ok(bin);
    }
    let initdb = find_program("initdb", PACKAGE)?;
    Ok(initdb
        .parent()
        .context("initdb stands in no folder")?
        .to_owned())
}

/// Whom to run as: nobody else unless we are root.
fn account() -> anyhow::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    User::from_name(SUPERUSER)
        .context("looking up the postgres user")?
        .map(Some)
        .with_context(|| {
            format!(
                "PostgreSQL does not run as root and there is no user {SUPERUSER}; \
                 install the Debian package {PACKAGE} (apt-get install {PACKAGE})"
            )
        })
}
